"""The vocabulary: the strings of the contract, and those of another domain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kubeocean
from kubeocean.api import group
from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import check_label_key, check_subdomain

# Attribute and string, as in the contract: labels, annotations, taints, finalizers
KEYS = {
    "managed_by": "kubeocean.io/managed-by",
    "cluster_binding": "kubeocean.io/cluster-binding",
    "physical_cluster_id": "kubeocean.io/physical-cluster-id",
    "physical_node_name": "kubeocean.io/physical-node-name",
    "physical_node_uid": "kubeocean.io/physical-node-uid",
    "physical_node_inner_ip": "kubeocean.io/physical-node-innerip",
    "proxier_port": "kubeocean.io/proxier_port",
    "policy_applied": "kubeocean.io/policy-applied",
    "host_port_pod": "kubeocean.io/hostport-fake-pod",
    "virtual_namespace": "kubeocean.io/virtual-namespace",
    "workload_type": "kubeocean.io/workload-type",
    "workload_name": "kubeocean.io/workload-name",
    "service_account_token": "kubeocean.io/service-account-token",
    "used_by_pv": "kubeocean.io/used-by-pv",
    "physical_name": "kubeocean.io/physical-name",
    "virtual_log_config": "kubeocean.io/virtual-logconfig",
    "component": "kubeocean.io/component",
    "cluster_id": "kubeocean.io/cluster-id",
    "node_name": "kubeocean.io/node-name",
    "virtual_pod_namespace": "kubeocean.io/virtual-pod-namespace",
    "virtual_pod_name": "kubeocean.io/virtual-pod-name",
    "virtual_pod_uid": "kubeocean.io/virtual-pod-uid",
    "virtual_node_name": "kubeocean.io/virtual-node-name",
    "physical_pod_namespace": "kubeocean.io/physical-pod-namespace",
    "physical_pod_name": "kubeocean.io/physical-pod-name",
    "physical_pod_uid": "kubeocean.io/physical-pod-uid",
    "last_sync_time": "kubeocean.io/last-sync-time",
    "policies_applied": "kubeocean.io/policies-applied",
    "policy_details": "kubeocean.io/policy-details",
    "expected_metadata": "kubeocean.io/expected-metadata",
    "prometheus_url": "kubeocean.io/prometheus-url",
    "deletion_taint_time": "kubeocean.io/deletion-taint-time",
    "physical_csinode_uid": "kubeocean.io/physical-csinode-uid",
    "physical_namespace": "kubeocean.io/physical-namespace",
    "virtual_name": "kubeocean.io/virtual-name",
    "running_daemonset": "kubeocean.io/running-daemonset",
    "service_account": "kubeocean.io/service-account",
    "certificate_renewed": "kubeocean.io/certificate-renewed",
    "renewal_reason": "kubeocean.io/renewal-reason",
    "physical_cluster_name": "kubeocean.io/physical-cluster-name",
    "logs_proxy_enabled": "kubeocean.io/logs-proxy-enabled",
    "logs_proxy_secret_name": "kubeocean.io/logs-proxy-secret-name",
    "logs_proxy_secret_namespace": "kubeocean.io/logs-proxy-secret-namespace",
    "taint_vnode": "kubeocean.io/vnode",
    "taint_physical_unschedulable": "kubeocean.io/physical-node-unschedulable",
    "taint_out_of_time_windows": "kubeocean.io/out-of-time-windows",
    "taint_vnode_deleting": "kubeocean.io/vnode-deleting",
    "finalizer_manager": "kubeocean.io/clusterbinding-manager",
    "finalizer_syncer": "kubeocean.io/clusterbinding-syncer",
    "finalizer_vnode": "kubeocean.io/vnode",
    "finalizer_policy": "policy.kubeocean.io/finalizer",
    "finalizer_virtual_pod": "kubeocean.io/virtual-pod",
    "finalizer_synced_resource": "kubeocean.io/synced-resource",
}
NEW = {
    *("node_type", "physical_node", "resource_policy"),  # of the design documents
    *(
        "computing_cluster_id",
        "cordoned",
        "drained",
        "expected_spec",
        "force_deletion",
        "local_ocean",
    ),
    *("fleet", "fleet_heartbeat", "fleet_identity"),
    "last_eviction_time",
    "log_level",
    *("management_cluster_id", "rolled_out_for"),
    *("rollout_digest", "sync_back", "synced_hash", "token_due", "token_expires", "virtual_uid"),
    "token_request",
    "worker_cluster_id",
}
OBJECTS = {
    "manager": "kubeocean-manager",
    "syncer": "kubeocean-syncer",
    "proxier": "kubeocean-proxier",
    "metrics": "kubeocean-metrics",  # new
    "egress_policy": "kubeocean-syncer-egress",  # new
    "system_namespace": "kubeocean-system",
    "host_port_namespace": "kubeocean-fake",
    "worker_namespace": "kubeocean-worker",
    "priority_class": "kubeocean-default",
}


def attributes(kind: type) -> set[str]:
    """Return the names of a domain's keys, or of its objects."""
    return {name for name in dir(Domain) if isinstance(getattr(Domain, name), kind)}


