"""Changes of running pods: what changed above changes below, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from forging import context_for, vpod
from kubeocean.api import naming
from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podchanges import Changes, changes
from kubeocean.syncer.forge.podcontext import Privileges
from kubeocean.syncer.forge.pods import forge

TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
OTHER = {"key": "b", "operator": "Exists"}


def running(pod: Json, **spec: Any) -> Json:
    """What became of a pod below; the worker may have made something of it."""
    ppod = copy.deepcopy(forge(pod, context_for(pod)))
    ppod["metadata"] |= {"uid": "p", "resourceVersion": "42"}
    ppod["spec"] |= spec
    return ppod | {"status": {"phase": "Running"}}


def container(**said: Any) -> list[Json]:
    return [{"name": "app", "image": "app:1"} | said]


def changed(pod: Json, ppod: Json, **context: Any) -> Changes:
    return changes(pod, ppod, context_for(pod, **context))


def bodies(found: Changes, subresource: str = "") -> list[Json]:
    return [patch.body for patch in found.patches if patch.subresource == subresource]


def test_a_pod_that_is_as_forged_is_left_alone() -> None:
    pod = vpod(tolerations=[TOLERATION], activeDeadlineSeconds=5, labels={"a": "b"})
    found = changed(pod, running(pod))
    assert not found
    assert found == Changes()


def test_every_patch_is_for_this_pod_and_no_other() -> None:
    pod = vpod()
    debugged = vpod(
        labels={"a": "b"},
        ephemeralContainers=[{"name": "d", "image": "d"}],
        containers=container(resources={"requests": {"cpu": "2"}}),
    )
    found = changed(debugged, running(pod))
    assert [patch.subresource for patch in found.patches] == [
        "",
        "ephemeralcontainers",
        "resize",
        "",
    ]
    assert all(patch.body["metadata"]["uid"] == "p" for patch in found.patches)


def test_labels_and_annotations_follow() -> None:
    ppod = running(vpod(labels={"a": "1", "b": "1"}))
    (body,) = bodies(changed(vpod(labels={"a": "2"}, annotations={"n": "x"}), ppod))
    assert body["metadata"]["labels"] == {"a": "2", "b": None}
    assert body["metadata"]["annotations"]["n"] == "x"
    assert "spec" not in body


def test_an_image_follows() -> None:
    init = [{"name": "init", "image": "init:1"}]
    ppod = running(vpod(initContainers=init))
    pod = vpod(
        containers=container(image="app:2"), initContainers=[{"name": "init", "image": "init:2"}]
    )
    found = changed(pod, ppod)
    (body,) = bodies(found)
    assert body["spec"] == {
        "containers": [{"name": "app", "image": "app:2"}],
        "initContainers": [{"name": "init", "image": "init:2"}],
    }
    assert DEFAULT.expected_spec in body["metadata"]["annotations"]


def test_an_image_that_the_worker_takes_from_elsewhere_is_not_fought_over() -> None:
    pod = vpod()
    mirrored = running(pod, containers=container(image="mirror/app:1"))
    assert not changed(pod, mirrored)


def test_an_image_of_a_pod_that_remembers_nothing_follows() -> None:
    ppod = running(vpod())
    del ppod["metadata"]["annotations"][DEFAULT.expected_spec]
    (body,) = bodies(changed(vpod(containers=container(image="app:2")), ppod))
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}


def test_a_container_that_only_the_worker_has_stays() -> None:
    pod = vpod(containers=container(image="app:2"))
    side = {"name": "mesh", "image": "mesh:1"}
    (body,) = bodies(changed(pod, running(vpod(), containers=[*container(), side])))
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}


@pytest.mark.parametrize(
    ("above", "below", "then"),
    [
        ([OTHER], [], [OTHER]),
        ([TOLERATION, OTHER], [TOLERATION], [TOLERATION, OTHER]),
        ([OTHER], [TOLERATION], [OTHER, TOLERATION]),
        (
            [TOLERATION | {"tolerationSeconds": 9}],
            [TOLERATION],
            [TOLERATION | {"tolerationSeconds": 9}],
        ),
        ([OTHER, TOLERATION], [TOLERATION, OTHER], None),
        ([], [TOLERATION], None),
    ],
)
def test_tolerations_are_added_and_none_is_taken_away(
    above: list[Json], below: list[Json], then: list[Json] | None
) -> None:
    pod = vpod(tolerations=above)
    found = bodies(changed(pod, running(vpod(), tolerations=below)))
    assert [body["spec"]["tolerations"] for body in found if "spec" in body] == (
        [then] if then else []
    )
    for body in found:
        # The list is replaced as a whole: nobody may have changed it since.
        assert body["metadata"].get("resourceVersion") == ("42" if then else None)


@pytest.mark.parametrize(
    ("above", "below", "then"),
    [(5, None, 5), (5, 9, 5), (9, 5, None), (None, 5, None), (5, 5, None)],
)
def test_a_deadline_may_come_nearer(above: int | None, below: int | None, then: int | None) -> None:
    pod = vpod(**({} if above is None else {"activeDeadlineSeconds": above}))
    ppod = running(pod)
    ppod["spec"].pop("activeDeadlineSeconds", None)
    if below is not None:
        ppod["spec"]["activeDeadlineSeconds"] = below
    found = bodies(changed(pod, ppod))
    assert [body["spec"]["activeDeadlineSeconds"] for body in found] == ([then] if then else [])


# --- containers to debug with


def debugger(name: str = "debug", **said: Any) -> Json:
    return {"name": name, "image": "busybox"} | said


def test_a_debugger_comes_with_all_that_other_containers_have() -> None:
    pod = vpod()
    ref = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": "X", "valueFrom": ref}]
    debugged = vpod(ephemeralContainers=[debugger(env=env, targetContainerName="app")])
    (body,) = bodies(changed(debugged, running(pod)), "ephemeralcontainers")
    (added,) = body["spec"]["ephemeralContainers"]
    assert added["targetContainerName"] == "app"
    names = {v["name"]: v for v in added["env"]}
    assert names["X"]["valueFrom"]["secretKeyRef"]["name"] == naming.physical_name("s", "team")
    assert names["KUBERNETES_SERVICE_HOST"]["value"] == "10.9.8.7"
    assert names["HOSTNAME"]["value"] == "web"


def test_a_debugger_that_is_there_is_left_alone() -> None:
    debugged = vpod(ephemeralContainers=[debugger(), debugger("second")])
    ppod = running(debugged, ephemeralContainers=[debugger(image="mirror/busybox")])
    (body,) = bodies(changed(debugged, ppod), "ephemeralcontainers")
    assert [c["name"] for c in body["spec"]["ephemeralContainers"]] == ["second"]


def test_a_debugger_that_may_not_is_told_and_keeps_nothing_else_back() -> None:
    may_not = debugger("root", securityContext={"privileged": True})
    debugged = vpod(ephemeralContainers=[debugger(), may_not], labels={"a": "b"})
    found = changed(debugged, running(vpod()), privileges=Privileges(privileged=False))
    (refused,) = found.refused
    assert refused.field == "spec.ephemeralContainers[1].securityContext.privileged"
    (body,) = bodies(found, "ephemeralcontainers")
    assert [c["name"] for c in body["spec"]["ephemeralContainers"]] == ["debug"]
    assert bodies(found)[0]["metadata"]["labels"] == {"a": "b"}


# --- other amounts


def resources(cpu: str, memory: str = "1Gi") -> Json:
    return {"requests": {"cpu": cpu, "memory": memory, "x/y": "1"}, "limits": {"cpu": cpu}}


def test_a_resize_follows_and_is_remembered_after_it() -> None:
    ppod = running(vpod(containers=container(resources=resources("1"))))
    pod = vpod(containers=container(resources=resources("2")))
    found = changed(pod, ppod)
    (resize,) = bodies(found, "resize")
    amounts = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert resize["spec"] == {"containers": [{"name": "app", "resources": amounts}]}
    (after,) = bodies(found)
    assert found.patches[-1].body is after

    ppod["metadata"]["annotations"] |= after["metadata"]["annotations"]
    assert not changed(pod, ppod), "what became of it below is the worker's affair"


def test_a_resize_that_failed_is_tried_again() -> None:
    ppod = running(vpod(containers=container(resources=resources("1"))))
    pod = vpod(containers=container(resources=resources("2")), labels={"a": "b"})
    first, _, _ = changed(pod, ppod).patches
    ppod["metadata"]["labels"] |= first.body["metadata"]["labels"]
    ppod["metadata"]["annotations"] |= first.body["metadata"]["annotations"]
    assert bodies(changed(pod, ppod), "resize")


def test_the_same_amount_in_other_words_is_no_resize() -> None:
    ppod = running(vpod(containers=container(resources=resources("1000m", "1024Mi"))))
    found = changed(vpod(containers=container(resources=resources("1", "1Gi"))), ppod)
    assert not bodies(found, "resize")


def test_what_only_the_worker_asks_for_stays() -> None:
    pod = vpod()
    assert not changed(pod, running(pod, containers=container(resources=resources("1"))))


# --- the end


def test_a_pod_that_is_going_is_left_alone() -> None:
    ppod = running(vpod())
    ppod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert changed(vpod(labels={"a": "b"}), ppod) == Changes()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_of_a_pod_that_has_finished_only_metadata_changes(phase: str) -> None:
    ppod = running(vpod()) | {"status": {"phase": phase}}
    pod = vpod(
        labels={"a": "b"},
        containers=container(image="app:2", resources=resources("1")),
        ephemeralContainers=[debugger()],
        tolerations=[OTHER],
        activeDeadlineSeconds=1,
    )
    found = changed(pod, ppod)
    (patch,) = found.patches
    assert patch.body == {"metadata": {"uid": "p", "labels": {"a": "b"}, **_said(patch.body)}}
    assert DEFAULT.expected_spec not in patch.body["metadata"]["annotations"]


def _said(body: Json) -> Json:
    return {"annotations": body["metadata"]["annotations"]}


def test_annotations_that_do_not_fit_are_told_and_keep_nothing_else_back() -> None:
    pod = vpod(annotations={"large": "x" * (256 * 1024 - 5)}, containers=container(image="app:2"))
    found = changed(pod, running(vpod()))
    assert [refused.field for refused in found.refused] == ["metadata.annotations"]
    (body,) = bodies(found)
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}
