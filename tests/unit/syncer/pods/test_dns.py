"""DNS of a physical pod: names resolve as they do for the virtual pod."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.dns import translate_dns, uses_cluster_dns
from support.forge_inputs import context_for, vpod

NDOTS = {"name": "ndots", "value": "5"}
SEARCHES = ["team.svc.cluster.local", "svc.cluster.local", "cluster.local"]
OURS: Json = {"nameservers": ["10.9.8.6"], "searches": SEARCHES, "options": [NDOTS]}
CLUSTER_DNS: Json = {"dnsPolicy": "None", "dnsConfig": OURS}
CONFIG: Json = {"nameservers": ["1.1.1.1"], "searches": ["corp"], "options": [{"name": "debug"}]}


def dns(**spec: Any) -> Json:
    pod = vpod(**spec)
    return translate_dns(pod, context_for(pod))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"dnsPolicy": "ClusterFirst"}, CLUSTER_DNS),
        ({"dnsPolicy": ""}, CLUSTER_DNS),
        ({"dnsPolicy": "ClusterFirstWithHostNet"}, CLUSTER_DNS),
        ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, CLUSTER_DNS),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, {"dnsPolicy": "Default"}),
        ({"dnsPolicy": "Default"}, {"dnsPolicy": "Default"}),
        (
            {"dnsPolicy": "ClusterFirst", "hostNetwork": True, "dnsConfig": CONFIG},
            {"dnsPolicy": "Default", "dnsConfig": CONFIG},
        ),
        (
            {"dnsPolicy": "None", "dnsConfig": CONFIG},
            {"dnsPolicy": "None", "dnsConfig": CONFIG},
        ),
        (
            {"dnsPolicy": "Default", "dnsConfig": CONFIG},
            {"dnsPolicy": "Default", "dnsConfig": CONFIG},
        ),
    ],
)
def test_a_dns_policy_selects_the_computing_clusters_dns_or_the_nodes(
    spec: Json, expected: Json
) -> None:
    assert dns(**spec) == expected


def test_the_dns_config_of_a_pod_is_merged() -> None:
    assert dns(dnsPolicy="ClusterFirst", dnsConfig=CONFIG)["dnsConfig"] == {
        "nameservers": ["10.9.8.6", "1.1.1.1"],
        "searches": [*SEARCHES, "corp"],
        "options": [NDOTS, {"name": "debug"}],
    }


def test_a_dns_option_of_the_pod_overrides_the_default() -> None:
    options = [{"name": "ndots", "value": "2"}, {"name": "timeout", "value": "1"}]
    config = dns(dnsPolicy="ClusterFirst", dnsConfig={"options": options})["dnsConfig"]
    assert config["options"] == options


def test_duplicate_nameservers_and_searches_are_removed() -> None:
    again = {"nameservers": ["10.9.8.6"], "searches": ["cluster.local", "corp"]}
    config = dns(dnsPolicy="ClusterFirst", dnsConfig=again)["dnsConfig"]
    assert config["nameservers"] == ["10.9.8.6"]
    assert config["searches"] == [*SEARCHES, "corp"]


def test_the_dns_config_is_cut_to_what_a_server_accepts() -> None:
    config = {
        "nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3"],
        "searches": [f"s{i}.example" for i in range(32)],
    }
    merged = dns(dnsPolicy="ClusterFirst", dnsConfig=config)["dnsConfig"]
    assert merged["nameservers"] == ["10.9.8.6", "1.1.1.1", "2.2.2.2"]
    assert len(merged["searches"]) == 32
    assert merged["searches"][:4] == [*SEARCHES, "s0.example"]

    long = [".".join([f"{i:x}" * 60] * 4) for i in range(10)]
    merged = dns(dnsPolicy="ClusterFirst", dnsConfig={"searches": long})["dnsConfig"]
    assert len(" ".join(merged["searches"])) <= 2048
    assert merged["searches"][3:] == long[: len(merged["searches"]) - 3]


def test_search_domains_follow_the_cluster_domain() -> None:
    pod = vpod(dnsPolicy="ClusterFirst")
    config = translate_dns(pod, context_for(pod, cluster_domain="corp.example"))["dnsConfig"]
    assert config["searches"] == ["team.svc.corp.example", "svc.corp.example", "corp.example"]
    config = translate_dns(pod, context_for(pod, cluster_domain=""))["dnsConfig"]
    assert config["searches"] == []


def test_without_a_cluster_dns_a_pod_uses_the_dns_of_its_node() -> None:
    pod = vpod(dnsPolicy="ClusterFirst", dnsConfig=CONFIG)
    expected = translate_dns(pod, context_for(pod, dns=None))
    assert expected == {"dnsPolicy": "Default", "dnsConfig": CONFIG}


@pytest.mark.parametrize(
    ("spec", "uses"),
    [
        ({}, True),
        ({"hostNetwork": True}, False),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, True),
        ({"dnsPolicy": "Default"}, False),
        ({"dnsPolicy": "None"}, False),
    ],
)
def test_a_pod_uses_cluster_dns_by_its_policy_and_network(spec: Json, uses: bool) -> None:
    assert uses_cluster_dns({"spec": spec}) is uses