@pytest.mark.parametrize(("attribute", "key"), KEYS.items())
def test_a_key_is_spelled_as_in_the_contract(attribute: str, key: str) -> None:
    assert getattr(DEFAULT, attribute) == key


def test_every_key_is_in_the_contract_or_new() -> None:
    assert attributes(group._Key) == KEYS.keys() | NEW
    assert attributes(group._Object) == OBJECTS.keys()


@pytest.mark.parametrize("attribute", sorted(KEYS.keys() | NEW))
def test_another_domain_has_the_same_keys_under_its_own_name(attribute: str) -> None:
    ours, theirs = getattr(DEFAULT, attribute), getattr(TAPESTRY, attribute)
    assert theirs == ours.replace("kubeocean.io", "tapestry.io")
    for key in (ours, theirs):
        check_label_key(key)


@pytest.mark.parametrize(("attribute", "name"), OBJECTS.items())
def test_objects_are_named_after_the_product(attribute: str, name: str) -> None:
    assert getattr(DEFAULT, attribute) == name
    assert getattr(TAPESTRY, attribute) == name.replace("kubeocean", "tapestry")
    check_subdomain(name)


def test_keys_of_a_cluster_end_in_its_id() -> None:
    assert DEFAULT.synced_by("c1") == "kubeocean.io/synced-by-c1"
    assert DEFAULT.deleting("c1") == "kubeocean.io/deleting-c1"
    assert DEFAULT.finalizer_for("c1") == "kubeocean.io/finalizer-c1"
    assert TAPESTRY.finalizer_for("c1") == "tapestry.io/finalizer-c1"


def test_the_product_is_what_manages() -> None:
    assert DEFAULT.product == "kubeocean"
    assert TAPESTRY.product == "tapestry"
    assert Domain() == DEFAULT


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("kubeocean.io/anything", True),
        ("policy.kubeocean.io/finalizer", True),
        ("notkubeocean.io/a", False),
        ("tapestry.io/managed-by", False),
        ("managed-by", False),
        ("kubernetes.io/hostname", False),
    ],
)
def test_a_domain_knows_its_own_keys(key: str, ours: bool) -> None:
    assert DEFAULT.owns(key) is ours


def test_system_namespaces_are_those_whose_pods_stay() -> None:
    assert DEFAULT.system_namespaces == {
        *("kube-system", "kube-public", "kube-node-lease"),
        *("kubeocean-system", "kubeocean-fake"),
    }


@pytest.mark.parametrize("name", ["", "Kubeocean.io", "kubeocean.io/", "a b"])
def test_a_domain_is_a_dns_name(name: str) -> None:
    with pytest.raises(ConfigError, match="domain"):
        Domain(name)


def test_constants_are_those_of_the_contract() -> None:
    assert group.API_VERSION == "cloud.tencent.com/v1beta1"
    assert (group.METRICS_PORT, group.HEALTH_PORT, group.KUBELET_PORT) == (8080, 8081, 10250)
    assert (group.PROXIER_PORT_FIRST, group.PROXIER_PORT_LAST) == (15000, 65535)
    assert (group.VNODE_METRICS_PORT, group.PROXIER_PORT_FALLBACK) == (9006, 8080)
    assert str(group.SERVER_SERVICE) == "default/kubernetes-intranet"
    assert str(group.DNS_SERVICE) == "kube-system/kube-dns-intranet"
    assert sorted(group.EXCLUDED_INSTANCE_TYPES) == ["eklet", "external", "vnode"]
    assert group.PRIORITY_CLASS_VALUE == -10000
    assert group.SYNCER_TEMPLATES == "/etc/kubeocean/syncer-template"
    assert group.ENV_SYNCER_TEMPLATES == "KUBEOCEAN_SYNCER_TEMPLATE_DIR"


def test_all_that_is_public_is_listed() -> None:
    public = {
        name
        for name, value in vars(group).items()
        if name.isupper() and not name.startswith("_") and value is not None
    }
    assert public | {"Domain"} == set(group.__all__)


def test_no_other_module_spells_a_key() -> None:
    root = Path(kubeocean.__file__).parent
    key = re.compile(r"""["'][^"'\s]*(kubeocean|tapestry)\.io/""")
    spelled = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if key.search(path.read_text(encoding="utf-8"))
    }
    assert spelled <= {"api/fleet/names.py"}  # the fleet has a fixed domain of its own
