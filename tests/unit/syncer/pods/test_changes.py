"""Changes of running pods: changes of the virtual pod are applied, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.changes import Changes, changes, digest_of, is_whole_when_created
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import Privileges
from support.forge_inputs import context_for, vpod

TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
OTHER = {"key": "b", "operator": "Exists"}


def running(pod: Json, **spec: Any) -> Json:
    """Return the physical pod of a virtual pod, with changes of the worker's admission."""
    ppod = copy.deepcopy(forge(pod, context_for(pod)))
    ppod["metadata"] |= {"uid": "p", "resourceVersion": "42"}
    ppod["spec"] |= spec
    return ppod | {"status": {"phase": "Running"}}


def container(**fields: Any) -> list[Json]:
    return [{"name": "app", "image": "app:1"} | fields]


def changed(pod: Json, ppod: Json, **context: Any) -> Changes:
    return changes(pod, ppod, context_for(pod, **context))


def bodies(difference: Changes, subresource: str = "") -> list[Json]:
    return [patch.body for patch in difference.patches if patch.subresource == subresource]


def test_a_pod_that_is_as_forged_needs_no_patch() -> None:
    pod = vpod(tolerations=[TOLERATION], activeDeadlineSeconds=5, labels={"a": "b"})
    difference = changed(pod, running(pod))
    assert not difference
    assert difference == Changes()


def test_every_patch_has_the_uid_of_the_pod() -> None:
    pod = vpod()
    debugged = vpod(
        labels={"a": "b"},
        ephemeralContainers=[{"name": "d", "image": "d"}],
        containers=container(resources={"requests": {"cpu": "2"}}),
    )
    difference = changed(debugged, running(pod))
    assert [patch.subresource for patch in difference.patches] == [
        "",
        "ephemeralcontainers",
        "resize",
        "",
    ]
    assert all(patch.body["metadata"]["uid"] == "p" for patch in difference.patches)


def test_changed_labels_and_annotations_are_applied() -> None:
    ppod = running(vpod(labels={"a": "1", "b": "1"}))
    (body,) = bodies(changed(vpod(labels={"a": "2"}, annotations={"n": "x"}), ppod))
    assert body["metadata"]["labels"] == {"a": "2", "b": None}
    assert body["metadata"]["annotations"]["n"] == "x"
    assert "spec" not in body


def test_a_changed_image_is_applied() -> None:
    init = [{"name": "init", "image": "init:1"}]
    ppod = running(vpod(initContainers=init))
    pod = vpod(
        containers=container(image="app:2"), initContainers=[{"name": "init", "image": "init:2"}]
    )
    difference = changed(pod, ppod)
    (body,) = bodies(difference)
    assert body["spec"] == {
        "containers": [{"name": "app", "image": "app:2"}],
        "initContainers": [{"name": "init", "image": "init:2"}],
    }
    assert DEFAULT.expected_spec in body["metadata"]["annotations"]


def test_an_image_that_the_workers_admission_replaced_stays() -> None:
    pod = vpod()
    mirrored = running(pod, containers=container(image="mirror/app:1"))
    assert not changed(pod, mirrored)


def test_a_changed_image_leaves_others_that_the_workers_admission_replaced() -> None:
    side = {"name": "side", "image": "side:1"}
    mirrored = [*container(image="mirror/app:1"), {"name": "side", "image": "mirror/side:1"}]
    ppod = running(vpod(containers=[*container(), side]), containers=mirrored)
    (body,) = bodies(changed(vpod(containers=[*container(image="app:2"), side]), ppod))
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}


def test_a_record_of_an_earlier_version_is_not_rewritten() -> None:
    ppod = running(vpod())
    annotations = ppod["metadata"]["annotations"]
    record = json.loads(annotations[DEFAULT.expected_spec])
    earlier = {part: record[part] for part in ("images", "resources", "tolerations")}
    annotations[DEFAULT.expected_spec] = json.dumps(earlier)
    assert not changed(vpod(), ppod)
    (body,) = bodies(changed(vpod(containers=container(image="app:2")), ppod))
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}


