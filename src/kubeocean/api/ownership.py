"""Ownership of objects, proven by their names, labels, annotations and finalizers.

Every object that a syncer creates in a worker cluster has labels with the binding, the IDs of both
clusters and the UID of the virtual object. The Go implementation wrote fewer marks, and users
remove labels: an object that lacks some marks is adopted only if no other owner is possible. Every
other object with the same name is foreign and is left alone.

Virtual nodes are objects of the computing cluster, where every user who may label nodes can give a
node Kubeocean's labels. Names of virtual nodes and the metadata recorded on them prove more than
their labels do.

Policies are written by owners and name a binding. Bindings of two computing clusters may have the
same name: the first computing cluster claims the policy with an annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from kubeocean.api import naming
from kubeocean.api.expected import Expected
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Key, Object

__all__ = [
    "Ids",
    "Ownership",
    "bears_ids",
    "bears_no_ids",
    "copy_ownership",
    "has_claimed",
    "is_virtual_node_of",
    "may_be_ours",
    "ownership_labels",
    "pod_marks",
    "pod_ownership",
    "policy_claim",
    "policy_ownership",
]


@dataclass(frozen=True, slots=True)
class Ids:
    """Identity of one binding: its name and the IDs of its two clusters."""

    binding: str  # the name of the ClusterBinding
    cluster_id: str  # the clusterID of the binding
    computing_id: str  # UID that identifies the computing cluster


class Ownership(Enum):
    """The degree to which an object belongs to a binding, as its name, labels and annotations
    prove.
    """

    OURS = auto()  # of this binding, and of this very virtual object
    STALE = auto()  # of this binding, of an earlier virtual object with that name
    TAKEABLE = auto()  # provably of this virtual object, though labels are missing
    FOREIGN = auto()  # another owner's, or unproven


def ownership_labels(ids: Ids, domain: Domain) -> dict[str, str]:
    """Return the labels of every object that a syncer creates in the worker cluster."""
    return {domain.managed_by: domain.product, **_marks(ids, domain)}


def bears_ids(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether an object has the labels of all objects that this binding's syncer creates."""
    return ownership_labels(ids, domain).items() <= obj.labels.items()


def bears_no_ids(obj: Object, *, domain: Domain) -> bool:
    """Whether an object has no label of a binding or cluster; the Go implementation set none."""
    keys = domain.cluster_binding, domain.physical_cluster_id, domain.computing_cluster_id
    return not any(key in obj.labels for key in keys)


