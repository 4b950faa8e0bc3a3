"""Physical pods: fields that are translated, and fields that are copied as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.api.group import TAPESTRY
from kubeocean.errors import InvariantError
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import CopyNames, Privileges, Refused
from kubeocean.syncer.pods.pod_security import volume_problem
from support.forge_inputs import context_for, vpod

ON_THE_NODE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["n1"]},
                    ]
                }
            ]
        }
    }
}
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]


def spec_of(pod: Json, **context: Any) -> Json:
    spec: Json = forge(pod, context_for(pod, **context))["spec"]
    return spec


# Fields of a virtual pod's spec → fields of the physical pod's; None means that a field is unset
ROWS: dict[str, tuple[Json, Json]] = {
    "the worker's scheduler may choose the one node": (
        {"affinity": {"podAntiAffinity": {}}},
        {"nodeName": None, "affinity": ON_THE_NODE},
    ),
    "selectors and schedulers of the computing cluster are dropped": (
        {"nodeSelector": {"a": "b"}, "schedulerName": "mine"},
        {"nodeSelector": None, "schedulerName": None},
    ),
    "spreading is of the computing cluster": (
        {"topologySpreadConstraints": SPREAD},
        {"topologySpreadConstraints": None},
    ),
    "scheduling gates are dropped": (
        {"schedulingGates": [{"name": "g"}]},
        {"schedulingGates": None},
    ),
    "gangs are scheduled in the computing cluster": (
        {"workloadRef": {"name": "w"}},
        {"workloadRef": None},
    ),
    "the priority is the worker's": (
        {"priorityClassName": "high", "priority": 1000},
        {"priorityClassName": "kubeocean-default", "priority": None},
    ),
    "a class that never preempts is dropped": (
        {"preemptionPolicy": "Never"},
        {"preemptionPolicy": None},
    ),
    "the costs of a runtime are the worker's": (
        {"runtimeClassName": "gvisor", "overhead": {"cpu": "1"}},
        {"runtimeClassName": "gvisor", "overhead": None},
    ),
    "the service account is dropped": (
        {"serviceAccountName": "robot", "serviceAccount": "robot"},
        {"serviceAccountName": None, "serviceAccount": None},
    ),
    "no token of the worker is mounted": ({}, {"automountServiceAccountToken": False}),
    "even if the pod requests one": (
        {"automountServiceAccountToken": True},
        {"automountServiceAccountToken": False},
    ),
    "no variables of the worker's Services": (
        {"enableServiceLinks": True},
        {"enableServiceLinks": False},
    ),
    "a host name of its own is kept": ({"hostname": "mine"}, {"hostname": "mine"}),
    "debuggers come later": (
        {"ephemeralContainers": [{"name": "d", "image": "busybox"}]},
        {"ephemeralContainers": None},
    ),
    "secrets to pull with are copies": (
        {"imagePullSecrets": [{"name": "pull"}, {"name": ""}]},
        {"imagePullSecrets": [{"name": naming.physical_name("pull", "team")}]},
    ),
    "the API server has its names": (
        {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["db"]}]},
        {
            "hostAliases": [
                {"ip": "1.2.3.4", "hostnames": ["db"]},
                {
                    "ip": "10.9.8.7",
                    "hostnames": [
                        "kubernetes.default.svc",
                        "kubernetes.default",
                        "kubernetes",
                        "kubernetes.default.svc.cluster.local",
                    ],
                },
            ]
        },
    ),
}

VERBATIM: Json = {
    "tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}],
    "runtimeClassName": "gvisor",
    "readinessGates": [{"conditionType": "example.com/ready"}],
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "securityContext": {"runAsUser": 1000},
    "terminationGracePeriodSeconds": 7,
    "activeDeadlineSeconds": 60,
    "subdomain": "sub",
    "setHostnameAsFQDN": True,
    "restartPolicy": "Never",
    "shareProcessNamespace": True,
    "os": {"name": "linux"},
    "hostUsers": False,
    "resources": {"requests": {"cpu": "1"}},
}


@pytest.mark.parametrize(("virtual", "physical"), ROWS.values(), ids=ROWS)
def test_a_field_is_translated(virtual: Json, physical: Json) -> None:
    spec = spec_of(vpod(**virtual))
    assert {key: spec.get(key) for key in physical} == physical
    assert all(key in spec for key, value in physical.items() if value is not None)
    assert not any(key in spec for key, value in physical.items() if value is None)


@pytest.mark.parametrize("key", VERBATIM)
def test_a_field_is_copied_as_it_is(key: str) -> None:
    assert spec_of(vpod(**VERBATIM))[key] == VERBATIM[key]


def test_ports_probes_and_resources_of_a_container_are_copied_as_they_are() -> None:
    container = {
        "name": "app",
        "image": "app:1",
        "ports": [{"containerPort": 80, "hostPort": 8080}],
        "resources": {"limits": {"cpu": "1"}},
        "readinessProbe": {"httpGet": {"port": 80}},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(POD_NAME)"}],
        "restartPolicy": "Always",
    }
    spec = spec_of(vpod(containers=[container], initContainers=[container]))
    for kind in ("containers", "initContainers"):
        assert container.items() <= spec[kind][0].items()


def test_a_directly_scheduled_pod_has_a_node_name_and_no_affinity() -> None:
    pod = vpod(affinity={"podAffinity": {}}, schedulingGates=[{"name": "g"}])
    spec = spec_of(pod, direct_scheduling=True)
    assert spec["nodeName"] == "n1"
    assert not {"affinity", "schedulingGates"} & spec.keys()


@pytest.mark.parametrize("direct", [False, True])
def test_a_pod_carries_the_node_selector_of_its_binding(direct: bool) -> None:
    pod = vpod()
    lent = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["batch"]}]}
    spec = spec_of(pod, direct_scheduling=direct, node_terms=(lent,))
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    on_node = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    named = {} if direct else {"matchFields": [on_node]}
    assert required["nodeSelectorTerms"] == [lent | named]
    assert spec.get("nodeName") == ("n1" if direct else None)


def test_the_binding_may_name_another_priority_class() -> None:
    assert spec_of(vpod(), priority_class="low")["priorityClassName"] == "low"
    assert spec_of(vpod(), domain=TAPESTRY)["priorityClassName"] == "tapestry-default"


@pytest.mark.parametrize(
    ("name", "hostname"),
    [
        ("web-0", "web-0"),
        ("web.example.com", "web-example-com"),
        ("a" * 253, "a" * 63),
        ("a" * 62 + "-b", "a" * 62),
        ("a" * 61 + ".-b", "a" * 61),
        ("a" * 62 + ".b", "a" * 62),
    ],
)
def test_the_hostname_is_the_pods_name_shortened_to_a_label(name: str, hostname: str) -> None:
    pod = vpod(name)
    forged = forge(pod, context_for(pod))
    assert forged["spec"]["hostname"] == hostname
    assert forged["metadata"]["annotations"]["kubeocean.io/virtual-pod-name"] == name
    assert len(forged["metadata"]["name"]) <= 63


def test_a_pull_secret_that_does_not_exist_is_left_out() -> None:
    pod = vpod(imagePullSecrets=[{"name": "gone"}])
    assert "imagePullSecrets" not in spec_of(pod, names=CopyNames())


def test_without_an_address_of_the_api_server_a_pod_has_no_variables_of_it() -> None:
    spec = spec_of(vpod(), server=None)
    assert "hostAliases" not in spec
    assert [v["name"] for v in spec["containers"][0]["env"]] == ["HOSTNAME"]


def test_an_api_server_known_by_name_alone_is_no_host_alias() -> None:
    server = context_for(vpod()).server
    assert server is not None
    named = type(server)("api.example.com", 443)
    spec = spec_of(vpod(), server=named)
    assert "hostAliases" not in spec
    env = {v["name"]: v["value"] for v in spec["containers"][0]["env"]}
    assert env["KUBERNETES_SERVICE_HOST"] == "api.example.com"


def test_names_of_the_api_server_follow_the_cluster_domain() -> None:
    (alias,) = spec_of(vpod(), cluster_domain="corp.example")["hostAliases"]
    assert alias["hostnames"][-1] == "kubernetes.default.svc.corp.example"
    (alias,) = spec_of(vpod(), cluster_domain="")["hostAliases"]
    assert alias["hostnames"][-1] == "kubernetes"


def test_only_metadata_of_the_virtual_pods_identity_is_sent() -> None:
    pod = vpod()
    forged = forge(pod, context_for(pod))
    assert forged.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert forged["metadata"].keys() == {"name", "namespace", "labels", "annotations"}


def test_a_pod_is_not_changed_by_being_forged() -> None:
    pod = vpod(**VERBATIM, volumes=[{"name": "v", "configMap": {"name": "a"}}])
    before = copy.deepcopy(pod)
    first = forge(pod, context_for(pod))
    assert pod == before
    assert forge(pod, context_for(pod)) == first


# --- refused pods


def privileged(value: bool = True) -> Json:
    return {"name": "app", "image": "a", "securityContext": {"privileged": value}}


WINDOWS = {"windowsOptions": {"hostProcess": True}}
FORBIDDEN: dict[str, tuple[Json, str, Privileges]] = {
    "hostNetwork": ({"hostNetwork": True}, "spec.hostNetwork", Privileges(host_network=False)),
    "hostPID": ({"hostPID": True}, "spec.hostPID", Privileges(host_pid=False)),
    "hostIPC": ({"hostIPC": True}, "spec.hostIPC", Privileges(host_ipc=False)),
    "hostPath": (
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/etc"}}]},
        "spec.volumes[1].hostPath",
        Privileges(host_path=False),
    ),
    "privileged": (
        {"containers": [privileged(False), privileged()]},
        "spec.containers[1].securityContext.privileged",
        Privileges(privileged=False),
    ),
    "privileged init container": (
        {"initContainers": [privileged()]},
        "spec.initContainers[0].securityContext.privileged",
        Privileges(privileged=False),
    ),
    "privileged on Windows": (
        {"securityContext": WINDOWS},
        "spec.securityContext.windowsOptions.hostProcess",
        Privileges(privileged=False),
    ),
    "privileged container on Windows": (
        {"containers": [{"name": "a", "image": "a", "securityContext": WINDOWS}]},
        "spec.containers[0].securityContext.windowsOptions.hostProcess",
        Privileges(privileged=False),
    ),
}


@pytest.mark.parametrize(("spec", "field", "privileges"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_privilege_is_refused_only_if_the_binding_denies_it(
    spec: Json, field: str, privileges: Privileges
) -> None:
    pod = vpod(**spec)
    forge(pod, context_for(pod))
    with pytest.raises(Refused, match="the binding does not allow it") as refused:
        forge(pod, context_for(pod, privileges=privileges))
    assert refused.value.field == field
    others = vpod()
    forge(others, context_for(others, privileges=privileges))


def test_a_privilege_that_is_refused_is_named_with_its_value() -> None:
    pod = vpod(volumes=[{"name": "v", "hostPath": {"path": "/etc"}}])
    with pytest.raises(Refused) as refused:
        forge(pod, context_for(pod, privileges=Privileges(host_path=False)))
    message = "spec.volumes[0].hostPath: the binding does not allow it (got '/etc')"
    assert str(refused.value) == message


@pytest.mark.parametrize("kind", ["hostPath", "local"])
def test_a_volume_that_is_a_directory_of_the_node_needs_the_same_privilege(kind: str) -> None:
    volume = {"spec": {kind: {"path": "/etc"}}}
    assert volume_problem(volume, Privileges()) is None
    denied = volume_problem(volume, Privileges(host_path=False))
    assert str(denied) == f"spec.{kind}: the binding does not allow it (got '/etc')"
    assert volume_problem({"spec": {"nfs": {}}}, Privileges(host_path=False)) is None


def test_claimed_devices_cannot_be_lent() -> None:
    pod = vpod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    with pytest.raises(Refused, match=r"spec\.resourceClaims: .* cannot be lent.*'gpu'"):
        forge(pod, context_for(pod))


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "configMap": {"name": "a"}}]},
        {"volumes": [{"name": "v", "secret": {"secretName": "a"}}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}]},
        {
            "volumes": [
                {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
            ]
        },
        {"containers": [{"name": "a", "envFrom": [{"secretRef": {"name": "a"}}]}]},
    ],
)
def test_a_reference_without_a_copy_raises(spec: Json) -> None:
    pod = vpod(**spec)
    with pytest.raises(InvariantError, match="has no copy"):
        forge(pod, context_for(pod, names=CopyNames()))
