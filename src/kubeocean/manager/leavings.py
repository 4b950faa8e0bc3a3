"""Leavings: virtual nodes of a binding whose syncer cannot take them back.

They are removed by their UIDs, with our finalizers and nobody else's; pods on them are for
Kubernetes to collect then. Whatever is not provably of this binding is left alone.
"""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.patches import MergePatch

__all__ = ["free_nodes", "nodes_left"]


async def nodes_left(client: Client, binding: ClusterBinding, domain: Domain) -> list[Node]:
    """The virtual nodes of a binding.

    :raises ApiError: nobody knows.
    """
    ours = {
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(binding.name),
        domain.physical_cluster_id: naming.label_value(binding.spec.cluster_id),
    }
    labels = ",".join(f"{key}={value}" for key, value in ours.items())
    return (await client.list(NODES, labels=labels)).items


async def free_nodes(client: Client, binding: ClusterBinding, domain: Domain) -> int:
    """Remove the virtual nodes of a binding; how many there were.

    :raises ApiError: they could not be removed; try again.
    """
    vnodes = await nodes_left(client, binding, domain)
    for vnode in vnodes:
        await _free(client, vnode, domain)
    return len(vnodes)


async def _free(client: Client, vnode: Node, domain: Domain) -> None:
    held = vnode.metadata.finalizers or ()
    others = [each for each in held if not domain.owns(each)]
    body = {"metadata": {"resourceVersion": vnode.resource_version, "finalizers": others}}
    try:
        if len(others) != len(held):
            await client.patch(NODES, vnode.name, MergePatch(body))
        await client.delete(NODES, vnode.name, uid=vnode.uid)
    except NotFound:
        return  # it went by itself
