"""What of a worker's node must not be copied.

Annotations that network plugins, clouds and the attach-detach controller write about a node are
orders to their own programs. On a virtual node they would make the computing cluster's programs act
on the worker's machines.
"""

from __future__ import annotations

from typing import Final

__all__ = ["is_copied_annotation"]

_NAMES: Final = frozenset(
    {
        "alpha.kubernetes.io/provided-node-ip",
        "csi.volume.kubernetes.io/nodeid",
        "kubectl.kubernetes.io/last-applied-configuration",
        "node.alpha.kubernetes.io/ttl",
        "volumes.kubernetes.io/controller-managed-attach-detach",
        "volumes.kubernetes.io/keep-terminated-pod-volumes",
    }
)
# Domains; their subdomains count, too.
_DOMAINS: Final = (
    "antrea.io",
    "cilium.io",
    "cloud-provider.kubernetes.io",
    "cloud.google.com",
    "coreos.com",  # flannel
    "eks.amazonaws.com",
    "k8s.aws",
    "k8s.cni.cncf.io",
    "kube-ovn.io",
    "kube-router.io",
    "kubeadm.alpha.kubernetes.io",
    "networking.gke.io",
    "ovn.kubernetes.io",
    "ovn.org",
    "projectcalico.org",
    "weave.works",
)


def is_copied_annotation(key: str) -> bool:
    """Whether an annotation of a worker's node says something to users, not to programs."""
    domain = key.partition("/")[0]
    # Cilium writes its domain the other way round, too: `io.cilium.network.…`.
    if key in _NAMES or key.startswith("io.cilium."):
        return False
    return not any(domain == each or domain.endswith(f".{each}") for each in _DOMAINS)