def test_the_image_of_a_pod_without_a_record_is_applied() -> None:
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
    ("virtual", "physical", "expected"),
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
def test_tolerations_are_added_and_none_is_removed(
    virtual: list[Json], physical: list[Json], expected: list[Json] | None
) -> None:
    pod = vpod(tolerations=virtual)
    difference = bodies(changed(pod, running(vpod(), tolerations=physical)))
    assert [body["spec"]["tolerations"] for body in difference if "spec" in body] == (
        [expected] if expected else []
    )
    for body in difference:
        # The list is replaced as a whole, so the patch must fail if the list has changed since.
        assert body["metadata"].get("resourceVersion") == ("42" if expected else None)


@pytest.mark.parametrize(
    ("virtual", "physical", "expected"),
    [(5, None, 5), (5, 9, 5), (9, 5, None), (None, 5, None), (5, 5, None)],
)
def test_a_deadline_may_come_nearer(
    virtual: int | None, physical: int | None, expected: int | None
) -> None:
    pod = vpod(**({} if virtual is None else {"activeDeadlineSeconds": virtual}))
    ppod = running(pod)
    ppod["spec"].pop("activeDeadlineSeconds", None)
    if physical is not None:
        ppod["spec"]["activeDeadlineSeconds"] = physical
    difference = bodies(changed(pod, ppod))
    assert [body["spec"]["activeDeadlineSeconds"] for body in difference] == (
        [expected] if expected else []
    )


# --- ephemeral containers


def ephemeral(name: str = "debug", **fields: Any) -> Json:
    return {"name": name, "image": "busybox"} | fields


def test_an_ephemeral_container_gets_the_environment_of_other_containers() -> None:
    pod = vpod()
    ref = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": "X", "valueFrom": ref}]
    debugged = vpod(ephemeralContainers=[ephemeral(env=env, targetContainerName="app")])
    (body,) = bodies(changed(debugged, running(pod)), "ephemeralcontainers")
    (added,) = body["spec"]["ephemeralContainers"]
    assert added["targetContainerName"] == "app"
    names = {v["name"]: v for v in added["env"]}
    assert names["X"]["valueFrom"]["secretKeyRef"]["name"] == naming.physical_name("s", "team")
    assert names["KUBERNETES_SERVICE_HOST"]["value"] == "10.9.8.7"
    assert names["HOSTNAME"]["value"] == "web"


def test_an_ephemeral_container_that_exists_is_not_changed() -> None:
    debugged = vpod(ephemeralContainers=[ephemeral(), ephemeral("second")])
    ppod = running(debugged, ephemeralContainers=[ephemeral(image="mirror/busybox")])
    (body,) = bodies(changed(debugged, ppod), "ephemeralcontainers")
    assert [c["name"] for c in body["spec"]["ephemeralContainers"]] == ["second"]


def test_a_denied_ephemeral_container_is_refused_and_other_changes_are_applied() -> None:
    may_not = ephemeral("root", securityContext={"privileged": True})
    debugged = vpod(ephemeralContainers=[ephemeral(), may_not], labels={"a": "b"})
    difference = changed(debugged, running(vpod()), privileges=Privileges(privileged=False))
    (refused,) = difference.refused
    assert refused.field == "spec.ephemeralContainers[1].securityContext.privileged"
    (body,) = bodies(difference, "ephemeralcontainers")
    assert [c["name"] for c in body["spec"]["ephemeralContainers"]] == ["debug"]
    assert bodies(difference)[0]["metadata"]["labels"] == {"a": "b"}


# --- resizes


def resources(cpu: str, memory: str = "1Gi") -> Json:
    return {"requests": {"cpu": cpu, "memory": memory, "x/y": "1"}, "limits": {"cpu": cpu}}


def test_a_resize_is_applied_and_recorded_after_it() -> None:
    ppod = running(vpod(containers=container(resources=resources("1"))))
    pod = vpod(containers=container(resources=resources("2")))
    difference = changed(pod, ppod)
    (resize,) = bodies(difference, "resize")
    amounts = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert resize["spec"] == {"containers": [{"name": "app", "resources": amounts}]}
    (after,) = bodies(difference)
    assert difference.patches[-1].body is after

    ppod["metadata"]["annotations"] |= after["metadata"]["annotations"]
    assert not changed(pod, ppod), "what the worker makes of the resize is not changed"


