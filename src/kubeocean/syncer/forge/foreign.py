"""What of a worker's node must not be copied.

Annotations that network plugins, clouds and the attach-detach controller write about a node are
orders to their own programs. On a virtual node they would make the computing cluster's programs act
on the worker's machines. Taints that follow from conditions are left to the computing cluster for a
like reason.
"""

from __future__ import annotations

from typing import Final

__all__ = ["is_copied_annotation", "is_derived_taint"]

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


# Kubernetes puts these on a node by itself, after the node's conditions, and takes them off again.
_DERIVED: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "disk-pressure",
        "memory-pressure",
        "network-unavailable",
        "not-ready",
        "pid-pressure",
        "unreachable",
    )
)


def is_derived_taint(key: str) -> bool:
    """Whether a taint follows from conditions.

    Those are shown on the virtual node, so that its own cluster taints it in the same way; a copy
    would be taken off there as fast as we put it on.
    """
    return key in _DERIVED


def is_copied_annotation(key: str) -> bool:
    """Whether an annotation of a worker's node says something to users, not to programs."""
    domain = key.partition("/")[0]
    # Cilium writes its domain the other way round, too: `io.cilium.network.…`.
    if key in _NAMES or key.startswith("io.cilium."):
        return False
    return not any(domain == each or domain.endswith(f".{each}") for each in _DOMAINS)
