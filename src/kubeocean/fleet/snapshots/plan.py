"""Plans for snapshots: which one is the latest, which are created, relabelled and pruned.

A placement keeps at most `revisionHistoryLimit` policy snapshots and as many groups of resource
snapshots. Old ones are pruned before a new one is created. Indexes grow by one and are not used
twice, also if an earlier content is selected again.

A group of resource snapshots is a master and its sub-snapshots. The master is created first and
has the number of snapshots in an annotation; until all of them exist the group cannot be used. Only
masters have the label `is-latest-snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.hashes import hash_bytes, policy_hash
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.fleet.health import stored_instant
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Json, ObjectT, Untyped

__all__ = [
    "CompleteGroup",
    "CreateGroup",
    "Delays",
    "Group",
    "PolicyPlan",
    "ResourcePlan",
    "ReuseGroup",
    "WaitForChanges",
    "groups",
    "index_in_name",
    "latest_group",
    "latest_policy",
    "plan_policy",
    "plan_resources",
    "policy_annotations",
    "usable_group",
]


# Policy snapshots


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Writes for the policy snapshots of a placement, in this order."""

    prune: tuple[PolicySnapshot, ...] = ()
    demote: tuple[PolicySnapshot, ...] = ()  # snapshots that are no longer the latest
    reuse: PolicySnapshot | None = None
    patch: Json | None = None  # metadata of the reused snapshot
    create: int | None = None  # index of the new snapshot


def latest_policy(snapshots: Iterable[PolicySnapshot]) -> PolicySnapshot | None:
    """Return the latest policy snapshot: by its label, else the one with the highest index."""
    return max(
        snapshots,
        key=lambda snapshot: (_is_latest(snapshot.labels), _index(snapshot.labels, _POLICY)),
        default=None,
    )


def plan_policy(
    placement: Placement, snapshots: Sequence[PolicySnapshot], bindings: Iterable[Binding] = ()
) -> PolicyPlan:
    """Return the writes after which the latest policy snapshot has the present policy.

    The number of clusters is no part of a policy: it is an annotation, so that scaling keeps the
    decisions of the scheduler.
    """
    ours = [snapshot for snapshot in snapshots if _is_owned(snapshot, placement)]
    latest = latest_policy(ours)
    if latest is not None and _same_policy(latest, placement):
        return PolicyPlan(
            demote=_labelled_latest(ours, latest),
            reuse=latest,
            patch=_policy_patch(latest, placement),
        )
    used = (
        *(_index(snapshot.labels, _POLICY) for snapshot in snapshots),
        *(
            index_in_name(placement.name, binding.spec.scheduling_policy_snapshot_name)
            for binding in bindings
        ),
    )
    oldest_first = sorted(ours, key=lambda snapshot: _index(snapshot.labels, _POLICY))
    kept = placement.spec.revision_history_limit - 1
    pruned = oldest_first[: max(len(oldest_first) - kept, 0)]
    return PolicyPlan(
        prune=tuple(pruned),
        demote=_labelled_latest([each for each in ours if each not in pruned], None),
        create=1 + max(used, default=-1),
    )


def _same_policy(snapshot: PolicySnapshot, placement: Placement) -> bool:
    policy = document(placement.spec.policy)
    if snapshot.spec.policy_hash == hash_bytes(policy_hash(policy)):
        return True
    policy.pop("numberOfClusters", None)
    return document(snapshot.spec.policy) == policy


def policy_annotations(placement: Placement) -> dict[str, str]:
    """Return the annotations of a placement's latest policy snapshot."""
    annotations = {names.ANNOTATION_PLACEMENT_GENERATION: str(placement.metadata.generation)}
    number = placement.spec.policy.number_of_clusters
    if number is not None:
        annotations[names.ANNOTATION_NUMBER_OF_CLUSTERS] = str(number)
    return annotations


def _policy_patch(snapshot: PolicySnapshot, placement: Placement) -> Json | None:
    metadata: Json = {}
    annotations = policy_annotations(placement)
    if any(snapshot.annotations.get(name) != value for name, value in annotations.items()):
        metadata["annotations"] = annotations
    if not _is_latest(snapshot.labels):
        metadata["labels"] = {names.LABEL_LATEST_SNAPSHOT: names.TRUE}
    return metadata or None