def test_a_resize_that_failed_is_applied_again() -> None:
    ppod = running(vpod(containers=container(resources=resources("1"))))
    pod = vpod(containers=container(resources=resources("2")), labels={"a": "b"})
    first, _, _ = changed(pod, ppod).patches
    ppod["metadata"]["labels"] |= first.body["metadata"]["labels"]
    ppod["metadata"]["annotations"] |= first.body["metadata"]["annotations"]
    assert bodies(changed(pod, ppod), "resize")


def test_the_same_amount_in_another_notation_is_no_resize() -> None:
    ppod = running(vpod(containers=container(resources=resources("1000m", "1024Mi"))))
    difference = changed(vpod(containers=container(resources=resources("1", "1Gi"))), ppod)
    assert not bodies(difference, "resize")


def test_requests_that_only_the_worker_added_stay() -> None:
    pod = vpod()
    assert not changed(pod, running(pod, containers=container(resources=resources("1"))))


# --- pods that end


def test_a_pod_that_is_being_deleted_needs_no_patch() -> None:
    ppod = running(vpod())
    ppod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert changed(vpod(labels={"a": "b"}), ppod) == Changes()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_of_a_pod_that_has_finished_only_metadata_changes(phase: str) -> None:
    ppod = running(vpod()) | {"status": {"phase": phase}}
    pod = vpod(
        labels={"a": "b"},
        containers=container(image="app:2", resources=resources("1")),
        ephemeralContainers=[ephemeral()],
        tolerations=[OTHER],
        activeDeadlineSeconds=1,
    )
    difference = changed(pod, ppod)
    (patch,) = difference.patches
    assert patch.body == {"metadata": {"uid": "p", "labels": {"a": "b"}, **_said(patch.body)}}
    assert DEFAULT.expected_spec not in patch.body["metadata"]["annotations"]


def _said(body: Json) -> Json:
    return {"annotations": body["metadata"]["annotations"]}


def test_annotations_that_do_not_fit_are_refused_and_other_changes_are_applied() -> None:
    pod = vpod(annotations={"large": "x" * (256 * 1024 - 5)}, containers=container(image="app:2"))
    difference = changed(pod, running(vpod()))
    assert [refused.field for refused in difference.refused] == ["metadata.annotations"]
    (body,) = bodies(difference)
    assert body["spec"] == {"containers": [{"name": "app", "image": "app:2"}]}


def test_the_digest_of_a_forged_pod_is_that_of_the_pod_which_a_server_stores() -> None:
    pod = vpod(labels={"z": "1", "a": "2"}, annotations={"n": "x"})
    forged = forge(pod, context_for(pod))
    stored = running(pod, nodeName="n1")
    for name in ("labels", "annotations"):
        stored["metadata"][name] = dict(sorted(forged["metadata"][name].items()))
    assert digest_of(pod, stored) == digest_of(pod, forged)
    stored["metadata"]["labels"]["z"] = "of an admission plugin"
    assert digest_of(pod, stored) != digest_of(pod, forged)


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        ({}, True),
        ({"tolerations": [TOLERATION]}, True),
        ({"ephemeralContainers": [{"name": "d", "image": "d"}]}, False),
        ({"activeDeadlineSeconds": 5}, False),
    ],
)
def test_a_new_pod_with_later_parts_is_compared(spec: Json, whole: bool) -> None:
    pod = vpod(**spec)
    assert is_whole_when_created(pod) is whole
    untouched = {key: value for key, value in running(pod)["spec"].items() if key not in spec}
    assert whole is not bool(changed(pod, running(pod) | {"spec": untouched}))


def test_the_digest_changes_with_whatever_may_have_to_be_applied() -> None:
    pod: Json = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}
    ppod: Json = {"metadata": {"annotations": {"a": "1"}}, "status": {"phase": "Running"}}
    digest = digest_of(pod, ppod)
    assert digest_of(pod, ppod | {"status": {}}) == digest
    assert digest_of(pod | {"spec": {"containers": [{}]}}, ppod) != digest
    assert digest_of(pod | {"metadata": {"labels": {}}}, ppod) != digest
    assert digest_of(pod, {"metadata": {"annotations": {"a": "2"}}}) != digest
    deleted = {"annotations": {"a": "1"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert digest_of(pod, {"metadata": deleted}) != digest
