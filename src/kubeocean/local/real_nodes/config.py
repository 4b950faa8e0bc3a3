"""Node configuration: configuration of containerd, CNI and kubelet of a real node. Pure.

All paths are those inside the node (see `node_init`), so the files of two nodes differ only in
names and addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import yaml

from kubeocean.local.real_nodes.images import PAUSE
from kubeocean.local.real_nodes.network import Subnet
from kubeocean.runtime.objects import Json

__all__ = [
    "CATCH_PORT",
    "CONTAINERD_SOCKET",
    "FILES",
    "KUBELET",
    "KUBELET_PORT",
    "MACHINE_ADDRESS",
    "SERVICE_ADDRESS",
    "cni",
    "containerd",
    "containerd_command",
    "iptables",
    "kubelet",
    "kubelet_command",
]

FILES: Final = "/run/kubeocean"
KUBELET: Final = "/run/kubelet"
KUBELET_PORT: Final = 10250
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
# The `kubernetes` service: the first address of the service range of local clusters.
SERVICE_ADDRESS: Final = "10.96.0.1"
# Address of this machine's loopback inside nodes and pods; link-local, so that no other host has
# it.
MACHINE_ADDRESS: Final = "169.254.77.1"
CATCH_PORT: Final = 15001
_CLUSTER_DOMAIN: Final = "cluster.local"
# Plugins that search for devices, or create directories on the machine; containers need none.
_UNUSED_PLUGINS: Final = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.tracing.processor.v1.otlp",
)


def containerd(*, cni_plugins: str) -> str:
    """Return the configuration of containerd; `cni_plugins` is the directory of CNI plugins."""
    disabled = ", ".join(f'"{name}"' for name in _UNUSED_PLUGINS)
    # No AppArmor: its profiles would stay loaded in the kernel.
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{disabled}]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "{FILES}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def containerd_command() -> list[str]:
    return ["containerd", f"--config={FILES}/containerd.toml", "--log-level=info"]


def cni(subnet: Subnet) -> bytes:
    """Return the CNI configuration: a bridge for the pods, and host ports."""
    bridge: Json = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(subnet.pods), "gateway": str(subnet.gateway)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports: Json = {"type": "portmap", "capabilities": {"portMappings": True}}
    return msgspec.json.encode({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]})


def iptables() -> str:
    """Return iptables rules that redirect connections to the machine's address to the forwarder."""
    catch = f"-d {MACHINE_ADDRESS} -p tcp -j DNAT --to-destination {MACHINE_ADDRESS}:{CATCH_PORT}"
    return f"*nat\n-A PREROUTING {catch}\n-A OUTPUT {catch}\nCOMMIT\n"


def kubelet(*, cgroup: str, overrides: Mapping[str, object] | None = None) -> bytes:
    """Return the configuration of the kubelet; `overrides` replace its top-level entries."""
    config: Json = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "port": KUBELET_PORT,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{FILES}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{FILES}/kubelet.crt",
        "tlsPrivateKeyFile": f"{FILES}/kubelet.key",
        **_cgroup_entries(cgroup),
        **_disk_entries(),
        "clusterDomain": _CLUSTER_DOMAIN,
        # There is no DNS server: queries to this address are refused at once. Without an address
        # the kubelet would report an error for every pod.
        "clusterDNS": [MACHINE_ADDRESS],
        "resolvConf": f"{FILES}/resolv.conf",
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower value needs a capability that root may lack
        "serializeImagePulls": False,
    }
    return yaml.safe_dump({**config, **(overrides or {})}, sort_keys=False).encode()


def _cgroup_entries(cgroup: str) -> Json:
    return {
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
    }


def _disk_entries() -> Json:
    """Return the kubelet settings by which a full disk evicts no pods and deletes no images."""
    return {
        "evictionHard": dict.fromkeys(
            ("imagefs.available", "nodefs.available", "nodefs.inodesFree"), "0%"
        ),
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/plugins/exec",
    }


def kubelet_command(
    name: str, subnet: Subnet, *, labels: Mapping[str, str], taints: Sequence[str]
) -> list[str]:
    """Return the command line of the kubelet; taints are written `key=value:effect`."""
    listed = ",".join(f"{key}={value}" for key, value in labels.items())
    return [
        KUBELET,
        f"--config={FILES}/kubelet.yaml",
        f"--kubeconfig={FILES}/kubeconfig",
        f"--hostname-override={name}",
        f"--node-ip={subnet.node}",
        *([f"--node-labels={listed}"] if listed else []),
        *([f"--register-with-taints={','.join(taints)}"] if taints else []),
    ]
