"""The objects of one placement as a tree, as `kubeocean fleet tree` shows them. Pure.

A placement has a policy snapshot and resource snapshots. Bindings are children of the resource
snapshot that they release, Works children of their binding, and placed objects children of their
Work. A binding without a release, and a Work without a binding, are children of the placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.kinds import PlacementScope, scope_of
from kubeocean.api.fleet.names import member_of_namespace
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.works import WORKS, ManifestCondition, Work
from kubeocean.fleet.snapshots.plan import Group, groups, latest_group, latest_policy
from kubeocean.fleet.works.views import binding_of_work
from kubeocean.inspect.fleet.progress import (
    binding_problem,
    condition_text,
    manifest_problem,
    placement_problem,
    work_problem,
    work_steps,
)
from kubeocean.inspect.format import Cell, Line, Tone, brief
from kubeocean.inspect.snapshot import NotRead, SnapshotPart, failures, known
from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Condition, Key, Object, Untyped, find_condition

__all__ = ["PlacementObjects", "TreeNode", "object_nodes", "placement_tree", "tree_lines"]

_COMPLETE: Final = "complete"
_NOT_READ: Final = "not read"
_LONGEST_STATE: Final = 500  # characters, for people; JSON and YAML have all of it
_TONES: Final = {"True": Tone.GOOD, "False": Tone.BAD, "Unknown": Tone.WARN}


class TreeNode(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An object in the tree of a placement, with its state and its children.

    The state is `complete`, a condition that is not True, or `not read`. `status` is that of the
    condition; True for a complete object.
    """

    kind: str
    name: str
    namespace: str = ""
    status: str = ""
    state: str = ""
    details: list[str] = msgspec.field(default_factory=list)
    children: list[TreeNode] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlacementObjects:
    """A placement, and all objects that the hub created for it."""

    placement: Placement
    policy_snapshots: SnapshotPart[tuple[PolicySnapshot, ...]] = ()
    resource_snapshots: SnapshotPart[tuple[Untyped, ...]] = ()  # metadata only
    bindings: SnapshotPart[tuple[Binding, ...]] = ()
    works: SnapshotPart[tuple[Work, ...]] = ()

    @property
    def unread(self) -> tuple[NotRead, ...]:
        return failures(self.policy_snapshots, self.resource_snapshots, self.bindings, self.works)


def placement_tree(objects: PlacementObjects) -> TreeNode:
    """Return the tree of a placement."""
    placement = objects.placement
    scope = scope_of(placement.key)
    children = list(_policy(objects, scope))
    bindings = sorted(known(objects.bindings, ()), key=lambda each: each.spec.target_cluster)
    works = known(objects.works, ())
    by_snapshot: dict[str, list[Binding]] = {}
    for binding in bindings:
        by_snapshot.setdefault(binding.spec.resource_snapshot_name, []).append(binding)

    def nodes(released: Iterable[Binding]) -> list[TreeNode]:
        return [_binding(each, objects, scope) for each in released]

    if isinstance(objects.resource_snapshots, NotRead):
        children.append(_unread(scope.resource_snapshots.kind, objects.resource_snapshots))
    latest = latest_group(known(objects.resource_snapshots, ()))
    for group in groups(known(objects.resource_snapshots, ())):
        master = group.master
        is_latest = latest is not None and group.index == latest.index
        released = by_snapshot.pop(master.name, []) if master is not None else []
        if is_latest or released:
            children.append(_snapshot(group, placement, scope, nodes(released), latest=is_latest))
    if isinstance(objects.bindings, NotRead):
        children.append(_unread(scope.bindings.kind, objects.bindings))
    for rest in by_snapshot.values():
        children += nodes(rest)
    if isinstance(objects.works, NotRead):
        children.append(_unread(WORKS.kind, objects.works))
    if not isinstance(objects.bindings, NotRead):
        owners = {binding.key for binding in bindings}
        children += [
            _work(work, "its binding does not exist")
            for work in works
            if binding_of_work(work) not in owners
        ]
    else:
        children += map(_work, works)
    return _node(
        scope.placements.kind,
        placement,
        placement_problem(placement),
        details=[counted(len(placement.status.selected_resources), "object")],
        children=children,
    )


def tree_lines(node: TreeNode) -> Iterator[Line]:
    """Yield the lines of a placement's tree."""
    yield _line(node, "")
    yield from _branches(node.children, "")


def object_nodes(work: Work) -> list[TreeNode]:
    """Return the tree nodes of a Work's objects: one for each manifest, in their order."""
    reports = {each.identifier.ordinal: each for each in work.status.manifest_conditions}
    steps = work_steps(work)
    return [
        _object(manifest, reports.get(ordinal), steps)
        for ordinal, manifest in enumerate(work.spec.workload.manifests)
    ]


