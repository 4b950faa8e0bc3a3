"""Explains a placement: whether it is complete, the first reason if not, and each cluster.

Pure. The conditions of the placement decide the verdict. For each cluster, the scheduler's own
functions determine whether it is picked, and every filter that refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import (
    APPLIED,
    AVAILABLE,
    DIFF_REPORTED,
    OVERRIDDEN,
    ROLLOUT_STARTED,
    SCHEDULED,
    WORK_SYNCHRONIZED,
    Availability,
    PlacementReason,
    WorkCondition,
)
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import ClusterPlacementStatus, Placement, PlacementStatus
from kubeocean.api.fleet.policies import PlacementType
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.strategies import RollingUpdate, RolloutStrategyType
from kubeocean.fleet.rollout.plan import rollout_limits, target_number
from kubeocean.fleet.rollout.readiness import readiness
from kubeocean.fleet.scheduler import explain, view_binding, view_member, view_policy
from kubeocean.fleet.snapshots.plan import latest_policy
from kubeocean.fleet.steps import fresh
from kubeocean.inspect.explain.report import (
    Answer,
    Explanation,
    ExplanationRule,
    Section,
    explain_absence,
)
from kubeocean.inspect.explain.work import CHECKS_REMEDY, REMEDIES
from kubeocean.inspect.fleet.placements import wanted_clusters
from kubeocean.inspect.fleet.progress import condition_text, failed_object
from kubeocean.inspect.format import brief, few
from kubeocean.inspect.snapshot import NotRead, SnapshotPart, failures, known
from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Key, find_condition

__all__ = ["PlacementDetails", "explain_placement"]

_RULES: Final = {
    ROLLOUT_STARTED.name: ExplanationRule.ROLLOUT_HELD,
    OVERRIDDEN.name: ExplanationRule.NOT_OVERRIDDEN,
    WORK_SYNCHRONIZED.name: ExplanationRule.NOT_SYNCHRONIZED,
    APPLIED.name: ExplanationRule.NOT_APPLIED,
    AVAILABLE.name: ExplanationRule.NOT_AVAILABLE,
    DIFF_REPORTED.name: ExplanationRule.NOT_APPLIED,
}
_LONGEST_REASON: Final = 300  # characters; the section `objects` has all of it


@dataclass(frozen=True, slots=True)
class PlacementDetails:
    """A placement and the objects that its scheduling depends on; None if it does not exist."""

    key: Key
    now: datetime
    placement: Placement | NotRead | None
    snapshots: SnapshotPart[tuple[PolicySnapshot, ...]] = ()
    members: SnapshotPart[tuple[MemberCluster, ...]] = ()
    bindings: SnapshotPart[tuple[Binding, ...]] = ()

    @property
    def unread(self) -> tuple[NotRead, ...]:
        return failures(self.placement, self.snapshots, self.members, self.bindings)


def explain_placement(details: PlacementDetails) -> Explanation:
    """Return the explanation of a placement."""
    about = f"placement {details.key}"
    placement = details.placement
    if placement is None or isinstance(placement, NotRead):
        kind = scope_of(details.key).placements.kind
        return explain_absence(about, kind, placement, details.unread)
    return Explanation.of(
        about,
        _answer(placement, details),
        sections=(
            Section("conditions", tuple(map(condition_text, placement.status.conditions))),
            Section("clusters", _clusters(details)),
            Section("objects", _objects(placement)),
        ),
        unread=details.unread,
    )


def _answer(placement: Placement, details: PlacementDetails) -> Answer:
    if placement.deleting:
        held = few(placement.metadata.finalizers or ()) or "nothing"
        since = placement.metadata.deletion_timestamp
        return Answer(
            ExplanationRule.PLACEMENT_DELETED,
            f"it is being deleted since {since}",
            (f"it is held by the finalizers {held}",),
        )
    prefix = scope_of(placement.key).prefix
    status = placement.status
    scheduled = find_condition(status.conditions, f"{prefix}{SCHEDULED.name}")
    if scheduled is None or scheduled.observed_generation != placement.metadata.generation:
        verdict = "the hub has not reported on its present spec yet"
        remedy = "a running `kubeocean fleet hub`"
        return Answer(ExplanationRule.SCHEDULE_PENDING, verdict, remedies=(remedy,))
    if scheduled.reason == PlacementReason.INVALID_SELECTORS:
        return Answer(
            ExplanationRule.SELECTORS_INVALID,
            scheduled.message,
            remedies=("correct spec.resourceSelectors",),
        )
    if scheduled.status not in ("True", "False"):
        verdict = "the scheduler has not decided on its present policy"
        return Answer(ExplanationRule.SCHEDULE_PENDING, verdict, (scheduled.message,))
    for condition in status.conditions:
        rule = _RULES.get(condition.type.removeprefix(prefix))
        if rule is not None and condition.status != "True":
            reasons = tuple(
                line for entry in status.placement_statuses for line in _problems(entry, rule)
            )
            verdict = condition.message or condition.reason
            if rule is ExplanationRule.ROLLOUT_HELD:
                limits = _held(placement, details)
                return Answer(rule, verdict, (*limits.reasons, *reasons), limits.remedies)
            return Answer(rule, verdict, reasons, _object_remedies(status, rule))
    picked = [entry for entry in status.placement_statuses if entry.cluster_name]
    if scheduled.status == "False":
        wanted = wanted_clusters(placement)
        verdict = f"it is on {len(picked)} of {'all' if wanted is None else wanted} wanted clusters"
        remedies = _missing_remedies(_missing(placement, details)) or (
            "clusters that match spec.policy; the section `clusters` shows why others do not",
        )
        return Answer(ExplanationRule.TOO_FEW_CLUSTERS, verdict, (scheduled.message,), remedies)
    if not picked:
        verdict = "it is complete, and its policy picks no cluster"
        return Answer(ExplanationRule.NO_CLUSTER, verdict, (scheduled.message,))
    if not status.selected_resources:
        verdict = "it is complete, and its selectors match no object"
        remedy = "objects that match spec.resourceSelectors, or other names, kinds or labels there"
        return Answer(ExplanationRule.NO_OBJECT, verdict, remedies=(remedy,))
    names = few(entry.cluster_name for entry in picked)
    index = status.observed_resource_index
    verdict = f"it is complete: snapshot {index} is placed on {names}"
    return Answer(ExplanationRule.PLACED, verdict)


def _problems(entry: ClusterPlacementStatus, rule: ExplanationRule) -> Iterator[str]:
    """Yield the first condition of a cluster that is not True, and the first object that failed."""
    bad = next((each for each in entry.conditions if each.status != "True"), None)
    if bad is None:
        return
    cluster = entry.cluster_name or "a missing cluster"
    yield f"{cluster}: {condition_text(bad)}"
    if rule in REMEDIES and (failed := failed_object(entry)):
        yield f"{cluster}: {brief(failed, _LONGEST_REASON)}"


def _object_remedies(status: PlacementStatus, rule: ExplanationRule) -> tuple[str, ...]:
    """Return the remedy for objects that failed, as of their Works; empty if no object failed."""
    failed = [each for entry in status.placement_statuses for each in entry.failed_placements]
    if rule not in REMEDIES or not failed:
        return ()
    is_check = any(
        each.condition.type == WorkCondition.AVAILABLE
        and each.condition.reason == Availability.FAILED
        for each in failed
    )
    unavailable = rule is ExplanationRule.NOT_AVAILABLE
    return (CHECKS_REMEDY if unavailable and is_check else REMEDIES[rule],)


class _Held(NamedTuple):
    """Why the limits of a rolling update hold clusters back, and remedies."""

    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def _held(placement: Placement, details: PlacementDetails) -> _Held:
    """Return which limits of the rolling update hold clusters back, and the clusters that use the
    limits up.
    """
    strategy = placement.spec.strategy
    bindings = known(details.bindings, ())
    held = [each for each in bindings if _is_held(each)]
    if strategy.type == RolloutStrategyType.EXTERNAL or not held:
        return _Held()
    rolling = strategy.rolling_update or RollingUpdate()
    target = target_number(placement, bindings)
    limits = rollout_limits(bindings, target, rolling, details.now)
    missing = _missing(placement, details)
    reasons, remedies = [], list(_missing_remedies(missing))
    path = "spec.strategy.rollingUpdate"
    if any(each.spec.state == BindingState.BOUND for each in held) and limits.spare <= 0:
        late = sorted(
            each.spec.target_cluster
            for each in bindings
            if each.spec.state == BindingState.BOUND
            and not readiness(each, rolling.unavailable_period_seconds, details.now).ready
        )
        absent = [f"{name} (not a member of the fleet)" for name in missing]
        names = few([*absent, *late])
        reasons.append(
            f"maxUnavailable {rolling.max_unavailable} allows"
            f" {limits.max_unavailable} of {counted(target, 'wanted cluster')} to be unavailable,"
            f" and {limits.unavailable} {'is' if limits.unavailable == 1 else 'are'}"
            + (f": {names}" if names else "")
        )
        if late:
            remedies.append(f"objects that become available on {few(late)}")
        remedies.append(f"a greater {path}.maxUnavailable")
    if any(each.spec.state == BindingState.SCHEDULED for each in held) and not limits.most_new:
        reasons.append(
            f"maxSurge {rolling.max_surge} allows"
            f" {counted(target + limits.max_surge, 'cluster')} at a time,"
            f" and {limits.becoming} {'has' if limits.becoming == 1 else 'have'} a release"
        )
        remedies.append(f"a greater {path}.maxSurge")
    return _Held(tuple(reasons), tuple(remedies))


def _is_held(binding: Binding) -> bool:
    """Whether the rolling update holds a binding back; overrides have another reason."""
    generation = binding.metadata.generation
    started = fresh(binding.status.conditions, ROLLOUT_STARTED.name, generation)
    is_false = started is not None and started.status == "False"
    return is_false and not binding.deleting and not binding.spec.names_overrides


def _missing(placement: Placement, details: PlacementDetails) -> list[str]:
    """Return the clusters that a policy names and that are not members; empty if unknown."""
    policy = placement.spec.policy
    if policy.placement_type != PlacementType.PICK_FIXED or isinstance(details.members, NotRead):
        return []
    members = {each.name for each in details.members}
    return [name for name in policy.cluster_names if name not in members]


def _missing_remedies(missing: Sequence[str]) -> tuple[str, ...]:
    if not missing:
        return ()
    name = missing[0] if len(missing) == 1 else "NAME"
    return (
        f"remove {few(missing)} from spec.policy.clusterNames, or join the cluster:"
        f" kubeocean fleet join {name} --kubeconfig FILE",
    )


def _clusters(details: PlacementDetails) -> tuple[str, ...]:
    """Return one line for each member cluster: the scheduler's decision, and every refusal."""
    snapshot = latest_policy(known(details.snapshots, ()))
    if snapshot is None or isinstance(details.members, NotRead):
        return ()
    explanations = explain(
        view_policy(snapshot),
        map(view_member, details.members),
        map(view_binding, known(details.bindings, ())),
        details.now,
    )
    lines = []
    for each in explanations:
        refusals = [
            f"{rejection.plugin}: "
            + ", ".join(dict.fromkeys((*rejection.reasons, *rejection.details)))
            for rejection in each.rejections
        ]
        texts = refusals or ([each.text] if each.text else [])
        lines.append(
            ": ".join([f"{each.cluster} {each.outcome}", *(["; ".join(texts)] if texts else [])])
        )
    return tuple(lines)


def _objects(placement: Placement) -> tuple[str, ...]:
    """Return a line for each object that failed, drifted or differs on a cluster."""
    lines = []
    for entry in placement.status.placement_statuses:
        for failed in entry.failed_placements:
            name = Key(failed.namespace, failed.name)
            lines.append(
                f"{entry.cluster_name}: {failed.kind} {name}: {condition_text(failed.condition)}"
            )
        for deviating, word in (
            (entry.drifted_placements, "was changed in the cluster"),
            (entry.diffed_placements, "differs in the cluster"),
        ):
            lines += [
                f"{entry.cluster_name}: {each.kind} {Key(each.namespace, each.name)} {word}"
                for each in deviating
            ]
    return tuple(lines)
