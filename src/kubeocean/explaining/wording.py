"""Words that several stories share: moments, amounts, lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from kubeocean.api import naming
from kubeocean.explaining.facts import Side
from kubeocean.leasing.amounts import PODS, Amounts
from kubeocean.leasing.instants import text_of
from kubeocean.runtime.kinds import Taint

__all__ = [
    "ago",
    "amounts",
    "few",
    "in_order",
    "logs_of_syncer",
    "moment",
    "taint_text",
    "zone_name",
]

_NAMED: Final = 5
_FIRST: Final = ("cpu", "memory")


def moment(instant: datetime, zone: tzinfo = UTC) -> str:
    """When, as the wall clock of that zone shows it."""
    local = instant.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M:%S} {zone_name(zone)}"


def zone_name(zone: tzinfo) -> str:
    """What people call the zone."""
    return "UTC" if zone is UTC else str(zone)


def ago(instant: datetime, now: datetime) -> str:
    """How long that is past, in the largest unit that says enough."""
    seconds = max(0, round((now - instant) / timedelta(seconds=1)))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago ({text_of(instant)})"
    return f"{seconds} s ago ({text_of(instant)})"


def few(names: Iterable[str]) -> str:
    """The first ones, and how many others there are."""
    known = list(names)
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more


def in_order(resources: Iterable[str]) -> list[str]:
    """cpu and memory first, then the others by name."""
    return sorted(resources, key=lambda name: (name not in _FIRST, name))


def amounts(some: Amounts) -> str:
    """`cpu 2, memory 4Gi`; that a pod is one pod need not be said."""
    named = (name for name in in_order(some) if name != PODS and some[name])
    return ", ".join(f"{name} {some[name]}" for name in named) or "nothing"


def logs_of_syncer(side: Side) -> str:
    """Where the syncer of a binding says what keeps it from its work."""
    domain, binding = side.domain, side.binding
    known = binding.spec.cluster_id if binding is not None else side.name
    name = naming.syncer_deployment(known, domain)
    return f"a syncer at work; see: kubectl -n {domain.system_namespace} logs deployment/{name}"


def taint_text(taint: Taint) -> str:
    """As kubectl writes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
