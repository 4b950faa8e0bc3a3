"""Properties about leasing: how much a member lends to the hub's cluster, and until when. Pure.

    kubeocean.io/resources/RESOURCE/leased       sum over virtual nodes inside their time window
    kubeocean.io/resources/RESOURCE/free         leased less the requests of pods on these nodes
    kubeocean.io/leasing/nodes                   virtual nodes inside their time window
    kubeocean.io/leasing/window-open             1 if a policy lends now, else 0
    kubeocean.io/leasing/seconds-until-close     until the first open window closes, 0 if none is
                                                 open, 31536000 (a year) if none ever closes

All are quantities, so that selectors and sorters of placements work on them. A member that lends by
no policy has none of them. Of several open windows the one that closes first counts: after that
window, less is lent than now.

Each change of a property makes the scheduler evaluate placements again, so the seconds do not count
down with each heartbeat: they are rounded down, to hours, near the end to minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from kubeocean.api.fleet.names import EXTENSION_PROPERTY_PREFIX
from kubeocean.fleet.properties.collection import is_segment
from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.windows import Calendar, next_edge, within
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "NEVER_CLOSES_S",
    "LeasedNode",
    "LeasingFacts",
    "LeasingSource",
    "leasing_properties",
]

NEVER_CLOSES_S: Final = 31_536_000  # windows repeat weekly, so every other value is smaller
# Steps of the rounding, as pairs: from the first number of seconds on, multiples of the second
_STEPS: Final = ((7_200, 3_600), (600, 300), (0, 60))
_MOST: Final = 50
_RESOURCES: Final = f"{EXTENSION_PROPERTY_PREFIX}resources/"
_LEASING: Final = f"{EXTENSION_PROPERTY_PREFIX}leasing/"


@dataclass(frozen=True, slots=True)
class LeasedNode:
    """A virtual node inside its time window: its resources, and the requests of its pods."""

    offered: Amounts
    requested: Amounts


@dataclass(frozen=True, slots=True)
class LeasingFacts:
    """The virtual nodes of a member, and the calendars of the policies that lend, at `now`."""

    nodes: Sequence[LeasedNode]
    calendars: Sequence[Calendar]
    now: datetime


class LeasingSource(Protocol):
    """Source of facts about leasing, such as the caches of a syncer."""

    def leasing(self, now: datetime) -> LeasingFacts | None:
        """Return the facts about leasing at `now`; None while the caches are not filled."""


def leasing_properties(facts: LeasingFacts | None) -> Mapping[str, str]:
    """Return the properties about leasing; empty if `facts` is None or no policy lends."""
    if facts is None or not facts.calendars:
        return {}
    closes = _seconds_until_close(facts.calendars, facts.now)
    properties = {
        f"{_LEASING}nodes": str(len(facts.nodes)),
        f"{_LEASING}window-open": "0" if closes is None else "1",
        f"{_LEASING}seconds-until-close": str(closes or 0),
    }
    leased = _sum(node.offered for node in facts.nodes)
    requested = _sum(node.requested for node in facts.nodes)
    for name in sorted(filter(_is_readable, leased))[:_MOST]:
        free = max(ZERO, leased[name] - requested.get(name, ZERO))
        properties[f"{_RESOURCES}{name}/leased"] = str(leased[name])
        properties[f"{_RESOURCES}{name}/free"] = str(free)
    return properties


def _seconds_until_close(calendars: Sequence[Calendar], now: datetime) -> int | None:
    """Return the seconds until the first open window closes, rounded; None if all are closed."""
    edges = [next_edge(each, now) for each in calendars if within(each, now)]
    if not edges:
        return None
    known = [edge for edge in edges if edge is not None]
    if not known:
        return NEVER_CLOSES_S
    seconds = int((min(known) - now).total_seconds())
    step = next(step for least, step in _STEPS if seconds >= least)
    return max(seconds - seconds % step, 1)  # a window that is open has not closed yet


def _is_readable(resource: str) -> bool:
    """Whether the name of a resource can be part of a property's name."""
    return all(map(is_segment, resource.split("/")))


def _sum(amounts: Iterable[Amounts]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total[name] + amount if name in total else amount
    return total