# Groups of resource snapshots


@dataclass(frozen=True, slots=True)
class Group:
    """The resource snapshots of a placement that have one index: a master and sub-snapshots."""

    index: int
    master: Untyped | None
    subs: tuple[Untyped, ...] = ()  # by sub-index

    @property
    def members(self) -> tuple[Untyped, ...]:
        return (self.master, *self.subs) if self.master is not None else self.subs

    @property
    def is_complete(self) -> bool:
        if self.master is None:
            return False
        wanted = names.parse_index(self.master.annotations, names.ANNOTATION_RESOURCE_SNAPSHOTS)
        return wanted == 1 + len(self.subs)

    @property
    def content_hash(self) -> str:
        return "" if self.master is None else self.master.annotations.get(_HASH, "")


@dataclass(frozen=True, slots=True)
class Delays:
    """How long changes of selected objects are collected before resource snapshots are created."""

    collection: timedelta = timedelta()
    interval: timedelta = timedelta()  # between two groups of snapshots

    @property
    def none(self) -> bool:
        return self.collection <= timedelta() and self.interval <= timedelta()


@dataclass(frozen=True, slots=True)
class ReuseGroup:
    """Plan: the latest group has the selected content; `patch` is for its master's metadata."""

    group: Group
    demote: tuple[Untyped, ...] = ()
    patch: Json | None = None


@dataclass(frozen=True, slots=True)
class CompleteGroup:
    """Plan: create the missing sub-snapshots of the latest group, whose content is up to date."""

    group: Group
    missing: tuple[int, ...]  # sub-indexes


@dataclass(frozen=True, slots=True)
class WaitForChanges:
    """Plan: further changes are collected before a new group of snapshots is created."""

    group: Group
    seconds: float
    patch: Json | None = None  # metadata of the master: when the change was first detected


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Plan: a new group of snapshots is created, after pruning and relabelling others."""

    index: int
    prune: tuple[Untyped, ...] = ()
    demote: tuple[Untyped, ...] = ()


ResourcePlan = ReuseGroup | CompleteGroup | WaitForChanges | CreateGroup


def groups(snapshots: Iterable[Untyped]) -> list[Group]:
    """Return the groups of a placement's resource snapshots, sorted by index."""
    by_index: dict[int, list[Untyped]] = {}
    for snapshot in snapshots:
        by_index.setdefault(_index(snapshot.labels, _RESOURCE), []).append(snapshot)
    return [_group(index, by_index[index]) for index in sorted(by_index)]


def _group(index: int, snapshots: Iterable[Untyped]) -> Group:
    master: Untyped | None = None
    subs: list[tuple[int, Untyped]] = []
    for snapshot in snapshots:
        sub_index = names.parse_index(snapshot.annotations, names.ANNOTATION_SUB_INDEX)
        if sub_index is None:
            master = snapshot
        else:
            subs.append((sub_index, snapshot))
    subs.sort(key=lambda pair: pair[0])
    return Group(index, master, tuple(snapshot for _, snapshot in subs))


def latest_group(snapshots: Iterable[Untyped]) -> Group | None:
    """Return the latest group of snapshots: by its master's label, else the highest index."""
    return max(
        groups(snapshots),
        key=lambda group: (
            group.master is not None and _is_latest(group.master.labels),
            group.index,
        ),
        default=None,
    )


def usable_group(snapshots: Iterable[Untyped]) -> Group | None:
    """Return the latest group of snapshots if all of them exist; else None."""
    latest = latest_group(snapshots)
    return latest if latest is not None and latest.is_complete else None


