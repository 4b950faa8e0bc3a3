"""Node files: what the programs of a real node find under `/run/kubeocean`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubeocean.local import accounts, cgroups, nodeconfig, nodenet
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.nodechecks import cni_plugins
from kubeocean.local.nodenet import Subnet
from kubeocean.local.pki import Authority, Subject

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
    """Write them; the kubelet's identities are signed by the cluster's `authority`."""
    user = f"system:node:{node}"
    serving = authority.issue(Subject(user, sans=(node, str(subnet.node)), server=True))
    asking = authority.issue(Subject(user, ("system:nodes",), client=True))
    kubeconfig = accounts.kubeconfig(
        cluster,
        f"https://{nodeconfig.SERVICE_ADDRESS}:443",
        authority.certificate,
        user=user,
        credential=asking,
    )
    cgroup = f"/{cgroups.PARENT}/{nodenet.cgroup_of(subnet)}"
    contents = {
        "ca.crt": authority.certificate,
        "kubeconfig": kubeconfig,
        "kubelet.yaml": nodeconfig.kubelet(cgroup=cgroup, overrides=overrides),
        "containerd.toml": nodeconfig.containerd(cni_plugins=str(cni_plugins())).encode(),
        "cni/pods.conflist": nodeconfig.cni(subnet),
        "resolv.conf": b"",
    }
    private_directory(directory / "cni")
    serving.save(directory, "kubelet")
    for name, content in contents.items():
        write_private(directory / name, content)
