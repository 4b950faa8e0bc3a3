"""Environment of a physical pod, as a kubelet of the computing cluster sets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.env import service_variables
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import Endpoint, ServiceEnv, ServicePort
from support.forge_inputs import context_for, names_for, vpod

# The variables of a Service in the documentation of Kubernetes
REDIS = ServiceEnv("redis-primary", "10.0.0.11", (ServicePort(6379),))
OF_REDIS = {
    "REDIS_PRIMARY_SERVICE_HOST": "10.0.0.11",
    "REDIS_PRIMARY_SERVICE_PORT": "6379",
    "REDIS_PRIMARY_PORT": "tcp://10.0.0.11:6379",
    "REDIS_PRIMARY_PORT_6379_TCP": "tcp://10.0.0.11:6379",
    "REDIS_PRIMARY_PORT_6379_TCP_PROTO": "tcp",
    "REDIS_PRIMARY_PORT_6379_TCP_PORT": "6379",
    "REDIS_PRIMARY_PORT_6379_TCP_ADDR": "10.0.0.11",
}
# The variables of an API server with this address
OF_SERVER = {
    "KUBERNETES_SERVICE_HOST": "10.9.8.7",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.9.8.7:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.9.8.7:443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.9.8.7",
}
SERVER = Endpoint("10.9.8.7", 443)


def forged(pod: Json, kind: str = "containers", **context: Any) -> list[Json]:
    """Return the environment of the first container."""
    spec = forge(pod, context_for(pod, **({"server": None} | context)))["spec"]
    env: list[Json] = spec[kind][0]["env"]
    return env


def with_env(*env: Json, **spec: Any) -> Json:
    return vpod(containers=[{"name": "app", "image": "a", "env": list(env)}], **spec)


def values(env: list[Json]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in env}


def test_a_service_has_the_documented_variables() -> None:
    assert service_variables([REDIS]) == OF_REDIS


def test_a_port_may_be_named_by_its_number() -> None:
    service = ServiceEnv("q-x", "10.0.0.9", (ServicePort(8082), ServicePort(8083, "8083")))
    variables = service_variables([service])
    assert variables["Q_X_SERVICE_PORT_8083"] == "8083"
    assert variables["Q_X_SERVICE_PORT"] == "8082"
    assert variables["Q_X_PORT"] == "tcp://10.0.0.9:8082"
    assert variables["Q_X_PORT_8083_TCP"] == "tcp://10.0.0.9:8083"


def test_named_ports_and_other_protocols_have_variables() -> None:
    dns = ServiceEnv("dns", "fd00::a", (ServicePort(53, "dns-udp", "UDP"), ServicePort(53, "tcp")))
    assert service_variables([dns]) == {
        "DNS_SERVICE_HOST": "fd00::a",
        "DNS_SERVICE_PORT": "53",
        "DNS_SERVICE_PORT_DNS_UDP": "53",
        "DNS_SERVICE_PORT_TCP": "53",
        "DNS_PORT": "udp://[fd00::a]:53",
        "DNS_PORT_53_UDP": "udp://[fd00::a]:53",
        "DNS_PORT_53_UDP_PROTO": "udp",
        "DNS_PORT_53_UDP_PORT": "53",
        "DNS_PORT_53_UDP_ADDR": "fd00::a",
        "DNS_PORT_53_TCP": "tcp://[fd00::a]:53",
        "DNS_PORT_53_TCP_PROTO": "tcp",
        "DNS_PORT_53_TCP_PORT": "53",
        "DNS_PORT_53_TCP_ADDR": "fd00::a",
    }


@pytest.mark.parametrize(
    "service",
    [
        ServiceEnv("a", "None", (ServicePort(1),)),
        ServiceEnv("a", "", (ServicePort(1),)),
        ServiceEnv("a", "10.0.0.1", ()),
    ],
)
def test_a_service_without_an_address_or_a_port_has_no_variables(service: ServiceEnv) -> None:
    assert service_variables([service]) == {}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_all_containers_have_variables_of_the_api_server_and_of_services(kind: str) -> None:
    container = {"name": "app", "image": "a"}
    pod = vpod(containers=[container], initContainers=[container])
    env = forged(pod, kind, server=SERVER, services=(REDIS,))
    assert values(env) == OF_REDIS | OF_SERVER | {"HOSTNAME": "web"}


def test_a_pod_without_service_links_has_variables_of_the_api_server_alone() -> None:
    pod = vpod(enableServiceLinks=False)
    env = forged(pod, server=SERVER, services=(REDIS,))
    assert values(env) == OF_SERVER | {"HOSTNAME": "web"}


def test_a_service_with_the_name_of_the_api_servers_is_overridden_by_it() -> None:
    other = ServiceEnv("kubernetes", "10.96.0.1", (ServicePort(443, "https"), ServicePort(80)))
    env = forged(vpod(namespace="default"), server=SERVER, services=(other,))
    assert values(env) == OF_SERVER | {"HOSTNAME": "web"}


def test_no_variable_of_the_workers_api_server_is_left_if_ours_has_another_port() -> None:
    env = values(forged(vpod(), server=Endpoint("fd00::1", 6443)))
    assert env.keys() >= OF_SERVER.keys()
    assert env["KUBERNETES_PORT"] == "tcp://[fd00::1]:6443"
    assert env["KUBERNETES_PORT_6443_TCP"] == "tcp://[fd00::1]:6443"
    assert env["KUBERNETES_PORT_443_TCP"] == "tcp://[fd00::1]:6443"
    assert env["KUBERNETES_PORT_443_TCP_PORT"] == "6443"
    assert env["KUBERNETES_SERVICE_HOST"] == "fd00::1"


def test_variables_of_services_come_before_those_that_refer_to_them() -> None:
    own = {"name": "URL", "value": "redis://$(REDIS_PRIMARY_SERVICE_HOST)"}
    env = forged(with_env(own), services=(REDIS,))
    names = [variable["name"] for variable in env]
    assert names == [*OF_REDIS, "URL", "HOSTNAME"]
    assert own in env


def test_a_containers_own_variables_keep_their_order_and_override_services() -> None:
    own = [
        {"name": "B", "value": "$(A)"},
        {"name": "A", "value": "1"},
        {"name": "REDIS_PRIMARY_SERVICE_PORT", "value": "7000"},
        {"name": "A", "value": "2"},
    ]
    env = forged(with_env(*own), services=(REDIS,))
    assert [v for v in env if v["name"] in {"A", "B"} or v["value"] == "7000"] == own
    ports = [v["value"] for v in env if v["name"] == "REDIS_PRIMARY_SERVICE_PORT"]
    assert ports == ["7000"]


def test_a_variable_that_is_set_after_a_reference_to_it_has_the_services_value_before() -> None:
    own = [
        {"name": "WAS", "value": "$(REDIS_PRIMARY_SERVICE_PORT)"},
        {"name": "REDIS_PRIMARY_SERVICE_PORT", "value": "7000"},
    ]
    env = forged(with_env(*own), services=(REDIS,))
    ports = [v["value"] for v in env if v["name"] == "REDIS_PRIMARY_SERVICE_PORT"]
    assert ports == ["6379", "7000"]


def test_the_api_servers_host_and_port_override_a_containers_own() -> None:
    own = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "10.96.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        {"name": "KUBERNETES_PORT", "value": "mine"},
    ]
    env = forged(with_env(*own), server=SERVER)
    assert values(env) == OF_SERVER | {"KUBERNETES_PORT": "mine", "HOSTNAME": "web"}
    assert len(env) == len(values(env))


FROM_BOTH: list[Json] = [
    {"configMapRef": {"name": "a"}, "prefix": "REDIS_"},
    {"secretRef": {"name": "a", "optional": True}},
    {"secretRef": {"name": "unknown", "optional": True}},
]


def test_env_from_overrides_services_and_is_overridden_by_env() -> None:
    own: list[Json] = [{"name": "URL", "value": "$(REDIS_PRIMARY_PORT)"}]
    pod = vpod(containers=[{"name": "app", "image": "a", "env": own, "envFrom": FROM_BOTH}])
    keys = {
        ("configMap", "a"): frozenset({"PRIMARY_PORT", "ELSE"}),
        ("secret", "a"): frozenset({"REDIS_PRIMARY_SERVICE_HOST", "KUBERNETES_SERVICE_HOST"}),
    }
    names = replace(names_for(pod), keys=keys)
    env = values(forged(pod, server=SERVER, services=(REDIS,), names=names))
    hidden = {"REDIS_PRIMARY_PORT", "REDIS_PRIMARY_SERVICE_HOST"}
    assert env.keys() == (OF_REDIS.keys() - hidden) | OF_SERVER.keys() | {"URL", "HOSTNAME"}
    assert env["KUBERNETES_SERVICE_HOST"] == SERVER.host


def test_without_an_api_server_a_containers_own_stay() -> None:
    own = {"name": "KUBERNETES_SERVICE_HOST", "value": "10.96.0.1"}
    assert own in forged(with_env(own))


@pytest.mark.parametrize(
    "own", [(), ({"name": "HOSTNAME", "value": "x"},), ({"name": "HOSTNAME", "valueFrom": {}},)]
)
def test_the_host_name_is_the_pods_name(own: tuple[Json, ...]) -> None:
    pod = with_env(*own, hostname="other")
    assert forged(pod) == [{"name": "HOSTNAME", "value": "web"}]
    pod["metadata"]["name"] = "a.b"
    assert forged(pod) == [{"name": "HOSTNAME", "value": "a.b"}]


def test_services_that_do_not_fit_into_a_pod_have_no_variables() -> None:
    many = [ServiceEnv(f"service-{i}", "10.0.0.1", (ServicePort(80),)) for i in range(2000)]
    env = forged(vpod(), server=SERVER, services=many)
    assert values(env) == OF_SERVER | {"HOSTNAME": "web"}
    assert len(forged(vpod(), server=SERVER, services=many[:500])) > 3500


# --- where values come from


def ref(kind: str, **fields: Any) -> Json:
    return {"name": "X", "valueFrom": {kind: fields}}


def downward(path: str) -> Json:
    return ref("fieldRef", apiVersion="v1", fieldPath=path)


def annotation(name: str) -> Json:
    return downward(f"metadata.annotations['kubeocean.io/{name}']")


BELOW = naming.physical_name("a", "team")
SOURCES: dict[str, tuple[Json, Json]] = {
    "ConfigMap": (
        ref("configMapKeyRef", name="a", key="k", optional=True),
        ref("configMapKeyRef", name=BELOW, key="k", optional=True),
    ),
    "Secret": (
        ref("secretKeyRef", name="a", key="k"),
        ref("secretKeyRef", name=BELOW, key="k"),
    ),
    "metadata.name": (downward("metadata.name"), annotation("virtual-pod-name")),
    "metadata.namespace": (downward("metadata.namespace"), annotation("virtual-pod-namespace")),
    "metadata.uid": (downward("metadata.uid"), annotation("virtual-pod-uid")),
    "spec.nodeName": (downward("spec.nodeName"), annotation("virtual-node-name")),
    "spec.serviceAccountName": (
        downward("spec.serviceAccountName"),
        annotation("service-account"),
    ),
} | {
    path: (downward(path), downward(path))
    for path in (
        "metadata.labels['app']",
        "metadata.annotations['note']",
        "status.podIP",
        "status.podIPs",
        "status.hostIP",
        "status.hostIPs",
    )
}


@pytest.mark.parametrize(("virtual", "physical"), SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_value_from_an_object_is_read_from_its_copy(
    kind: str, virtual: Json, physical: Json
) -> None:
    pod = vpod(**{"containers": [], kind: [{"name": "c", "image": "a", "env": [virtual]}]})
    assert forged(pod, kind)[0] == physical


def test_redirected_fields_have_the_values_of_the_virtual_pod() -> None:
    pod = vpod()
    annotations = forge(pod, context_for(pod))["metadata"]["annotations"]
    answers = {
        "virtual-pod-name": "web",
        "virtual-pod-namespace": "team",
        "virtual-pod-uid": pod["metadata"]["uid"],
        "virtual-node-name": "vnode-w1-n1",
        "service-account": "robot",
    }
    assert answers == {name: annotations[f"kubeocean.io/{name}"] for name in answers}


def test_env_from_names_copies() -> None:
    sources = [
        {"prefix": "A_", "configMapRef": {"name": "a", "optional": True}},
        {"secretRef": {"name": "a"}},
    ]
    pod = vpod(containers=[{"name": "app", "image": "a", "envFrom": sources}])
    container = forge(pod, context_for(pod))["spec"]["containers"][0]
    assert container["envFrom"] == [
        {"prefix": "A_", "configMapRef": {"name": BELOW, "optional": True}},
        {"secretRef": {"name": BELOW}},
    ]


def test_resource_fields_are_copied_as_they_are() -> None:
    own = ref("resourceFieldRef", resource="limits.cpu", divisor="1")
    assert forged(with_env(own))[0] == own
