"""Labels, annotations and taints of a worker's nodes and pods that must not be copied.

Network plugins, clouds and the attach-detach controller write annotations on a node as orders to
their own programs. On a virtual node, these would make the computing cluster's programs act on the
worker's machines. Taints that follow from conditions are left to the computing cluster for a like
reason.

From a worker that is trusted no more than a kubelet, no annotation is copied on which a controller
of the computing cluster acts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "is_copied_annotation",
    "is_derived_taint",
    "is_informative_annotation",
    "is_kubelet_label",
]

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
# Domains, with their subdomains.
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

_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
# Within Kubernetes' domains a kubelet may set these labels on its own node and no others, as the
# admission plugin NodeRestriction has it.
_KUBELET_LABELS: Final = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
_KUBELET_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
# Domains of controllers that act on annotations of pods or nodes, by which they scrape, inject,
# evict, scale, restart, run commands or collect. With their subdomains. Listed in
# docs/use/bindings.md.
_CONTROLLERS: Final = (
    *_KUBERNETES,
    "x-k8s.io",  # Cluster API, Kueue
    "argoproj.io",
    "cattle.io",  # Rancher, RKE
    "chaos-mesh.org",
    "cni.cncf.io",  # Multus
    "co.elastic.logs",
    "dapr.io",
    "datadoghq.com",
    "fluentbit.io",
    "fluxcd.io",
    "hashicorp.com",  # Vault, Consul
    "helm.sh",
    "istio.io",
    "jaegertracing.io",
    "k3s.io",
    "karpenter.sh",
    "keda.sh",
    "kuma.io",
    "kyverno.io",
    "linkerd.io",
    "openshift.io",
    "opentelemetry.io",
    "prometheus.io",
    "rke2.io",
    "sapcloud.io",  # Gardener
    "stakater.com",
    "velero.io",
    "volcano.sh",
)

# Kubernetes adds and removes these taints according to the node's conditions.
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
    """Whether Kubernetes adds and removes a taint according to the node's conditions.

    The conditions are copied to the virtual node, so that the computing cluster adds the same
    taint; the computing cluster would remove a copied taint at once.
    """
    return key in _DERIVED


def is_kubelet_label(key: str) -> bool:
    """Whether Kubernetes lets a kubelet set a label on its own node.

    Labels of `node-restriction.kubernetes.io` and `node-role.kubernetes.io` are not allowed.
    """
    domain, slash, _ = key.partition("/")
    if not slash or not _is_within(domain, _KUBERNETES) or key in _KUBELET_LABELS:
        return True
    return _is_within(domain, _KUBELET_DOMAINS)


def is_copied_annotation(key: str) -> bool:
    """Whether an annotation of a worker's node informs users, and does not direct programs."""
    domain = key.partition("/")[0]
    # Cilium also writes its domain reversed: `io.cilium.network.…`.
    if key in _NAMES or key.startswith("io.cilium."):
        return False
    return not _is_within(domain, _DOMAINS)


def is_informative_annotation(key: str) -> bool:
    """Whether no controller of the computing cluster is known to act on an annotation."""
    return is_copied_annotation(key) and not _is_within(key.partition("/")[0], _CONTROLLERS)


def _is_within(domain: str, domains: Iterable[str]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)
