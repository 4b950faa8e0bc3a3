"""Members of a fleet, as `kubeocean fleet clusters` shows them. Pure.

Health is computed from stored times, as the hub computes it, so that a member whose hub has stopped
is not shown as healthy.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import MemberCondition
from kubeocean.api.fleet.names import PROPERTY_KUBERNETES_VERSION, PROPERTY_NODE_COUNT
from kubeocean.api.fleet.schema import Quantities
from kubeocean.errors import ConfigError
from kubeocean.fleet.health import (
    control_plane_health,
    member_agent,
    stored_instant,
    unhealthy_threshold,
)
from kubeocean.inspect.format import Cell, Line, Tone, ago, amount, brief, table
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.quantity import Quantity

__all__ = ["MemberClusterView", "cluster_lines", "cluster_view", "cluster_views"]

_HEAD: Final = (
    "NAME", "STATE", "HEALTHY", "SEEN", "VERSION", "NODES", "CPU FREE", "MEMORY FREE", "TAINTS"
)  # fmt: skip
_SHOWN_OTHERWISE: Final = (MemberCondition.JOINED, MemberCondition.HEALTHY)
# Characters of a text that a member reports, in a table for people; JSON and YAML have all of it
_LONGEST_VALUE: Final = 40
_LONGEST_PROBLEM: Final = 500
_TONES: Final = {"True": Tone.GOOD, "False": Tone.BAD, "Unknown": Tone.WARN}


class MemberClusterView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A member cluster of a fleet; amounts are texts of Kubernetes quantities."""

    name: str
    state: str
    healthy: str
    health_reason: str
    health_message: str = ""
    last_heartbeat: str | None = None
    joined_since: str | None = None
    version: str = ""
    nodes: str = ""
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    available: dict[str, str] = msgspec.field(default_factory=dict)
    taints: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


def cluster_views(members: Iterable[MemberCluster], now: datetime) -> list[MemberClusterView]:
    """Return the views of all members of a fleet, by name."""
    views = (cluster_view(member, now) for member in members)
    return sorted(views, key=lambda view: view.name)


def cluster_view(member: MemberCluster, now: datetime) -> MemberClusterView:
    """Return the view of one member of a fleet."""
    status = member.status
    threshold = unhealthy_threshold(None, member.spec.heartbeat_period_seconds)
    health = control_plane_health(status.agent_status, threshold, now)
    agent = member_agent(status.agent_status)
    joined = find_condition(status.conditions, MemberCondition.JOINED)
    taints = [f"{each.key}={each.value}:{each.effect}" for each in member.spec.taints]
    return MemberClusterView(
        name=member.name,
        state=_state(member),
        healthy=health.status,
        health_reason=health.reason,
        health_message=health.message,
        last_heartbeat=agent.last_received_heartbeat if agent is not None else None,
        joined_since=joined.last_transition_time if joined and joined.status == "True" else None,
        version=_property(member, PROPERTY_KUBERNETES_VERSION),
        nodes=_property(member, PROPERTY_NODE_COUNT),
        allocatable=_texts(status.resource_usage.allocatable),
        available=_texts(status.resource_usage.available),
        taints=taints,
        labels=dict(member.labels),
        properties={name: each.value for name, each in sorted(status.properties.items())},
        problems=[
            each.message
            for each in status.conditions
            if each.status == "False" and each.message and each.type not in _SHOWN_OTHERWISE
        ],
    )


def cluster_lines(views: Iterable[MemberClusterView], now: datetime) -> list[Line]:
    """Return a table of members, and a line for each of their problems."""
    views = list(views)
    if not views:
        return [(Cell("The fleet has no members."),)]
    lines = table(_HEAD, [_row(view, now) for view in views])
    for view in views:
        lines += [
            (Cell(f"{view.name}: {brief(problem, _LONGEST_PROBLEM)}", Tone.BAD),)
            for problem in dict.fromkeys(view.problems)
        ]
    return lines


def _row(view: MemberClusterView, now: datetime) -> list[Cell]:
    seen = ago(stored_instant(view.last_heartbeat), now)
    return [
        Cell(view.name),
        Cell(view.state, Tone.GOOD if view.state == "Joined" else Tone.WARN),
        Cell(view.healthy, _TONES.get(view.healthy, Tone.PLAIN)),
        Cell(f"{seen} ago" if seen else "-"),
        Cell(brief(view.version, _LONGEST_VALUE) or "-"),
        Cell(brief(view.nodes, _LONGEST_VALUE) or "-"),
        Cell(_available("cpu", view)),
        Cell(_available("memory", view)),
        Cell(", ".join(view.taints) or "-"),
    ]


def _state(member: MemberCluster) -> str:
    if member.deleting:
        return "Leaving"
    joined = find_condition(member.status.conditions, MemberCondition.JOINED)
    ready = find_condition(member.status.conditions, MemberCondition.READY_TO_JOIN)
    match joined.status if joined is not None else "":
        case "True":
            return "Joined"
        case "False":
            return "Left"
    return "NotReady" if ready is not None and ready.status == "False" else "Joining"


def _property(member: MemberCluster, name: str) -> str:
    reported = member.status.properties.get(name)
    return reported.value if reported is not None else ""


def _texts(quantities: Quantities) -> dict[str, str]:
    return {name: str(value) for name, value in quantities.items()}


def _available(resource: str, view: MemberClusterView) -> str:
    offered = _quantity(view.allocatable.get(resource))
    free = _quantity(view.available.get(resource))
    if offered is None:
        return "-"
    whole = amount(resource, offered)
    return whole if free is None else f"{amount(resource, free)} of {whole}"


def _quantity(text: str | None) -> Quantity | None:
    try:
        return None if text is None else Quantity.parse(text)
    except ConfigError:
        return None