def plan_resources(
    placement: Placement,
    snapshots: Sequence[Untyped],
    content_hash: str,
    parts: int,
    bindings: Iterable[Binding] = (),
    *,
    delays: Delays,
    now: datetime,
) -> ResourcePlan:
    """Return how the latest group gets the selected content, which takes `parts` snapshots."""
    ours = groups(each for each in snapshots if _is_owned(each, placement))
    latest = latest_group(each for each in snapshots if _is_owned(each, placement))
    if latest is not None and latest.master is not None and latest.content_hash == content_hash:
        if latest.is_complete:
            return _reuse(latest, ours)
        present = {
            names.parse_index(sub.annotations, names.ANNOTATION_SUB_INDEX) for sub in latest.subs
        }
        missing = tuple(each for each in range(parts - 1) if each not in present)
        if missing and len(latest.subs) + len(missing) == parts - 1:
            return CompleteGroup(latest, missing)
    if latest is not None and latest.is_complete and not delays.none:
        wait = _wait(latest, delays, now)
        if wait is not None:
            return wait
    # A group that was never completed cannot be used
    useless = [group for group in ours if group == latest and not group.is_complete]
    useful = [group for group in ours if group not in useless]
    kept = placement.spec.revision_history_limit - 1
    pruned = [*useless, *useful[: max(len(useful) - kept, 0)]]
    remaining = [group for group in ours if group not in pruned]
    return CreateGroup(
        1 + max(_used_indexes(placement, snapshots, bindings), default=-1),
        prune=tuple(snapshot for group in pruned for snapshot in group.members),
        demote=_labelled_latest([each.master for each in remaining if each.master], None),
    )


def _reuse(latest: Group, ours: Iterable[Group]) -> ReuseGroup:
    assert latest.master is not None
    metadata: Json = {}
    if not _is_latest(latest.master.labels):
        metadata["labels"] = {names.LABEL_LATEST_SNAPSHOT: names.TRUE}
    if _DETECTED in latest.master.annotations:
        metadata["annotations"] = {_DETECTED: None}
    masters = [group.master for group in ours if group.master is not None]
    return ReuseGroup(latest, _labelled_latest(masters, latest.master), metadata or None)


def _wait(latest: Group, delays: Delays, now: datetime) -> WaitForChanges | None:
    """Return how long to wait before a new group is created; None if the delay has passed."""
    assert latest.master is not None
    detected = stored_instant(latest.master.annotations.get(_DETECTED))
    created = stored_instant(latest.master.metadata.creation_timestamp)
    due = max(
        (detected or now) + delays.collection,
        (created or now) + delays.interval,
    )
    if due <= now:
        return None
    patch: Json | None = None
    if detected is None:
        patch = {"annotations": {_DETECTED: text_of(now)}}
    return WaitForChanges(latest, (due - now).total_seconds(), patch)


def _used_indexes(
    placement: Placement, snapshots: Iterable[Untyped], bindings: Iterable[Binding]
) -> list[int]:
    """Return the indexes of all snapshots, also pruned ones that bindings or statuses name."""
    observed = [placement.status.observed_resource_index] + [
        entry.observed_resource_index for entry in placement.status.placement_statuses
    ]
    return [
        *(_index(snapshot.labels, _RESOURCE) for snapshot in snapshots),
        *(
            index_in_name(placement.name, binding.spec.resource_snapshot_name)
            for binding in bindings
        ),
        *(index for text in observed if (index := names.parse_index({"": text}, "")) is not None),
    ]


def index_in_name(placement: str, snapshot: str) -> int:
    """Return the index in the name of a placement's snapshot; -1 if the name has no index."""
    rest = snapshot.removeprefix(f"{placement}-")
    if rest == snapshot:
        return -1
    index = names.parse_index({"": rest.removesuffix("-snapshot")}, "")
    return -1 if index is None else index


_POLICY = names.LABEL_POLICY_INDEX
_RESOURCE = names.LABEL_RESOURCE_INDEX
_HASH = names.ANNOTATION_RESOURCE_HASH
_DETECTED = names.ANNOTATION_NEXT_SNAPSHOT_DETECTED


def _is_latest(labels: Mapping[str, str]) -> bool:
    return labels.get(names.LABEL_LATEST_SNAPSHOT) == names.TRUE


def _index(labels: Mapping[str, str], label: str) -> int:
    index = names.parse_index(labels, label)
    return -1 if index is None else index


def _is_owned(snapshot: PolicySnapshot | Untyped, placement: Placement) -> bool:
    """Whether a snapshot belongs to this very placement, not to an earlier one of its name."""
    owners = snapshot.metadata.owner_references or ()
    return any(owner.uid == placement.uid for owner in owners)


def _labelled_latest(snapshots: Iterable[ObjectT], latest: ObjectT | None) -> tuple[ObjectT, ...]:
    """Return the snapshots other than `latest` that have the label `is-latest-snapshot`."""
    return tuple(
        snapshot for snapshot in snapshots if snapshot is not latest and _is_latest(snapshot.labels)
    )
