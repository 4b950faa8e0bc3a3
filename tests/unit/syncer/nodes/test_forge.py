"""Virtual nodes, as they should be and as they are made so."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from kubeocean.api.group import TAPESTRY
from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.nodes.foreign_metadata import is_copied_annotation, is_kubelet_label
from kubeocean.syncer.nodes.forge import (
    LentNode,
    changes,
    forge,
    inner_ip,
    left_out,
    notice,
    refreshed,
)
from kubeocean.syncer.nodes.metadata import Expected

NOW, LATER = "2026-11-15T00:00:00Z", "2026-11-15T00:00:10Z"
READY = {"type": "Ready", "status": "True", "lastHeartbeatTime": NOW, "lastTransitionTime": NOW}


def pnode(**spec: object) -> Json:
    return {
        "metadata": {
            "name": "n1",
            "uid": "u1",
            "labels": {"zone": "z"},
            "annotations": {"note": "hi", "projectcalico.org/IPv4Address": "10.0.0.1/24"},
        },
        "spec": spec,
        "status": {
            "conditions": [READY],
            "nodeInfo": {"kubeletVersion": "v1"},
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
            ],
        },
    }


def lent(node: Json | None = None) -> LentNode:
    return LentNode(
        pnode=node or pnode(),
        vnode="vnode-c1-n1",
        binding="b",
        cluster_id="c1",
        policy="p",
        details="p(cpu=50%)",
        offered={"cpu": Quantity.parse("4"), "memory": Quantity.parse("8Gi")},
        default_taint=True,
        reclaim_taints=(),
        unschedulable=False,
        proxier_ip="",
        proxier_port=20000,
        metrics_port=9006,
    )


def test_a_new_node_has_all_that_the_contract_asks_for() -> None:
    node = forge(lent(), now=NOW)
    meta = node["metadata"]
    assert meta["name"] == "vnode-c1-n1"
    assert meta["finalizers"] == ["kubeocean.io/vnode"]
    assert meta["labels"] == {
        "zone": "z",
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": "b",
        "kubeocean.io/physical-cluster-id": "c1",
        "kubeocean.io/physical-node-name": "n1",
        "kubeocean.io/physical-node-uid": "u1",
        "kubeocean.io/physical-node-innerip": "10.0.0.1",
        "kubeocean.io/proxier_port": "20000",
        "kubeocean.io/policy-applied": "p",
        "kubeocean.io/cluster-id": "c1",
        "kubeocean.io/physical-node": "n1",
        "kubeocean.io/node-type": "virtual",
        "type": "virtual-kubelet",
        "node.kubernetes.io/instance-type": "vnode",
        "beta.kubernetes.io/instance-type": "vnode",
        "kubernetes.io/hostname": "vnode-c1-n1",
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
    }
    annotations = dict(meta["annotations"])
    wanted = Expected.decode(annotations.pop("kubeocean.io/expected-metadata"))
    assert wanted.labels == meta["labels"]
    assert annotations == {
        "note": "hi",
        "kubeocean.io/physical-node-name": "n1",
        "kubeocean.io/physical-node-uid": "u1",
        "kubeocean.io/policies-applied": "p",
        "kubeocean.io/policy-details": "p(cpu=50%)",
        "kubeocean.io/cluster-binding": "b",
        "kubeocean.io/resource-policy": "p",
        "kubeocean.io/prometheus-url": "<pending>:9006/vnode-c1-n1",
        "kubeocean.io/last-sync-time": NOW,
    }
    assert node["spec"] == {"taints": [{"key": "kubeocean.io/vnode", "effect": "NoSchedule"}]}
    status = node["status"]
    assert status["capacity"] == status["allocatable"] == {"cpu": "4", "memory": "8Gi"}
    assert status["addresses"] == [
        {"type": "InternalIP", "address": ""},
        {"type": "Hostname", "address": "vnode-c1-n1"},
    ]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 20000}}
    assert status["conditions"] == [READY]


def test_taints_are_mirrored_renamed_or_left_to_their_cluster() -> None:
    taints = [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "kubeocean.io/out-of-time-windows", "effect": "NoExecute"},
    ]
    node = forge(replace(lent(pnode(taints=taints)), default_taint=False), now=NOW)
    assert node["spec"]["taints"] == [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "kubeocean.io/physical-node-unschedulable", "effect": "NoSchedule"},
    ]


def test_another_name_of_the_project_has_other_keys() -> None:
    node = forge(replace(lent(), domain=TAPESTRY), now=NOW)
    assert node["metadata"]["labels"]["tapestry.io/managed-by"] == "tapestry"
    assert not [key for key in node["metadata"]["labels"] if key.startswith("kubeocean.io")]


def test_without_a_difference_nothing_is_written() -> None:
    node = forge(lent(), now=NOW)
    assert not changes(node, lent(), now=LATER)


def test_a_newer_heartbeat_alone_is_no_difference() -> None:
    node = forge(lent(), now=NOW)
    newer = pnode()
    newer["status"]["conditions"] = [READY | {"lastHeartbeatTime": LATER}]
    assert not changes(node, lent(newer), now=LATER)
    newer["status"]["conditions"] = [READY | {"status": "False"}]
    change = changes(node, lent(newer), now=LATER)
    assert change.main == {}
    assert change.status["status"]["conditions"][0]["status"] == "False"
    assert change.status["metadata"]["annotations"] == {"kubeocean.io/last-sync-time": LATER}


def test_a_resource_that_the_worker_node_lost_is_removed() -> None:
    node = forge(lent(), now=NOW)
    less = replace(lent(), offered={"cpu": Quantity.parse("2")})
    change = changes(node, less, now=LATER)
    assert change.status["status"]["capacity"] == {"cpu": "2", "memory": None}


def test_a_finalizer_that_was_removed_is_added_again() -> None:
    node = forge(lent(), now=NOW)
    node["metadata"]["finalizers"] = ["theirs"]
    change = changes(node, lent(), now=LATER)
    assert change.main["metadata"]["finalizers"] == ["theirs", "kubeocean.io/vnode"]


def test_a_deletion_that_is_undone_leaves_the_node_schedulable() -> None:
    going = Taint("kubeocean.io/vnode-deleting", "true", "NoSchedule", NOW)
    node = forge(replace(lent(), reclaim_taints=(going,), unschedulable=True), now=NOW)
    assert node["spec"]["unschedulable"] is True
    node["metadata"]["annotations"]["kubeocean.io/deletion-taint-time"] = NOW
    change = changes(node, lent(), now=LATER)
    assert change.main["spec"]["unschedulable"] is None
    assert [t["key"] for t in change.main["spec"]["taints"]] == ["kubeocean.io/vnode"]
    removed = change.main["metadata"]["annotations"]["kubeocean.io/deletion-taint-time"]
    assert removed is None


def test_a_cordon_by_a_user_stays() -> None:
    node = forge(lent(), now=NOW)
    node["spec"]["unschedulable"] = True
    assert not changes(node, lent(), now=LATER)


def test_a_cordon_that_a_user_made_before_a_reclaim_outlasts_the_reclaim() -> None:
    going = Taint("kubeocean.io/vnode-deleting", "true", "NoSchedule", NOW)
    for by_user in (True, False):
        node = forge(lent(), now=NOW)
        if by_user:
            node["spec"]["unschedulable"] = True
        announced = merged(node, notice(node, (going,), True, lent().domain))
        assert announced["spec"]["unschedulable"] is True
        change = changes(announced, lent(), now=LATER)
        lifted = merged(announced, change.main)
        assert lifted["spec"].get("unschedulable") is (True if by_user else None)
        assert "kubeocean.io/cordoned" not in lifted["metadata"]["annotations"]
        assert not changes(lifted, lent(), now=LATER)


def test_conditions_that_others_gave_a_virtual_node_stay() -> None:
    kernel = {"type": "KernelDeadlock", "status": "False"}
    theirs = {"type": "example.com/Checked", "status": "True"}
    before = lent()
    before.pnode["status"]["conditions"].append(kernel)
    node = copy.deepcopy(forge(before, now=NOW))
    node["status"]["conditions"].append(theirs)
    assert not changes(node, before, now=LATER)
    after = copy.deepcopy(before)
    after.pnode["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    change = changes(node, after, now=LATER)
    assert change.status["status"]["conditions"] == [
        {"type": "Ready", "status": "False"},
        theirs,
    ]


def test_the_conditions_of_a_node_that_no_policy_lends_follow_the_worker() -> None:
    given = lent()
    node = forge(given, now=NOW)
    dead = copy.deepcopy(given.pnode)
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    address = {"proxier_ip": "", "metrics_port": 1, "name": given.vnode, "domain": given.domain}
    body = refreshed(node, dead, None, takes_pods=True, **address)
    assert body == {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert refreshed(merged(node, body), dead, None, takes_pods=True, **address) == {}
    assert refreshed(node, None, None, takes_pods=True, **address) == {}
    less = refreshed(node, given.pnode, {"cpu": Quantity.whole(1)}, takes_pods=True, **address)[
        "status"
    ]
    assert less["allocatable"]["cpu"] == less["capacity"]["cpu"] == "1"
    assert less["allocatable"]["memory"] is None


def merged(node: Json, patch: Json) -> Json:
    """Apply a JSON merge patch."""
    result = copy.deepcopy(node)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def test_a_notice_changes_nothing_but_the_spec() -> None:
    node = forge(lent(), now=NOW)
    going = Taint("kubeocean.io/vnode-deleting", "true", "NoSchedule", NOW)
    body = notice(node, (going,), True, lent().domain)
    assert body["spec"]["unschedulable"] is True
    assert [t["key"] for t in body["spec"]["taints"]] == [
        "kubeocean.io/vnode",
        "kubeocean.io/vnode-deleting",
    ]
    announced = copy.deepcopy(node)
    announced["spec"] = body["spec"]
    assert notice(announced, (going,), True, lent().domain) == {}


def test_addresses_and_annotations_are_chosen() -> None:
    assert inner_ip({"status": {}}) == ""
    refused = ("csi.volume.kubernetes.io/nodeid", "io.cilium.network.ipv4", "k8s.ovn.org/x")
    assert not any(is_copied_annotation(key) for key in refused)
    assert is_copied_annotation("example.com/owner")


@pytest.mark.parametrize(
    "key",
    [
        "zone",
        "example.com/pool",
        "x-k8s.io/x",  # no subdomain of k8s.io
        "notkubernetes.io/x",
        "kubernetes.io",  # a name without a domain
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "kubelet.kubernetes.io/any",
        "a.kubelet.kubernetes.io/any",
        "node.kubernetes.io/any",
        "nfd.node.kubernetes.io/any",
    ],
)
def test_a_node_has_the_labels_that_a_kubelet_may_set(key: str) -> None:
    assert is_kubelet_label(key)


@pytest.mark.parametrize(
    "key",
    [
        "node-restriction.kubernetes.io/pci",
        "a.node-restriction.kubernetes.io/pci",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/role",
        "topology.kubernetes.io/rack",
        "beta.kubernetes.io/other",
        "xnode.kubernetes.io/any",
        "k8s.io/x",
        "kops.k8s.io/instancegroup",
    ],
)
def test_a_node_lacks_the_labels_that_no_kubelet_may_set(key: str) -> None:
    assert not is_kubelet_label(key)
    node = pnode()
    node["metadata"]["labels"][key] = "x"
    assert key not in forge(lent(node), now=NOW)["metadata"]["labels"]
    trusting = replace(lent(node), trusts_fully=True)
    assert forge(trusting, now=NOW)["metadata"]["labels"][key] == "x"


@pytest.mark.parametrize("trusts_fully", [False, True])
def test_our_own_labels_are_not_the_workers(trusts_fully: bool) -> None:
    node = pnode()
    node["metadata"]["labels"] |= {
        "kubeocean.io/cluster-binding": "other",
        "kubeocean.io/managed-by": "other",
        "kubernetes.io/hostname": "n1",
        "node.kubernetes.io/instance-type": "large",
        "type": "metal",
    }
    made = replace(lent(node), trusts_fully=trusts_fully)
    assert (
        forge(made, now=NOW)["metadata"]["labels"] == forge(lent(), now=NOW)["metadata"]["labels"]
    )


def test_labels_of_our_domain_are_never_a_kubelets() -> None:
    node = pnode()
    node["metadata"]["labels"]["kubeocean.io/invented"] = "x"
    assert "kubeocean.io/invented" not in forge(lent(node), now=NOW)["metadata"]["labels"]


@pytest.mark.parametrize(
    "key",
    [
        "cluster.x-k8s.io/machine",
        "machine.openshift.io/machine",
        "machineconfiguration.openshift.io/desiredConfig",
        "karpenter.sh/do-not-disrupt",
        "k3s.io/node-args",
        "etcd.k3s.cattle.io/node-name",
        "rke.cattle.io/external-ip",
        "node.alpha.kubernetes.io/ttl",
        "cluster-autoscaler.kubernetes.io/scale-down-disabled",
        "node.machine.sapcloud.io/trigger-deletion-by-mcm",
    ],
)
def test_annotations_on_which_cluster_managers_act_stay_in_the_worker(key: str) -> None:
    node = pnode()
    node["metadata"]["annotations"][key] = "x"
    annotations = forge(lent(node), now=NOW)["metadata"]["annotations"]
    assert key not in annotations
    assert annotations["note"] == "hi"


def test_a_node_of_an_earlier_version_loses_labels_that_are_no_longer_allowed() -> None:
    node = pnode()
    node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    node["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true"
    before = forge(replace(lent(node), trusts_fully=True), now=NOW)
    before["metadata"]["labels"]["node-role.kubernetes.io/users"] = ""
    metadata = changes(before, lent(node), now=LATER).main["metadata"]
    assert metadata["labels"] == {"node-role.kubernetes.io/control-plane": None}
    assert metadata["annotations"]["karpenter.sh/do-not-disrupt"] is None


MOST = 256 * 1024  # limit of API servers


def annotated(**annotations: str) -> LentNode:
    node = pnode()
    node["metadata"]["annotations"] = annotations
    return lent(node)


def bytes_of(annotations: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


def test_large_annotations_of_the_worker_are_shown_once() -> None:
    made = annotated(inventory="x" * 130_000, note="hi")
    annotations = forge(made, now=NOW)["metadata"]["annotations"]
    assert annotations["inventory"] == "x" * 130_000
    assert bytes_of(annotations) < 140_000
    remembered = Expected.decode(annotations["kubeocean.io/expected-metadata"]).annotations
    assert (remembered["inventory"], remembered["note"]) == ("", "hi")
    assert left_out(made, annotations) == ()

    node = forge(made, now=NOW)
    assert not changes(node, made, now=LATER)
    main = changes(node, annotated(note="hi"), now=LATER).main
    assert main["metadata"]["annotations"]["inventory"] is None


def test_the_largest_annotations_are_omitted_if_all_together_are_too_large() -> None:
    small = {f"a{i}": "ü" * 1000 for i in range(20)}
    made = annotated(large="x" * 150_000, larger="y" * 160_000, **small)
    annotations = forge(made, now=NOW)["metadata"]["annotations"]
    assert bytes_of(annotations) < MOST
    assert left_out(made, {}) == ("larger",)
    assert annotations.keys() >= {"large", *small}
    assert left_out(made, annotations) == ("larger",)


def test_annotations_of_users_count_against_the_limit() -> None:
    made = annotated(large="x" * 150_000, note="hi")
    node = forge(made, now=NOW)
    node["metadata"]["annotations"]["users"] = "u" * 100_000
    change = changes(node, made, now=LATER)
    assert change.main["metadata"]["annotations"]["large"] is None
    assert left_out(made, node["metadata"]["annotations"]) == ("large",)
    del node["metadata"]["annotations"]["large"]
    assert left_out(made, node["metadata"]["annotations"]) == ("large",)


def test_a_node_that_takes_no_pods_has_none_allocatable_and_keeps_its_capacity() -> None:
    amounts = {"cpu": "4", "pods": "110"}
    offered = {name: Quantity.parse(amount) for name, amount in amounts.items()}
    open_ = replace(lent(), offered=offered)
    closed = replace(open_, takes_pods=False)
    status = forge(closed, now=NOW)["status"]
    assert status["capacity"] == amounts
    none = {"cpu": "4", "pods": "0"}
    assert status["allocatable"] == none
    node = forge(open_, now=NOW)
    difference = {"allocatable": {"pods": "0"}}
    assert changes(node, closed, now=NOW).status["status"] == difference

    address = {"proxier_ip": "", "metrics_port": 9006, "name": "v", "domain": open_.domain}
    body = refreshed(node, None, None, takes_pods=False, **address)
    assert body == {"status": difference}
    assert refreshed(merged(node, body), None, None, takes_pods=False, **address) == {}


def test_texts_of_the_worker_are_copied_without_escape_sequences() -> None:
    node = pnode()
    node["status"]["conditions"] = [{"type": "Ready", "status": "True", "message": "\x1b[2Jgone"}]
    node["status"]["nodeInfo"] = {"kernelVersion": "6\x07"}
    status = forge(lent(node), now=NOW)["status"]
    assert status["conditions"][0]["message"] == " [2Jgone"
    assert status["nodeInfo"]["kernelVersion"] == "6 "
