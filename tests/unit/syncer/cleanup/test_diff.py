"""Differences between the two clusters of a binding."""

from __future__ import annotations

import msgspec

from kubeocean.api import naming
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS
from kubeocean.runtime.objects import Key, Meta, OwnerReference, Untyped
from kubeocean.syncer.cleanup.diff import (
    POD,
    ComparedPod,
    Counterpart,
    Difference,
    DifferenceKind,
    ObjectSet,
    compare,
    counterpart,
    untyped,
)

IDS = Ids("b", "c1", "u1")
OURS = ownership_labels(IDS, DEFAULT)
VNODES = frozenset({"vnode-c1-n"})
MARKS = (DEFAULT.virtual_pod_namespace, DEFAULT.virtual_pod_name, DEFAULT.virtual_pod_uid)


def physical_pod(name: str, virtual_uid: str = "v", labels: dict[str, str] = OURS) -> Untyped:
    annotations = {
        DEFAULT.virtual_pod_namespace: "team",
        DEFAULT.virtual_pod_name: "web",
        DEFAULT.virtual_pod_uid: virtual_uid,
    }
    meta = Meta(name, "mount", f"uid-{name}", labels=labels, annotations=annotations)
    return Untyped(metadata=meta)


def counterpart_of(obj: Untyped, kind: str = POD) -> Counterpart | None:
    pods = untyped(PODS)
    return counterpart(
        obj, kind=kind, resource=pods, original=pods, ids=IDS, domain=DEFAULT, vnodes=VNODES
    )


def differences(*pods: Untyped, virtual: dict[Key, ComparedPod] | None = None) -> list[Difference]:
    vpods = virtual or {}
    objects = [each for pod in pods if (each := counterpart_of(pod)) is not None]

    def wanted(each: Counterpart) -> bool:
        pod = vpods.get(each.virtual)
        return pod is not None and pod.uid == each.virtual_uid

    return list(compare([ObjectSet(objects, wanted)], vpods))


WEB = Key("team", "web")


def test_clusters_that_agree_have_no_difference() -> None:
    assert differences(physical_pod("p"), virtual={WEB: ComparedPod("v", "uid-p", runs=True)}) == []


def test_a_pod_whose_virtual_pod_is_gone_or_another_one_is_an_orphan() -> None:
    for virtual in ({}, {WEB: ComparedPod("w", "", runs=True)}):
        (finding,) = differences(physical_pod("p"), virtual=virtual)
        assert finding.problem is DifferenceKind.ORPHAN
        assert finding.removable
        assert finding.message == (
            "Pod mount/p is left over: the virtual pod team/web (UID v) does not exist"
        )
        assert finding.identity == ("Orphan", "uid-p")


def test_an_object_without_proof_of_its_owner_is_only_reported() -> None:
    (finding,) = differences(physical_pod("p", labels={DEFAULT.managed_by: "kubeocean"}))
    assert finding.problem is DifferenceKind.UNPROVEN
    assert not finding.removable


def legacy_pod(vnode: str = "vnode-c1-n", *, name: str = "", **annotations: str | None) -> Untyped:
    """Return a pod as the Go implementation creates it; an annotation of None is left out."""
    marks = {
        DEFAULT.virtual_pod_namespace: "team",
        DEFAULT.virtual_pod_name: "web",
        DEFAULT.virtual_pod_uid: "v",
        DEFAULT.virtual_node_name: vnode,
    }
    marks = {key: value for key, value in (marks | annotations).items() if value is not None}
    name = name or naming.physical_name("web", "team")
    labels = {DEFAULT.managed_by: DEFAULT.product}
    return Untyped(metadata=Meta(name, "mount", "uid", labels=labels, annotations=marks))


def problem_of(pod: Untyped) -> DifferenceKind:
    (finding,) = differences(pod)
    return finding.problem


def test_a_pod_of_the_go_implementation_is_ours_by_the_node_and_the_name_that_it_has() -> None:
    (finding,) = differences(legacy_pod())
    assert (finding.problem, finding.removable) == (DifferenceKind.LEGACY, True)
    assert finding.message.endswith(
        "of the Go implementation on vnode-c1-n is left over:"
        " the virtual pod team/web (UID v) does not exist"
    )
    for other in (
        legacy_pod("vnode-c1-other"),
        legacy_pod("vnode-c1"),
        legacy_pod(""),
        legacy_pod(name="web"),
        *(legacy_pod(**{key: None}) for key in MARKS),
    ):
        assert problem_of(other) is DifferenceKind.UNPROVEN
    owned = OwnerReference("apps/v1", "ReplicaSet", "r", "u")
    meta = msgspec.structs.replace(legacy_pod().metadata, owner_references=(owned,))
    assert problem_of(Untyped(metadata=meta)) is DifferenceKind.UNPROVEN


def test_a_pod_that_names_nothing_is_for_a_person_to_delete() -> None:
    nothing: dict[str, str | None] = dict.fromkeys((*MARKS, DEFAULT.virtual_node_name))
    (finding,) = differences(legacy_pod(name="p", **nothing))
    assert finding.problem is DifferenceKind.UNMAPPED
    assert (finding.removable, finding.repairable) == (False, True)
    for left, value in ((DEFAULT.virtual_node_name, "vnode-other"), (MARKS[0], "team")):
        assert problem_of(legacy_pod(name="p", **nothing | {left: value})) is (
            DifferenceKind.UNPROVEN
        )


def test_an_object_of_another_owner_is_ignored() -> None:
    for labels in (
        {},
        ownership_labels(Ids("other", "c1", "u1"), DEFAULT),
        ownership_labels(Ids("b", "c1", "elsewhere"), DEFAULT),
        {DEFAULT.managed_by: "kubeocean", DEFAULT.cluster_binding: "b"},
    ):
        assert differences(physical_pod("p", labels=labels)) == []


def test_a_virtual_pod_whose_physical_pod_is_missing_is_lost() -> None:
    (finding,) = differences(virtual={WEB: ComparedPod("v", "gone", runs=True)})
    assert (finding.problem, finding.removable) == (DifferenceKind.LOST, False)
    for pod in (ComparedPod("v", "", runs=True), ComparedPod("v", "gone", runs=False)):
        assert differences(virtual={WEB: pod}) == []


def test_two_physical_pods_of_one_virtual_pod_are_reported() -> None:
    (finding,) = differences(
        physical_pod("p"), physical_pod("q"), virtual={WEB: ComparedPod("v", "uid-p", runs=True)}
    )
    assert (finding.problem, finding.subject.key.name) == (DifferenceKind.TWIN, "q")
    assert not finding.removable


def test_a_copy_names_its_source_in_annotations() -> None:
    annotations = {
        DEFAULT.virtual_namespace: "team",
        DEFAULT.virtual_name: "settings",
        DEFAULT.virtual_uid: "u",
    }
    meta = Meta("settings-x", "mount", "uid", labels=OURS, annotations=annotations)
    kind = untyped(CONFIG_MAPS)
    copy = counterpart(
        Untyped(metadata=meta),
        kind="ConfigMap",
        resource=kind,
        original=kind,
        ids=IDS,
        domain=DEFAULT,
    )
    assert copy is not None
    assert (copy.virtual, copy.virtual_uid, copy.for_pod) == (Key("team", "settings"), "u", False)
    (finding,) = compare([ObjectSet([copy], lambda each: False)], {})
    assert finding.message == (
        "ConfigMap mount/settings-x is left over:"
        " no pod of this binding uses ConfigMap team/settings"
    )
