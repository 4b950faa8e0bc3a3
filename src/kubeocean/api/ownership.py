"""Ownership: whose an object of the worker is, as its labels and annotations prove it.

Whatever we make below carries the binding, both clusters' identities and the virtual object's UID.
The earlier implementation wrote less, and people take labels away: what lacks some is taken over
only if it can be nobody else's.
Everything else with our name is foreign and is left alone.

Policies are made by others, and name a binding. Bindings of two computing clusters may have one
name: who comes first claims the policy, and says so on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Key, Object

__all__ = [
    "Claim",
    "Ids",
    "bears_ids",
    "claim_copy",
    "claim_pod",
    "claim_policy",
    "is_holder",
    "may_be_ours",
    "ownership",
    "pod_marks",
    "policy_claim",
]


@dataclass(frozen=True, slots=True)
class Ids:
    """Who we are: one binding, between two clusters."""

    binding: str  # the name of the ClusterBinding
    cluster_id: str  # its clusterID
    computing_id: str  # what tells the computing cluster from every other


class Claim(Enum):
    """What we may say of an object."""

    OURS = auto()  # of this binding, and of this very virtual object
    STALE = auto()  # of this binding, of an earlier virtual object with that name
    TAKEABLE = auto()  # provably of this virtual object: an earlier implementation's, or stripped
    FOREIGN = auto()  # somebody else's, or nobody can tell


def ownership(ids: Ids, domain: Domain) -> dict[str, str]:
    """The labels of everything that we make below."""
    return {domain.managed_by: domain.product} | _marks(ids, domain)


def bears_ids(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether an object was made by this binding, for whatever."""
    return ownership(ids, domain).items() <= obj.labels.items()


def may_be_ours(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether some Kubeocean made it, and nothing says that it was another binding's."""
    if obj.labels.get(domain.managed_by) != domain.product:
        return False
    return all(obj.labels.get(key, value) == value for key, value in _marks(ids, domain).items())


def pod_marks(virtual: Key, uid: str, domain: Domain) -> dict[str, str]:
    """The annotations by which a pod says for which virtual one it runs."""
    return {
        domain.virtual_pod_namespace: virtual.namespace,
        domain.virtual_pod_name: virtual.name,
        domain.virtual_pod_uid: uid,
    }


def claim_pod(
    obj: Object, *, virtual: Key, uid: str, ids: Ids, domain: Domain, recorded: str = ""
) -> Claim:
    """Whose a pod is, or anything that is made for one and says so as pods do (token Secrets).

    Annotations may be lost: what one with our labels does not say counts as said if its UID is the
    one that is `recorded` on the virtual pod.
    """
    said = obj.annotations
    if recorded and obj.uid == recorded and bears_ids(obj, ids=ids, domain=domain):
        said = {**pod_marks(virtual, uid, domain), **said}
    names = (said.get(domain.virtual_pod_namespace), said.get(domain.virtual_pod_name))
    if names != tuple(virtual):
        return Claim.FOREIGN
    same = bool(uid) and said.get(domain.virtual_pod_uid) == uid
    return _claim(obj, same=same, takeable=False, ids=ids, domain=domain)


def claim_copy(
    obj: Object, *, virtual: Key, uid: str, ids: Ids, domain: Domain, pointed: bool = False
) -> Claim:
    """Whose a copy of something else is.

    Copies of the earlier implementation hold no UID: `pointed` says that the virtual object names
    this cluster as one that it is copied into.
    """
    said = obj.annotations
    if (said.get(domain.virtual_namespace, ""), said.get(domain.virtual_name)) != tuple(virtual):
        return Claim.FOREIGN
    same = bool(uid) and said.get(domain.virtual_uid) == uid
    return _claim(obj, same=same, takeable=pointed, ids=ids, domain=domain)


def policy_claim(ids: Ids, domain: Domain) -> dict[str, str]:
    """The annotations of a policy that lends to this binding."""
    return {domain.computing_cluster_id: ids.computing_id, domain.cluster_binding: ids.binding}


def claim_policy(obj: Object, *, ids: Ids, domain: Domain) -> Claim:
    """Whose a policy is that names a binding of our name: ours, to be had, or another cluster's."""
    holder = obj.annotations.get(domain.computing_cluster_id)
    if not holder:
        return Claim.TAKEABLE
    return Claim.OURS if holder == ids.computing_id else Claim.FOREIGN


def is_holder(obj: Object, *, ids: Ids, domain: Domain) -> bool:
    """Whether it was this very binding that claimed a policy, whatever that names now."""
    return policy_claim(ids, domain).items() <= obj.annotations.items()


def _claim(obj: Object, *, same: bool, takeable: bool, ids: Ids, domain: Domain) -> Claim:
    ours = ownership(ids, domain)
    if ours.items() <= obj.labels.items():
        return Claim.OURS if same else Claim.STALE
    if any(obj.labels.get(key, value) != value for key, value in ours.items()):
        return Claim.FOREIGN
    # Labels may be lost; no other object was ever told of this UID.
    managed = obj.labels.get(domain.managed_by) == domain.product
    marked = any(key in obj.labels for key in _marks(ids, domain))
    return Claim.TAKEABLE if same or (managed and not marked and takeable) else Claim.FOREIGN


def _marks(ids: Ids, domain: Domain) -> dict[str, str]:
    return {
        domain.cluster_binding: naming.label_value(ids.binding),
        domain.physical_cluster_id: naming.label_value(ids.cluster_id),
        domain.computing_cluster_id: naming.label_value(ids.computing_id),
    }
