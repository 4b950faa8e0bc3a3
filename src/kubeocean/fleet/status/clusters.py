"""Entries of a placement's status: its state on each picked cluster, and missing clusters.

All conditions have the generation of the placement. A condition of a binding that is not about the
binding's present generation counts as Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.conditions import (
    APPLIED,
    AVAILABLE,
    DIFF_REPORTED,
    ROLLOUT_STARTED,
    SCHEDULED,
    Step,
)
from kubeocean.api.fleet.placements import ClusterPlacementStatus, Placement
from kubeocean.api.fleet.policies import PlacementType
from kubeocean.api.fleet.snapshots import ClusterDecision, PolicySnapshot
from kubeocean.api.fleet.strategies import RolloutStrategyType
from kubeocean.fleet.steps import Judgement, chain_of, fresh, settle, walk
from kubeocean.runtime.objects import Condition, find_condition

__all__ = ["cluster_entries", "has_finished"]

_UNKNOWN: Final[Mapping[str, str]] = {
    ROLLOUT_STARTED.name: "The rollout to the cluster has not been observed yet",
}
_HELD: Final = "The rollout to the cluster has not started yet"


def cluster_entries(
    placement: Placement,
    snapshot: PolicySnapshot,
    bindings: Iterable[Binding],
    *,
    latest: tuple[str, str],
    index_of: Callable[[str], str],
    now: str,
) -> tuple[ClusterPlacementStatus, ...]:
    """Return the status entries of picked clusters, and then one per missing cluster.

    :param latest: name and index of the latest resource snapshot of a rolling update.
    :param index_of: returns the index of a resource snapshot by its name; empty if it is pruned.
    """
    current = {
        binding.spec.target_cluster: binding
        for binding in bindings
        if not binding.deleting
        and binding.spec.state != BindingState.UNSCHEDULED
        and binding.spec.scheduling_policy_snapshot_name == snapshot.name
    }
    old = {
        entry.cluster_name: entry.conditions
        for entry in placement.status.placement_statuses
        if entry.cluster_name
    }
    decisions = snapshot.status.target_clusters
    external = placement.spec.strategy.type == RolloutStrategyType.EXTERNAL
    picked = []
    for decision in decisions:
        if decision.selected:
            binding = current.get(decision.cluster_name)
            before = old.get(decision.cluster_name, ())
            if external:
                entry = _external_entry(placement, decision, binding, before, index_of, now)
            else:
                entry = _rolling_entry(placement, decision, binding, before, latest, now)
            picked.append(entry)
    return (*picked, *_lacking(placement, decisions, len(picked), now))


def has_finished(binding: Binding, last_step: str) -> bool:
    """Whether all conditions of a binding are True for its present generation, up to `last_step`.

    A binding that waits for the next release has a RolloutStarted that is False.
    """
    conditions, generation = binding.status.conditions, binding.metadata.generation
    if not conditions or binding.deleting or conditions[-1].type != last_step:
        return False
    return all(
        each.status == "True" and each.observed_generation == generation for each in conditions
    )


def _rolling_entry(
    placement: Placement,
    decision: ClusterDecision,
    binding: Binding | None,
    old: Sequence[Condition],
    latest: tuple[str, str],
    now: str,
) -> ClusterPlacementStatus:
    name, index = latest
    if binding is None:
        return _entry(placement, decision, None, "", old, _unknown, now)
    if binding.spec.resource_snapshot_name == name:
        return _entry(placement, decision, binding, index, old, _copied(binding), now)
    return _entry(placement, decision, binding, index, old, lambda step: _held(binding, step), now)


def _external_entry(
    placement: Placement,
    decision: ClusterDecision,
    binding: Binding | None,
    old: Sequence[Condition],
    index_of: Callable[[str], str],
    now: str,
) -> ClusterPlacementStatus:
    if binding is None:
        return _entry(placement, decision, None, "", old, _unknown, now)
    index = index_of(binding.spec.resource_snapshot_name)
    return _entry(placement, decision, binding, index, old, _copied(binding), now)


def _unknown(step: Step) -> Judgement:
    message = _UNKNOWN.get(step.name, f"{step.name} has not been observed yet")
    return Judgement("Unknown", step.cluster.unknown, message)


def _held(binding: Binding, step: Step) -> Judgement:
    """Return the state of a step for a binding whose release is older than the latest."""
    generation = binding.metadata.generation
    started = fresh(binding.status.conditions, ROLLOUT_STARTED.name, generation)
    if step is ROLLOUT_STARTED and started is not None and started.status == "False":
        return Judgement("False", step.cluster.false, started.message or _HELD)
    return _unknown(step)


def _copied(binding: Binding) -> Callable[[Step], Judgement]:
    def judge(step: Step) -> Judgement:
        condition = fresh(binding.status.conditions, step.name, binding.metadata.generation)
        if condition is None or condition.status == "Unknown":
            return _unknown(step)
        return Judgement(condition.status, condition.reason, condition.message)

    return judge


def _entry(
    placement: Placement,
    decision: ClusterDecision,
    binding: Binding | None,
    index: str,
    old: Sequence[Condition],
    judge: Callable[[Step], Judgement],
    now: str,
) -> ClusterPlacementStatus:
    def judge_all(step: Step) -> Judgement:
        if step is SCHEDULED:
            return Judgement("True", SCHEDULED.cluster.true, decision.reason)
        return judge(step)

    chain = (SCHEDULED, *chain_of(placement.spec.strategy.apply_strategy))
    conditions = settle(old, walk(chain, placement.metadata.generation, judge_all), now)
    statuses = {condition.type: condition.status for condition in conditions}
    entry = ClusterPlacementStatus(
        cluster_name=decision.cluster_name, observed_resource_index=index, conditions=conditions
    )
    if binding is None or statuses.get(ROLLOUT_STARTED.name) != "True":
        return entry
    return _with_details(entry, binding, statuses)


def _with_details(
    entry: ClusterPlacementStatus, binding: Binding, statuses: Mapping[str, str]
) -> ClusterPlacementStatus:
    """Return the entry with the release's overrides, and failed, drifted and differing objects."""
    spec, status = binding.spec, binding.status
    has_failed = "False" in (statuses.get(APPLIED.name), statuses.get(AVAILABLE.name))
    is_compared = statuses.get(DIFF_REPORTED.name) == "True"
    return ClusterPlacementStatus(
        cluster_name=entry.cluster_name,
        observed_resource_index=entry.observed_resource_index,
        applicable_cluster_resource_overrides=tuple(
            sorted(spec.cluster_resource_override_snapshots)
        ),
        applicable_resource_overrides=tuple(
            sorted(spec.resource_override_snapshots, key=lambda each: (each.namespace, each.name))
        ),
        failed_placements=status.failed_placements if has_failed else (),
        drifted_placements=status.drifted_placements if APPLIED.name in statuses else (),
        diffed_placements=status.diffed_placements if has_failed or is_compared else (),
        conditions=entry.conditions,
    )


