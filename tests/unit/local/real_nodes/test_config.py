"""Configuration files and arguments of the programs of a node."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import yaml

from kubeocean.local import components
from kubeocean.local.real_nodes import config as node_config
from kubeocean.local.real_nodes.images import PAUSE
from kubeocean.local.real_nodes.network import BLOCKS, Subnet

SUBNET = Subnet(BLOCKS[0], 7)


def test_containerd_starts_sandboxes_from_our_own_image() -> None:
    config = tomllib.loads(node_config.containerd(cni_plugins="/somewhere"))
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == PAUSE
    assert cri["cni"] == {"bin_dir": "/somewhere", "conf_dir": "/run/kubeocean/cni"}
    assert cri["containerd"]["runtimes"]["runc"]["options"] == {"SystemdCgroup": False}
    assert config["grpc"]["address"] == node_config.CONTAINERD_SOCKET


def test_pods_get_addresses_of_the_node() -> None:
    bridge, _ = json.loads(node_config.cni(SUBNET))["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.215.7.128/25", "gateway": "10.215.7.129"}]]


def test_kubelets_require_authentication_and_authorization() -> None:
    config = yaml.safe_load(node_config.kubelet(cgroup="/kubeocean/x"))
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["x509"] == {"clientCAFile": "/run/kubeocean/ca.crt"}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["cgroupRoot"] == "/kubeocean/x"


def test_entries_of_a_kubelet_can_be_replaced() -> None:
    config = yaml.safe_load(node_config.kubelet(cgroup="/x", overrides={"maxPods": 5, "port": 1}))
    assert (config["maxPods"], config["port"]) == (5, 1)


def test_a_kubelet_has_its_name_address_labels_and_taints() -> None:
    command = node_config.kubelet_command(
        "n1", SUBNET, labels={"zone": "a", "disk": "ssd"}, taints=["lease=yes:NoSchedule"]
    )
    assert {
        "--hostname-override=n1",
        "--node-ip=10.215.7.2",
        "--node-labels=zone=a,disk=ssd",
        "--register-with-taints=lease=yes:NoSchedule",
    } <= set(command)
    bare = node_config.kubelet_command("n1", SUBNET, labels={}, taints=[])
    assert not any("labels" in flag or "taints" in flag for flag in bare)


def test_the_service_address_is_the_one_that_api_servers_have_certificates_for() -> None:
    plan = components.ControlPlanePlan("x", Path("/x"), components.COMPONENTS)
    _, subject = components.identities(plan)["apiserver"]
    assert node_config.SERVICE_ADDRESS in subject.sans
