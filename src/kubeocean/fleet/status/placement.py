"""Status of a placement over all of its clusters.

Conditions are computed in order; none follows the first that is not True on every picked cluster.
Scheduled is an exception: if too few clusters are picked, the conditions of the picked clusters are
still shown.

The earlier conditions are kept while the scheduler has not seen the present spec, and if the
resource selectors are invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kubeocean.api.fleet.conditions import (
    APPLIED,
    AVAILABLE,
    DIFF_REPORTED,
    INVALID_SELECTORS,
    OVERRIDDEN,
    ROLLOUT_STARTED,
    SCHEDULED,
    WORK_SYNCHRONIZED,
    PlacementReason,
    Step,
)
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
)
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.strategies import RolloutStrategyType
from kubeocean.fleet.status.fitting import MOST_BYTES, fair_share, fitted, stored_size
from kubeocean.fleet.steps import Judgement, chain_of, settle, walk
from kubeocean.runtime.objects import Condition, find_condition, set_condition

__all__ = [
    "expected_types",
    "external_index",
    "invalid_status",
    "is_scheduled",
    "pending_status",
    "placement_status",
    "trimmed",
]

_DONE: Final[Mapping[str, str]] = {
    ROLLOUT_STARTED.name: "The rollout has started on {count}",
    OVERRIDDEN.name: "Overrides are applied for {count}",
    WORK_SYNCHRONIZED.name: "Works are up to date for {count}",
    APPLIED.name: "Objects are applied on {count}",
    AVAILABLE.name: "Objects are available on {count}",
    DIFF_REPORTED.name: "Differences are reported by {count}",
}
_NOT_DONE: Final[Mapping[str, str]] = {
    ROLLOUT_STARTED.name: "The rollout has not started on {count}",
    OVERRIDDEN.name: "Overrides could not be applied for {count}",
    WORK_SYNCHRONIZED.name: "Works could not be written for {count}",
    APPLIED.name: "Objects are not applied on {count}",
    AVAILABLE.name: "Objects are not available on {count}",
    DIFF_REPORTED.name: "Differences are not reported by {count}",
}
_NOT_KNOWN: Final = "{step} is not known of {count}"


def expected_types(placement: Placement, status: PlacementStatus) -> tuple[str, ...]:
    """Return the types of the conditions that a complete placement has, in order.

    A placement whose policy picks no cluster has only Scheduled.
    """
    steps = [SCHEDULED]
    if any(entry.cluster_name for entry in status.placement_statuses):
        steps += chain_of(placement.spec.strategy.apply_strategy)
    prefix = scope_of(placement.key).prefix
    return tuple(f"{prefix}{step.name}" for step in steps)


def is_scheduled(placement: Placement, snapshot: PolicySnapshot | None) -> bool:
    """Whether the scheduler has decided on the present spec of the placement."""
    if snapshot is None:
        return False
    condition = find_condition(snapshot.status.conditions, SCHEDULED.name)
    if condition is None or condition.observed_generation != snapshot.metadata.generation:
        return False
    return snapshot.status.observed_crp_generation >= placement.metadata.generation


def invalid_status(placement: Placement, error: str, now: str) -> PlacementStatus:
    """Return the status of a placement with invalid selectors: only Scheduled changes."""
    condition = Condition(
        _type(placement, SCHEDULED),
        "False",
        PlacementReason.INVALID_SELECTORS,
        INVALID_SELECTORS.format(error=error),
        observed_generation=placement.metadata.generation,
    )
    conditions = set_condition(placement.status.conditions, condition, now=now)
    return msgspec.structs.replace(placement.status, conditions=conditions)


def pending_status(
    placement: Placement, index: str, selected: Sequence[ResourceIdentifier], now: str
) -> PlacementStatus:
    """Return a placement's status until the scheduler has decided; other conditions stay."""
    condition = Condition(
        _type(placement, SCHEDULED),
        "Unknown",
        SCHEDULED.placement.unknown,
        "The scheduler has not decided yet",
        observed_generation=placement.metadata.generation,
    )
    return PlacementStatus(
        selected_resources=tuple(selected),
        observed_resource_index=index,
        conditions=set_condition(placement.status.conditions, condition, now=now),
    )


def external_index(placement: Placement, entries: Iterable[ClusterPlacementStatus]) -> str:
    """Return the snapshot index of all picked clusters in a staged rollout; empty if not equal."""
    indexes = {entry.observed_resource_index for entry in entries if entry.cluster_name}
    if not indexes:
        return placement.status.observed_resource_index
    return indexes.pop() if len(indexes) == 1 else ""


