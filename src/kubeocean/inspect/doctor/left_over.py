"""Objects of bindings that do not exist any more: virtual nodes, finalizers, policies.

The remedy for each such object deletes something, so the bindings must have been read, and
`DoctorReader` reads twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeocean.api import naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, Ownership, policy_ownership
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.snapshot import NotRead, Snapshot, known
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Untyped

__all__ = ["gone_finalizers", "gone_holder", "left_over", "left_over_policies", "lost_nodes"]


def left_over(snapshot: Snapshot) -> frozenset[str]:
    """Return the UIDs of virtual nodes and of objects with our finalizer whose binding is gone."""
    bindings = snapshot.bindings
    if isinstance(bindings, NotRead):
        return frozenset()
    nodes = lost_nodes(known(snapshot.nodes, ()), bindings, snapshot.domain)
    marked = (obj for objects in snapshot.marked.values() for obj in known(objects, ()))
    held = (obj for obj in marked if gone_finalizers(obj, bindings, snapshot.domain))
    return frozenset(obj.uid for obj in (*nodes, *held))


def lost_nodes(
    nodes: Iterable[Node], bindings: Iterable[ClusterBinding], domain: Domain
) -> Iterator[Node]:
    """Yield virtual nodes whose binding label is missing or names no existing binding."""
    labels = {naming.label_value(each.name) for each in bindings}
    return (node for node in nodes if node.labels.get(domain.cluster_binding, "") not in labels)


def gone_finalizers(
    obj: Untyped, bindings: Iterable[ClusterBinding], domain: Domain
) -> tuple[str, ...]:
    """Return the finalizers of ours on an object that belong to none of the bindings."""
    prefix = domain.finalizer_for("")
    own = {domain.finalizer_for(each.spec.cluster_id) for each in bindings}
    finalizers = obj.metadata.finalizers or ()
    return tuple(each for each in finalizers if each.startswith(prefix) and each not in own)


def left_over_policies(
    policies: Iterable[ResourceLeasingPolicy],
    bindings: Iterable[ClusterBinding],
    ids: Ids,
    domain: Domain,
) -> frozenset[str]:
    """Return the UIDs of our policies in a worker with the finalizer of a binding that is gone."""
    names = {each.name for each in bindings}
    return frozenset(
        policy.uid
        for policy in policies
        if policy_ownership(policy, ids=ids, domain=domain) is not Ownership.FOREIGN
        and gone_holder(policy, names, domain)
    )


def gone_holder(policy: ResourceLeasingPolicy, names: set[str], domain: Domain) -> str:
    """Return the binding whose finalizer a policy has, if it is not among `names`; else empty."""
    holder = policy.annotations.get(domain.cluster_binding, "")
    held = domain.finalizer_policy in (policy.metadata.finalizers or ())
    return holder if held and holder not in names else ""
