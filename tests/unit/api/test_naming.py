"""Names: the contract's rules to the letter, and valid DNS names for every input."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeocean.api import naming
from kubeocean.api.group import TAPESTRY
from kubeocean.runtime.selectors import check_label_value, check_subdomain

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NODE = "ip-10-0-0-1.eu-central-1.compute.internal.example.com"


# Hashes are from md5sum and sha256sum, ports from a calculation by hand.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (naming.virtual_node("c1", "node-1"), "vnode-c1-node-1"),
        (naming.virtual_node("c1", "node-1.example"), "vnode-c1-node-1.example"),
        (naming.virtual_node("c1", "x" * 54), "vnode-c1-" + "x" * 54),
        (
            naming.virtual_node("c1", "x" * 55),
            "vnode-c1-xxxxxxxxxxxxxxxxxxxxx-87b51921a730a579b3862eee917c128b",
        ),
        (
            naming.virtual_node("cls-12345678", NODE),
            "vnode-cls-12345678-ip-10-0-0-1-4650d0ccb60c1504ae83e5d82c79007d",
        ),
        (naming.physical_name("web-0", "team-a"), "web-0-c8171c577b2ff4af01acdbe62ac61227"),
        (
            naming.physical_name("a-rather-long-deployment-name-7d9f8b6c5-abcde", "team-a"),
            "a-rather-long-deployment-name--cc413d2d257dfbd39f60848a4d46ce5b",
        ),
        (naming.physical_name("pv-1"), "pv-1-8cb1e6436dce562d7538b2167b7c4b84"),
        (
            naming.token_secret("web-0", "team-a", volume="kube-api-access-x7k2p", uid=UID),
            "web-0-kube-api-access-x7k2p-0f-699e746e9aae0d9db5662bd21ebb00a7",
        ),
        (naming.log_config("app-logs"), "app-logs-301283"),
        (naming.log_config("app-logs", 2), "app-logs-g2-9df604"),
        (naming.log_config("l" * 70), "l" * 54 + "-c1d948"),
        (naming.syncer_deployment("c1"), "kubeocean-syncer-c1"),
        (naming.proxier_deployment("c1"), "kubeocean-proxier-c1"),
        (naming.proxier_service("c1"), "kubeocean-proxier-c1-svc"),
        (naming.syncer_deployment("c1", TAPESTRY), "tapestry-syncer-c1"),
        (naming.tls_secret("c1"), "c1-logs-proxy-tls"),
        (naming.manager_election(), "kubeocean-manager-leader"),
        (naming.syncer_election("my-binding"), "kubeocean-syncer-my-binding"),
        (naming.signing_request_prefix("b"), "kubeocean-proxier-b-"),
        (naming.signing_request("b", "pod-0", now_ns=123), "kubeocean-proxier-b-pod-0-123"),
        (naming.signing_request("b", "", now_ns=123), "kubeocean-proxier-b-unknown-pod-123"),
    ],
)
def test_names_are_those_of_the_contract(name: str, expected: str) -> None:
    assert name == expected


@pytest.mark.parametrize(
    ("vnode", "port"),
    [("vnode-c1-node-1", 65529), ("foobar", 54688), ("vnode-cls-12345678-10.0.0.1", 43646)],
)
def test_ports_are_those_of_the_contract(vnode: str, port: int) -> None:
    assert naming.proxier_port(vnode) == port


@pytest.mark.parametrize(
    ("text", "hash_"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)
def test_the_hash_of_ports_is_fnv_1a(text: str, hash_: int) -> None:
    assert naming._fnv1a32(text.encode()) == hash_


def test_ports_are_tried_upwards_and_around() -> None:
    ports = list(naming.proxier_ports("vnode-c1-node-1"))
    assert ports[:9] == [*range(65529, 65536), 15000, 15001]
    assert sorted(ports) == list(range(15000, 65536))


def test_a_cut_does_not_end_in_a_dot() -> None:
    name = "abcdefghijklmnopqrstuvwxyz012.example"
    digest = "17b127cdea863c52b3201ac9b91d8ddf"
    assert naming.physical_name(name, "team-a") == f"abcdefghijklmnopqrstuvwxyz012-{digest}"


def test_the_host_ports_of_a_node_decide_the_name_of_their_pod() -> None:
    http, https = ("0.0.0.0", "TCP", 80), ("0.0.0.0", "TCP", 443)
    name = naming.host_port_pod("vnode-c1-a", [http, https])
    assert name.startswith("fake-pod-for-hostport-")
    assert name == naming.host_port_pod("vnode-c1-a", [https, http])
    assert name != naming.host_port_pod("vnode-c1-a", [http])
    assert name != naming.host_port_pod("vnode-c1-b", [http, https])
    check_subdomain(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("node-1.example", "node-1.example"),
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 30 + "-c1bb4f81d892b2d57947682aeb252456"),
        ("fd00::1", "fd00--1-30b1bb5872fa164b08e473b88f84277f"),
        ("::", "4501c091b0366d76ea3218b6cfdd8097"),
    ],
)
def test_a_label_value_is_the_text_if_it_can_be(text: str, value: str) -> None:
    assert naming.label_value(text) == value


# Names that Kubernetes accepts

_ALNUM = "abcdefghijklmnopqrstuvwxyz0123456789"


def _label(longest: int) -> st.SearchStrategy[str]:
    middle = st.text(_ALNUM + "-", max_size=longest - 2)
    ends = st.text(_ALNUM, min_size=1, max_size=1)
    return ends | st.builds("".join, st.tuples(ends, middle, ends))


labels = _label(63)
subdomains = (
    st.lists(_label(40), min_size=1, max_size=8).map(".".join).filter(lambda name: len(name) <= 253)
)
cluster_ids = _label(24)


def is_dns(name: str, longest: int = 63) -> bool:
    check_subdomain(name)
    return len(name) <= longest


@given(cluster_ids, subdomains)
@example("a", "b" * 21 + "." + "c" * 50)  # the cut falls on the dot
def test_virtual_nodes_have_dns_names(cluster_id: str, node: str) -> None:
    name = naming.virtual_node(cluster_id, node)
    assert is_dns(name)
    check_label_value(name)  # it is the value of kubernetes.io/hostname
    assert name.startswith(naming.virtual_node_prefix(cluster_id))


def test_the_prefix_of_virtual_nodes_names_their_cluster() -> None:
    assert naming.virtual_node_prefix("c1") == "vnode-c1-"
    assert naming.virtual_node_prefix("c" * 40) == "vnode-" + "c" * 24
    assert not naming.virtual_node("c12", "node-1").startswith(naming.virtual_node_prefix("c1"))


@given(subdomains, labels, labels)
@example("a" * 29 + "." + "b", "c", "d")
def test_copies_have_dns_names(name: str, namespace: str, volume: str) -> None:
    assert is_dns(naming.physical_name(name, namespace))
    assert is_dns(naming.physical_name(name))
    assert is_dns(naming.second_physical_name(name, namespace, uid="u"))
    assert is_dns(naming.token_secret(name, namespace, volume=volume, uid=UID))


@given(subdomains, st.none() | st.integers(0, 10_000))
@example("a" * 53 + "." + "b", None)
def test_log_configs_have_dns_names(name: str, group: int | None) -> None:
    assert is_dns(naming.log_config(name, group))


@given(cluster_ids)
def test_objects_of_a_binding_have_dns_names(cluster_id: str) -> None:
    service = naming.proxier_service(cluster_id)
    assert len(service) <= 63
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", service)  # Services are stricter
    for name in (
        naming.syncer_deployment(cluster_id),
        naming.proxier_deployment(cluster_id),
        naming.tls_secret(cluster_id),
    ):
        assert is_dns(name)


@given(subdomains, subdomains, st.integers(0, 2**63 - 1))
@example("b" * 201 + "." + "c" * 10, "d" * 253, 1)
@example("b" * 253, "d", 1)
def test_requests_and_leases_of_a_binding_have_dns_names(
    binding: str, pod: str, now_ns: int
) -> None:
    request = naming.signing_request(binding, pod, now_ns=now_ns)
    assert is_dns(request, 253)
    assert request.startswith(naming.signing_request_prefix(binding))
    assert is_dns(naming.syncer_election(binding), 253)
    assert is_dns(naming.syncer_ring(binding), 40)


@given(st.lists(subdomains, min_size=2, max_size=2, unique=True), labels)
def test_other_names_give_other_names(pair: list[str], namespace: str) -> None:
    one, other = pair
    assert naming.virtual_node("c", one) != naming.virtual_node("c", other)
    assert naming.physical_name(one, namespace) != naming.physical_name(other, namespace)
    assert naming.physical_name(one, namespace) != naming.physical_name(one)
    second = naming.second_physical_name(one, namespace, uid="u1")
    assert second != naming.physical_name(one, namespace)
    assert second != naming.second_physical_name(one, namespace, uid="u2")
    assert naming.syncer_election(one) != naming.syncer_election(other)
    assert naming.syncer_ring(one) != naming.syncer_ring(other)


@given(st.text(max_size=300))
def test_a_label_value_can_always_be_one(text: str) -> None:
    check_label_value(naming.label_value(text))


@given(st.text(max_size=100))
def test_a_port_is_one_that_the_proxier_may_have(vnode: str) -> None:
    assert 15000 <= naming.proxier_port(vnode) <= 65535