def placement_status(
    placement: Placement,
    snapshot: PolicySnapshot,
    entries: Sequence[ClusterPlacementStatus],
    index: str,
    selected: Sequence[ResourceIdentifier],
    now: str,
) -> PlacementStatus:
    """Return the whole status of a placement, without the condition about its copy."""
    generation, prefix = placement.metadata.generation, scope_of(placement.key).prefix
    picked = [entry for entry in entries if entry.cluster_name]
    scheduled = _scheduled(placement, snapshot)
    steps: tuple[Condition, ...] = ()
    if picked:
        chain = chain_of(placement.spec.strategy.apply_strategy)
        external = placement.spec.strategy.type == RolloutStrategyType.EXTERNAL
        steps = walk(
            chain,
            generation,
            lambda step: _judge(step, picked, awaits_run=external and _awaits_run(index, picked)),
            prefix=prefix,
        )
    conditions = settle(placement.status.conditions, (scheduled, *steps), now)
    return PlacementStatus(
        selected_resources=tuple(selected),
        observed_resource_index=index,
        placement_statuses=tuple(entries),
        conditions=conditions,
    )


def _scheduled(placement: Placement, snapshot: PolicySnapshot) -> Condition:
    decided = find_condition(snapshot.status.conditions, SCHEDULED.name)
    fulfilled = decided is not None and decided.status == "True"
    return Condition(
        _type(placement, SCHEDULED),
        "True" if fulfilled else "False",
        SCHEDULED.placement.true if fulfilled else SCHEDULED.placement.false,
        decided.message if decided is not None else "",
        observed_generation=placement.metadata.generation,
    )


def _judge(step: Step, picked: Sequence[ClusterPlacementStatus], *, awaits_run: bool) -> Judgement:
    if step is ROLLOUT_STARTED and awaits_run:
        message = "The clusters have different resource snapshots, or a run has not started on all"
        return Judgement("Unknown", PlacementReason.CONTROLLED_EXTERNALLY, message)
    statuses = [_status(entry, step) for entry in picked]
    unknown = sum(status not in ("True", "False") for status in statuses)
    if unknown:
        message = _NOT_KNOWN.format(step=step.name, count=_count(unknown))
        return Judgement("Unknown", step.placement.unknown, message)
    if failed := statuses.count("False"):
        message = _NOT_DONE[step.name].format(count=_count(failed))
        return Judgement("False", step.placement.false, message)
    count = _count(len(picked))
    if step is OVERRIDDEN and not any(map(_has_overrides, picked)):
        return Judgement("True", PlacementReason.NO_OVERRIDE, f"No override applies to {count}")
    return Judgement("True", step.placement.true, _DONE[step.name].format(count=count))


def _awaits_run(index: str, picked: Iterable[ClusterPlacementStatus]) -> bool:
    """Whether a staged update run has not started on all picked clusters with one snapshot."""
    return not index or any(
        _status(entry, ROLLOUT_STARTED) not in ("True", "False") for entry in picked
    )


def _status(entry: ClusterPlacementStatus, step: Step) -> str:
    condition = find_condition(entry.conditions, step.name)
    return condition.status if condition is not None else ""


def _has_overrides(entry: ClusterPlacementStatus) -> bool:
    return bool(entry.applicable_cluster_resource_overrides or entry.applicable_resource_overrides)


def _count(number: int) -> str:
    return "1 cluster" if number == 1 else f"{number} clusters"


def _type(placement: Placement, step: Step) -> str:
    return f"{scope_of(placement.key).prefix}{step.name}"


def trimmed(status: PlacementStatus) -> PlacementStatus:
    """Return the status, trimmed to the size that etcd accepts.

    A large status loses the messages of True conditions, and then details of the clusters that
    report more than their share.
    """
    if stored_size(status) <= MOST_BYTES:
        return status

    def trim(condition: Condition) -> Condition:
        if condition.status != "True":
            return condition
        return msgspec.structs.replace(condition, message="")

    entries = tuple(
        msgspec.structs.replace(entry, conditions=tuple(map(trim, entry.conditions)))
        for entry in status.placement_statuses
    )
    bare = stored_size(msgspec.structs.replace(status, placement_statuses=()))
    share = fair_share(map(_size_in_list, entries), MOST_BYTES - bare)
    entries = tuple(
        entry if _size_in_list(entry) <= share else fitted(entry, share) for entry in entries
    )
    return msgspec.structs.replace(status, placement_statuses=entries)


def _size_in_list(entry: ClusterPlacementStatus) -> int:
    return stored_size(entry) + 1  # a comma
