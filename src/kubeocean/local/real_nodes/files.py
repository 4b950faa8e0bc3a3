"""Node files: the files under `/run/kubeocean` that the programs of a real node read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubeocean.local import accounts
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.pki import Authority, Subject
from kubeocean.local.real_nodes import cgroups, network
from kubeocean.local.real_nodes import config as node_config
from kubeocean.local.real_nodes.checks import cni_plugins
from kubeocean.local.real_nodes.network import Subnet

__all__ = ["write_files"]


def write_files(
    directory: Path,
    *,
    node: str,
    subnet: Subnet,
    cluster: str,
    authority: Authority,
    overrides: Mapping[str, object],
) -> None:
    """Write the files of a node; the cluster's `authority` signs the kubelet's certificates."""
    user = f"system:node:{node}"
    serving = authority.issue(Subject(user, sans=(node, str(subnet.node)), server=True))
    asking = authority.issue(Subject(user, ("system:nodes",), client=True))
    kubeconfig = accounts.kubeconfig(
        cluster,
        f"https://{node_config.SERVICE_ADDRESS}:443",
        authority.certificate,
        user=user,
        credential=asking,
    )
    cgroup = f"/{cgroups.PARENT}/{network.cgroup_of(subnet)}"
    contents = {
        "ca.crt": authority.certificate,
        "kubeconfig": kubeconfig,
        "kubelet.yaml": node_config.kubelet(cgroup=cgroup, overrides=overrides),
        "containerd.toml": node_config.containerd(cni_plugins=str(cni_plugins())).encode(),
        "cni/pods.conflist": node_config.cni(subnet),
        "resolv.conf": b"",
    }
    private_directory(directory / "cni")
    serving.save(directory, "kubelet")
    for name, content in contents.items():
        write_private(directory / name, content)