# Nodes


def _policy(objects: PlacementObjects, scope: PlacementScope) -> Iterator[TreeNode]:
    kind = scope.policy_snapshots.kind
    if isinstance(objects.policy_snapshots, NotRead):
        yield _unread(kind, objects.policy_snapshots)
        return
    snapshot = latest_policy(objects.policy_snapshots)
    if snapshot is None:
        return
    picked = sum(each.selected for each in snapshot.status.target_clusters)
    scheduled = find_condition(snapshot.status.conditions, "Scheduled")
    if scheduled is None:
        message = "the scheduler has not decided"
        scheduled = Condition("Scheduled", "Unknown", "NotReported", message)
    problem = None if scheduled.status == "True" else scheduled
    yield _node(kind, snapshot, problem, details=[f"{counted(picked, 'cluster')} picked"])


def _snapshot(
    group: Group,
    placement: Placement,
    scope: PlacementScope,
    children: list[TreeNode],
    *,
    latest: bool,
) -> TreeNode:
    details = [f"index {group.index}", "latest" if latest else "replaced by a later one"]
    kind = scope.resource_snapshots.kind
    if group.master is None or not group.is_complete:
        name = group.master.name if group.master is not None else f"{placement.name}-{group.index}"
        state = "incomplete: the hub has not created all of its parts"
        return TreeNode(
            kind, name, placement.namespace, "Unknown", state, details, children=children
        )
    return _node(kind, group.master, None, details=details, children=children)


def _binding(binding: Binding, objects: PlacementObjects, scope: PlacementScope) -> TreeNode:
    children: list[TreeNode] = []
    if not isinstance(objects.works, NotRead):
        children = [
            _work(work)
            for work in sorted(objects.works, key=lambda each: each.name)
            if binding_of_work(work) == binding.key
        ]
    details = [f"cluster {binding.spec.target_cluster}", binding.spec.state]
    problem = binding_problem(binding)
    return _node(scope.bindings.kind, binding, problem, details=details, children=children)


def _work(work: Work, *details: str) -> TreeNode:
    own = [*details]
    if (member := member_of_namespace(work.namespace)) is not None:
        own.insert(0, f"cluster {member}")
    return _node(WORKS.kind, work, work_problem(work), details=own, children=object_nodes(work))


def _object(
    manifest: dict[str, Any], report: ManifestCondition | None, steps: Sequence[str]
) -> TreeNode:
    metadata = manifest.get("metadata") or {}
    details = []
    if report is not None and report.drift_details is not None:
        changed = counted(len(report.drift_details.observed_drifts), "field")
        details.append(f"{changed} changed in the cluster")
    if report is not None and report.diff_details is not None:
        different = counted(len(report.diff_details.observed_diffs), "field")
        details.append(f"{different} different in the cluster")
    problem = manifest_problem(report, steps)
    status, state = _state(problem)
    return TreeNode(
        str(manifest.get("kind", "")),
        str(metadata.get("name", "")),
        str(metadata.get("namespace", "")),
        status,
        state,
        details,
    )


def _node(
    kind: str,
    obj: Object,
    problem: Condition | None,
    *,
    details: list[str],
    children: list[TreeNode] | None = None,
) -> TreeNode:
    status, state = _state(problem)
    if obj.deleting:
        status, state = "Unknown", f"being deleted since {obj.metadata.deletion_timestamp}"
    return TreeNode(
        kind, obj.name, obj.namespace, status, state, details=details, children=children or []
    )


def _unread(kind: str, part: NotRead) -> TreeNode:
    return TreeNode(kind, "", state=f"{_NOT_READ}: {part.refusal}", status="Unknown")


def _state(problem: Condition | None) -> tuple[str, str]:
    if problem is None:
        return "True", _COMPLETE
    return problem.status, condition_text(problem)


# Lines


def _branches(children: Sequence[TreeNode], indent: str) -> Iterator[Line]:
    for position, child in enumerate(children):
        is_last = position == len(children) - 1
        yield _line(child, f"{indent}{'└── ' if is_last else '├── '}")
        yield from _branches(child.children, f"{indent}{'    ' if is_last else '│   '}")


def _line(node: TreeNode, indent: str) -> Line:
    title = f" {Key(node.namespace, node.name)}" if node.name else ""
    about = f" ({', '.join(node.details)})" if node.details else ""
    return (
        Cell(indent, Tone.DIM),
        Cell(f"{node.kind}{title}{about}: "),
        Cell(brief(node.state, _LONGEST_STATE), _TONES.get(node.status, Tone.PLAIN)),
    )