def _lacking(
    placement: Placement, decisions: Sequence[ClusterDecision], picked: int, now: str
) -> tuple[ClusterPlacementStatus, ...]:
    """Return a status entry, without a cluster's name, for each cluster that the placement lacks.

    Each entry has the reason of one rejected cluster, so that there are at most as many entries
    as rejected clusters.
    """
    policy = placement.spec.policy
    match policy.placement_type:
        case PlacementType.PICK_N:
            wanted = policy.number_of_clusters or 0
        case PlacementType.PICK_FIXED:
            wanted = len(policy.cluster_names)
        case _:
            return ()
    rejected = [decision for decision in decisions if not decision.selected]
    old = [
        entry.conditions for entry in placement.status.placement_statuses if not entry.cluster_name
    ]
    entries = []
    for number, decision in enumerate(rejected[: max(wanted - picked, 0)]):
        condition = Condition(
            SCHEDULED.name,
            "False",
            SCHEDULED.cluster.false,
            decision.reason,
            observed_generation=placement.metadata.generation,
        )
        before = old[number] if number < len(old) else ()
        earlier = find_condition(before, SCHEDULED.name)
        entries.append(
            ClusterPlacementStatus(
                conditions=settle((earlier,) if earlier else (), (condition,), now)
            )
        )
    return tuple(entries)
