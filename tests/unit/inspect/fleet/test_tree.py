"""Trees of placements, from snapshots of the hub."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.placements import PatchDetail
from kubeocean.api.fleet.works import (
    DriftDetails,
    ManifestCondition,
    Work,
    WorkloadTemplate,
    WorkResourceIdentifier,
    WorkSpec,
    WorkStatus,
)
from kubeocean.inspect.fleet.tree import PlacementObjects, TreeNode, placement_tree, tree_lines
from kubeocean.inspect.format import plain
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.objects import Condition, Meta
from unit.fleet.placements.builders import (
    APPLIED,
    a_binding,
    a_group,
    a_placement,
    a_policy_snapshot,
    content,
    scheduled,
    steps,
)

WORK_STEPS = ("Applied", "Available")


def manifest(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ns"},
    }


def report(ordinal: int, *conditions: Condition, **details: Any) -> ManifestCondition:
    return ManifestCondition(WorkResourceIdentifier(ordinal), conditions, **details)


def a_work(cluster: str, *reports: ManifestCondition, **status: Any) -> Work:
    labels = {
        names.LABEL_PARENT_PLACEMENT: "app",
        names.LABEL_PARENT_BINDING: f"app-{cluster}-00000000",
    }
    return Work(
        metadata=Meta(
            name="app-work", namespace=f"fleet-member-{cluster}", generation=1, labels=labels
        ),
        spec=WorkSpec(WorkloadTemplate((manifest("c0"), manifest("c1")))),
        status=WorkStatus(
            conditions=status.get("conditions", steps(*WORK_STEPS)), manifest_conditions=reports
        ),
    )


def objects(**parts: Any) -> PlacementObjects:
    placement = a_placement()
    given: dict[str, Any] = {
        "policy_snapshots": (scheduled(a_policy_snapshot(placement), "a", "b"),),
        "resource_snapshots": tuple(a_group(placement, 0, content("x", "y"))),
        "bindings": (a_binding("a", conditions=steps(*APPLIED)),),
        "works": (a_work("a", report(0, *steps(*WORK_STEPS)), report(1, *steps(*WORK_STEPS))),),
    }
    return PlacementObjects(placement, **(given | parts))


def text(tree: TreeNode) -> list[str]:
    return plain(tree_lines(tree)).splitlines()


def test_all_objects_of_a_placement() -> None:
    drift = DriftDetails(observed_drifts=(PatchDetail("/data"),))
    failed = Condition(
        "Applied", "False", "ManifestApplyFailed", "no rights", observed_generation=1
    )
    work = a_work(
        "b",
        report(0, *steps(*WORK_STEPS), drift_details=drift),
        report(1, failed),
        conditions=(failed,),
    )
    bindings = (
        a_binding("b", conditions=steps(*APPLIED[:4], last="False")),
        a_binding("a", conditions=steps(*APPLIED)),
        a_binding("c", state="Scheduled", snapshot=""),
    )
    tree = placement_tree(objects(bindings=bindings, works=(*objects().works, work)))
    assert text(tree) == [
        "ClusterResourcePlacement app (0 objects): ClusterResourcePlacementScheduled Unknown"
        " (NotReported): the hub has not reported on generation 1",
        "├── ClusterSchedulingPolicySnapshot app-0 (2 clusters picked): complete",
        "├── ClusterResourceSnapshot app-0-snapshot (index 0, latest): complete",
        "│   ├── ClusterResourceBinding app-a-00000000 (cluster a, Bound): complete",
        "│   │   └── Work fleet-member-a/app-work (cluster a): complete",
        "│   │       ├── ConfigMap ns/c0: complete",
        "│   │       └── ConfigMap ns/c1: complete",
        "│   └── ClusterResourceBinding app-b-00000000 (cluster b, Bound): Applied False (r)",
        "│       └── Work fleet-member-b/app-work (cluster b): Applied False"
        " (ManifestApplyFailed): no rights",
        "│           ├── ConfigMap ns/c0 (1 field changed in the cluster): complete",
        "│           └── ConfigMap ns/c1: Applied False (ManifestApplyFailed): no rights",
        "└── ClusterResourceBinding app-c-00000000 (cluster c, Scheduled): RolloutStarted Unknown"
        " (NotReported): the hub has not reported on generation 1",
    ]


def test_an_older_snapshot_is_shown_while_a_binding_has_it() -> None:
    placement = a_placement()
    old = a_group(placement, 0, content("x"), latest=False)
    new = a_group(placement, 1, content("y"))
    snapshots = (*old, *new)
    tree = placement_tree(objects(resource_snapshots=snapshots))
    assert [each.name for each in tree.children] == ["app-0", "app-0-snapshot", "app-1-snapshot"]
    assert tree.children[1].details == ["index 0", "replaced by a later one"]
    assert [each.kind for each in tree.children[1].children] == ["ClusterResourceBinding"]
    unbound = placement_tree(objects(resource_snapshots=snapshots, bindings=(), works=()))
    assert [each.name for each in unbound.children] == ["app-0", "app-1-snapshot"]


def test_a_group_of_snapshots_that_lacks_parts_is_incomplete() -> None:
    (master, *_) = a_group(a_placement(), 0, content("x"))
    wanted = {**master.annotations, names.ANNOTATION_RESOURCE_SNAPSHOTS: "2"}
    metadata = msgspec.structs.replace(master.metadata, annotations=wanted)
    broken = msgspec.structs.replace(master, metadata=metadata)
    tree = placement_tree(objects(resource_snapshots=(broken,)))
    assert tree.children[1].state.startswith("incomplete: ")


def test_a_work_without_its_binding_is_shown() -> None:
    tree = placement_tree(objects(bindings=()))
    work = tree.children[-1]
    assert (work.kind, work.details[-1]) == ("Work", "its binding does not exist")


def test_parts_that_were_not_read_are_not_shown_as_absent() -> None:
    refused = NotRead("works", "works is forbidden", forbidden=True)
    tree = placement_tree(objects(works=refused))
    assert tree.children[-1] == TreeNode(
        "Work", "", status="Unknown", state="not read: not allowed to list them"
    )
    silent = NotRead("bindings", "no answer")
    tree = placement_tree(objects(bindings=silent))
    kinds = [(each.kind, each.state) for each in tree.children[2:]]
    assert kinds == [("ClusterResourceBinding", "not read: no answer"), ("Work", "complete")]
    assert "its binding does not exist" not in tree.children[-1].details
    assert objects(bindings=silent, works=refused).unread == (silent, refused)
    for part in ("policy_snapshots", "resource_snapshots"):
        lines = text(placement_tree(objects(**{part: silent})))
        assert sum("not read: no answer" in line for line in lines) == 1


def test_a_manifest_without_a_report() -> None:
    tree = placement_tree(objects(works=(a_work("a", report(0, *steps(*WORK_STEPS))),)))
    (binding,) = tree.children[1].children
    states = [each.state for each in binding.children[0].children]
    assert states[0] == "complete"
    assert states[1].startswith("Applied Unknown (NotReported)")


def test_what_a_member_reports_neither_fills_the_tree_nor_reaches_the_terminal() -> None:
    bad = Condition("Applied", "False", "ManifestApplyFailed", "\x1b[2J" + "x" * 32_000)
    tree = placement_tree(objects(works=(a_work("a", report(0, bad), conditions=(bad,)),)))
    text = plain(tree_lines(tree))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 800
