"""Pods that a binding allows, by the Pod Security Standards and by single privileges."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api.bindings import BindingSpec, ClusterBinding, PodPrivileges, PodSecurityLevel
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import Privileges
from kubeocean.syncer.pods.pod_security import (
    container_problems,
    privileges_of,
    problems,
    volume_problem,
)
from support.pod_security_cases import CASES, SecurityCase, restricted_pod

ORDER = list(PodSecurityLevel)


def binding(**privileges: str) -> ClusterBinding:
    return ClusterBinding(spec=BindingSpec(pod_privileges=PodPrivileges(**privileges)))


def fields(pod: Json, **privileges: str) -> list[str]:
    return [each.field for each in problems(pod, privileges_of(binding(**privileges)))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("level", PodSecurityLevel)
def test_each_level_refuses_what_the_standard_forbids(
    case: SecurityCase, level: PodSecurityLevel
) -> None:
    allowed = ORDER.index(level) <= ORDER.index(case.level)
    assert (fields(case.pod, level=level) == []) is allowed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_five_privileges_denied_are_the_baseline(case: SecurityCase) -> None:
    names = ("host_network", "host_pid", "host_ipc", "host_path", "privileged")
    denied = dict.fromkeys(names, "Deny")
    assert fields(case.pod, **denied) == fields(case.pod, level="baseline")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("host_network", {"hostNetwork": True}),
        ("host_pid", {"hostPID": True}),
        ("host_ipc", {"hostIPC": True}),
        ("host_path", {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        ("privileged", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ],
)
def test_the_stricter_of_level_and_privilege_counts(field: str, change: Json) -> None:
    pod = restricted_pod()
    pod["spec"].update(change)
    assert fields(pod) == []
    assert len(fields(pod, **{field: "Deny"})) == 1
    assert len(fields(pod, level="privileged", **{field: "Deny"})) == 1
    assert len(fields(pod, level="baseline", **{field: "Allow"})) == 1


def test_an_unknown_level_is_the_strictest_and_no_binding_allows_nothing() -> None:
    strict = privileges_of(binding(level="restricted"))
    assert privileges_of(binding(level="Baseline")) == strict
    assert privileges_of(None) == strict
    assert privileges_of(binding()) == Privileges()
    assert strict == Privileges(False, False, False, False, False, restricted=True)


def test_a_refusal_names_field_and_value() -> None:
    pod = restricted_pod()
    context = {"capabilities": {"add": ["CHOWN", "SYS_MODULE"]}, "procMount": "Unmasked"}
    pod["spec"]["containers"][0]["securityContext"] = context
    pod["metadata"]["annotations"] = {
        "container.apparmor.security.beta.kubernetes.io/c": "unconfined"
    }
    found = problems(pod, privileges_of(binding(level="baseline")))
    assert [(each.field, each.value) for each in found] == [
        (
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]",
            "unconfined",
        ),
        ("spec.containers[0].securityContext.capabilities.add", "SYS_MODULE"),
        ("spec.containers[0].securityContext.procMount", "Unmasked"),
    ]


def test_an_ephemeral_container_inherits_what_its_pod_sets() -> None:
    pod = restricted_pod()
    strict = privileges_of(binding(level="restricted"))
    debug: dict[str, Any] = {"name": "debug", "image": "none"}
    refused = container_problems(debug, "spec.ephemeralContainers[0]", pod["spec"], strict)
    assert [each.field.rsplit("securityContext.")[1] for each in refused] == [
        "allowPrivilegeEscalation",
        "capabilities.drop",
    ]
    confined = debug | {"securityContext": pod["spec"]["containers"][0]["securityContext"]}
    assert not list(container_problems(confined, "x", pod["spec"], strict))


def test_volumes_that_are_directories_of_a_node_are_denied_with_host_paths() -> None:
    for kind in ("hostPath", "local"):
        volume: Json = {"spec": {kind: {"path": "/data"}}}
        refused = volume_problem(volume, privileges_of(binding(level="baseline")))
        assert refused is not None
        assert (refused.field, refused.value) == (f"spec.{kind}", "/data")
        assert volume_problem(volume, privileges_of(binding())) is None