def may_be_ours(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether an object has the label of Kubeocean, and none of another binding."""
    if obj.labels.get(domain.managed_by) != domain.product:
        return False
    return all(obj.labels.get(key, value) == value for key, value in _marks(ids, domain).items())


def pod_marks(virtual: Key, uid: str, domain: Domain) -> dict[str, str]:
    """Return the annotations of a physical pod that identify its virtual pod."""
    return {
        domain.virtual_pod_namespace: virtual.namespace,
        domain.virtual_pod_name: virtual.name,
        domain.virtual_pod_uid: uid,
    }


def pod_ownership(
    obj: Object, *, virtual: Key, uid: str, ids: Ids, domain: Domain, recorded: str = ""
) -> Ownership:
    """Return to which degree a physical pod, or its token Secret, belongs to this virtual pod.

    Annotations may be lost: if the object has the binding's labels and its UID is the one
    `recorded` on the virtual pod, missing annotations count as present.
    """
    annotations = obj.annotations
    if recorded and obj.uid == recorded and bears_ids(obj, ids=ids, domain=domain):
        annotations = {**pod_marks(virtual, uid, domain), **annotations}
    names = (
        annotations.get(domain.virtual_pod_namespace),
        annotations.get(domain.virtual_pod_name),
    )
    if names != tuple(virtual):
        return Ownership.FOREIGN
    same = bool(uid) and annotations.get(domain.virtual_pod_uid) == uid
    return _ownership(obj, same=same, takeable=False, ids=ids, domain=domain)


def copy_ownership(
    obj: Object, *, virtual: Key, uid: str, ids: Ids, domain: Domain, pointed: bool = False
) -> Ownership:
    """Return to which degree a copy belongs to this virtual object.

    Copies of the Go implementation have no UID annotation: `pointed` is True if the virtual object
    names this cluster as one into which it is copied.
    """
    annotations = obj.annotations
    if (
        annotations.get(domain.virtual_namespace, ""),
        annotations.get(domain.virtual_name),
    ) != tuple(virtual):
        return Ownership.FOREIGN
    same = bool(uid) and annotations.get(domain.virtual_uid) == uid
    return _ownership(obj, same=same, takeable=pointed, ids=ids, domain=domain)


def policy_claim(ids: Ids, domain: Domain) -> dict[str, str]:
    """Return the annotations of a ResourceLeasingPolicy that lends to this binding."""
    return {domain.computing_cluster_id: ids.computing_id, domain.cluster_binding: ids.binding}


def policy_ownership(obj: Object, *, ids: Ids, domain: Domain) -> Ownership:
    """Return to which degree a ResourceLeasingPolicy that names the binding belongs to it."""
    holder = obj.annotations.get(domain.computing_cluster_id)
    if not holder:
        return Ownership.TAKEABLE
    return Ownership.OURS if holder == ids.computing_id else Ownership.FOREIGN


def has_claimed(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether this binding claimed a policy earlier; the policy may name another binding now."""
    return policy_claim(ids, domain).items() <= obj.annotations.items()


def is_virtual_node_of(node: Object, *, binding: str, cluster_id: str, domain: Domain) -> bool:
    """Whether this binding's syncer created a Node as a virtual node; labels alone do not decide.

    The Node's name must have the prefix of the cluster's virtual nodes; no other Node is ever
    written. Then the metadata in its annotation `expected-metadata` decides. If that is lost, the
    Node must have Kubeocean's finalizer and the cluster's ID, and no label of another binding.
    Nodes of the earlier implementation pass both checks.
    """
    if not node.name.startswith(naming.virtual_node_prefix(cluster_id)):
        return False
    ours = {
        domain.cluster_binding: naming.label_value(binding),
        domain.physical_cluster_id: naming.label_value(cluster_id),
    }
    remembered = Expected.decode(node.annotations.get(domain.expected_metadata, "")).labels
    if ours.keys() & remembered.keys():
        return ours.items() <= remembered.items()
    if domain.finalizer_vnode not in (node.metadata.finalizers or ()):
        return False
    has_id = node.labels.get(domain.physical_cluster_id) == ours[domain.physical_cluster_id]
    claimed_by = node.labels.get(domain.cluster_binding)
    return has_id and claimed_by in (None, ours[domain.cluster_binding])


def _ownership(obj: Object, *, same: bool, takeable: bool, ids: Ids, domain: Domain) -> Ownership:
    ours = ownership_labels(ids, domain)
    if ours.items() <= obj.labels.items():
        return Ownership.OURS if same else Ownership.STALE
    if any(obj.labels.get(key, value) != value for key, value in ours.items()):
        return Ownership.FOREIGN
    # Labels may be lost; no other object has this UID in its annotation.
    managed = obj.labels.get(domain.managed_by) == domain.product
    marked = any(key in obj.labels for key in _marks(ids, domain))
    return (
        Ownership.TAKEABLE if same or (managed and not marked and takeable) else Ownership.FOREIGN
    )


@lru_cache(maxsize=16)
def _marks(ids: Ids, domain: Domain) -> Mapping[str, str]:
    return {
        domain.cluster_binding: naming.label_value(ids.binding),
        domain.physical_cluster_id: naming.label_value(ids.cluster_id),
        domain.computing_cluster_id: naming.label_value(ids.computing_id),
    }
