"""What is left over on one side, seen from the other."""

from __future__ import annotations

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS
from kubeocean.runtime.objects import Key, Meta, Untyped
from kubeocean.syncer.comparison import (
    POD,
    Bound,
    Finding,
    Kept,
    Problem,
    Trace,
    compare,
    trace,
    untyped,
)

IDS = Ids("b", "c1", "u1")
OURS = ownership(IDS, DEFAULT)


def a_pod(name: str, virtual_uid: str = "v", labels: dict[str, str] = OURS) -> Untyped:
    annotations = {
        DEFAULT.virtual_pod_namespace: "team",
        DEFAULT.virtual_pod_name: "web",
        DEFAULT.virtual_pod_uid: virtual_uid,
    }
    meta = Meta(name, "mount", f"uid-{name}", labels=labels, annotations=annotations)
    return Untyped(metadata=meta)


def traced(obj: Untyped, kind: str = POD) -> Trace | None:
    pods = untyped(PODS)
    return trace(obj, kind=kind, resource=pods, original=pods, ids=IDS, domain=DEFAULT)


def found(*pods: Untyped, above: dict[Key, Bound] | None = None) -> list[Finding]:
    bound = above or {}
    traces = [each for pod in pods if (each := traced(pod)) is not None]

    def wanted(each: Trace) -> bool:
        pod = bound.get(each.virtual)
        return pod is not None and pod.uid == each.virtual_uid

    return list(compare([Kept(traces, wanted)], bound))


WEB = Key("team", "web")


def test_both_sides_agree() -> None:
    assert found(a_pod("p"), above={WEB: Bound("v", "uid-p", runs=True)}) == []


def test_a_pod_whose_virtual_pod_is_gone_or_another_one_is_an_orphan() -> None:
    for above in ({}, {WEB: Bound("w", "", runs=True)}):
        (finding,) = found(a_pod("p"), above=above)
        assert finding.problem is Problem.ORPHAN
        assert finding.removable
        assert finding.message == (
            "Pod mount/p is left over: the virtual pod team/web (UID v) is not there"
        )
        assert finding.identity == ("Orphan", "uid-p")


def test_what_does_not_prove_whose_it_is_is_only_told_of() -> None:
    (finding,) = found(a_pod("p", labels={DEFAULT.managed_by: "kubeocean"}))
    assert finding.problem is Problem.UNPROVEN
    assert not finding.removable


def test_what_is_somebody_elses_is_not_looked_at() -> None:
    for labels in (
        {},
        ownership(Ids("other", "c1", "u1"), DEFAULT),
        ownership(Ids("b", "c1", "elsewhere"), DEFAULT),
        {DEFAULT.managed_by: "kubeocean", DEFAULT.cluster_binding: "b"},
    ):
        assert found(a_pod("p", labels=labels)) == []


def test_a_virtual_pod_that_says_it_runs_is_missed_below() -> None:
    (finding,) = found(above={WEB: Bound("v", "gone", runs=True)})
    assert (finding.problem, finding.removable) == (Problem.LOST, False)
    for pod in (Bound("v", "", runs=True), Bound("v", "gone", runs=False)):
        assert found(above={WEB: pod}) == []


def test_two_pods_for_one_are_told_of() -> None:
    (finding,) = found(a_pod("p"), a_pod("q"), above={WEB: Bound("v", "uid-p", runs=True)})
    assert (finding.problem, finding.subject.key.name) == (Problem.TWIN, "q")
    assert not finding.removable


def test_a_copy_stands_for_what_its_annotations_say() -> None:
    annotations = {
        DEFAULT.virtual_namespace: "team",
        DEFAULT.virtual_name: "settings",
        DEFAULT.virtual_uid: "u",
    }
    meta = Meta("settings-x", "mount", "uid", labels=OURS, annotations=annotations)
    kind = untyped(CONFIG_MAPS)
    copy = trace(
        Untyped(metadata=meta),
        kind="ConfigMap",
        resource=kind,
        original=kind,
        ids=IDS,
        domain=DEFAULT,
    )
    assert copy is not None
    assert (copy.virtual, copy.virtual_uid, copy.for_pod) == (Key("team", "settings"), "u", False)
    (finding,) = compare([Kept([copy], lambda each: False)], {})
    assert finding.message == (
        "ConfigMap mount/settings-x is left over: no pod here uses ConfigMap team/settings"
    )
