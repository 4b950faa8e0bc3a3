"""What a page about a node is made from, read from both clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kubeocean.api import naming
from kubeocean.api.group import NODE_LEASE_NAMESPACE
from kubeocean.bound.notes import Notes
from kubeocean.bound.sides import find_binding
from kubeocean.explaining.facts import NodeFacts
from kubeocean.explaining.reading import Reader, Seen
from kubeocean.leasing.counted import COUNTED_PODS, CountedPod
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import LEASES, NODES, Lease, Node
from kubeocean.syncer.podviews import VIRTUAL_PODS, VirtualPod

__all__ = ["facts_of", "read_node"]


async def read_node(reader: Reader, name: str, binding: str = "") -> NodeFacts:
    """Of a virtual node by its name, or of a worker's node by that.

    :raises ConfigError: there is no such binding.
    """
    notes = Notes()
    vnode = await notes.read(f"node {name}", _node(reader.computing, name), None)
    if vnode is not None:
        return await facts_of(reader, vnode, notes)
    if binding:
        sides = [await reader.side(binding)]
        if sides[0].side.binding is None:
            await find_binding(reader.computing, binding, "--binding")
    else:
        sides = await notes.read("bindings", reader.all_sides(), [])
    for place, seen in enumerate(sides, 1):
        found = await _of_worker(reader, seen, name, notes)
        if found is not None:
            return replace(found, namesakes=await _namesakes(sides[place:], name))
    problems = (
        f"worker {each.side.name}: {each.side.problem}" for each in sides if not each.worker
    )
    side = sides[0].side if binding else (await reader.side("")).side
    return NodeFacts(side=side, name=name, unread=(*notes.unread, *problems))


async def facts_of(reader: Reader, vnode: Node, notes: Notes | None = None) -> NodeFacts:
    """Of a virtual node that was read."""
    notes, domain = notes or Notes(), reader.domain
    if vnode.labels.get(domain.managed_by) != domain.product:
        side = (await reader.side("")).side
        return NodeFacts(side=side, name=vnode.name, vnode=vnode, unread=tuple(notes.unread))
    seen = await reader.side(vnode.labels.get(domain.cluster_binding, ""))
    key = domain.physical_node_name
    pnode_name = vnode.annotations.get(key) or vnode.labels.get(key, "")
    pnode = None
    if seen.worker is not None and pnode_name:
        what = f"node {pnode_name} of the worker"
        pnode = await notes.read(what, _node(seen.worker, pnode_name), None)
    return await _facts(reader, seen, vnode=vnode, pnode=pnode, pnode_name=pnode_name, notes=notes)


async def _of_worker(reader: Reader, seen: Seen, name: str, notes: Notes) -> NodeFacts | None:
    """A worker's node of this name, or whose virtual node would have this name."""
    worker, binding = seen.worker, seen.side.binding
    if worker is None or binding is None:
        return None
    cluster_id = binding.spec.cluster_id
    pnode = await notes.read(f"node {name} of the worker", _node(worker, name), None)
    if pnode is None and name.startswith(naming.virtual_node_prefix(cluster_id)):
        listing = await notes.read("nodes of the worker", worker.list(NODES), None)
        nodes = listing.items if listing is not None else []
        pnode = next((n for n in nodes if naming.virtual_node(cluster_id, n.name) == name), None)
    if pnode is None:
        return None
    vnode_name = naming.virtual_node(cluster_id, pnode.name)
    vnode = await notes.read(f"node {vnode_name}", _node(reader.computing, vnode_name), None)
    return await _facts(reader, seen, vnode=vnode, pnode=pnode, pnode_name=pnode.name, notes=notes)


async def _namesakes(others: Sequence[Seen], name: str) -> tuple[str, ...]:
    """The bindings whose worker has a node of this name, too; who cannot be read has none."""
    asked = [
        (seen.side.name, await Notes().read("", _node(seen.worker, name), None))
        for seen in others
        if seen.worker is not None
    ]
    return tuple(binding for binding, node in asked if node is not None)


async def _facts(
    reader: Reader,
    seen: Seen,
    *,
    vnode: Node | None,
    pnode: Node | None,
    pnode_name: str,
    notes: Notes,
) -> NodeFacts:
    binding = seen.side.binding
    cluster_id = binding.spec.cluster_id if binding is not None else ""
    name = vnode.name if vnode is not None else naming.virtual_node(cluster_id, pnode_name)
    counted: tuple[CountedPod, ...] = ()
    if seen.worker is not None and pnode is not None:
        counted = await notes.read(
            "pods on the worker's node", _pods(seen.worker, pnode.name), counted
        )
    guests: tuple[VirtualPod, ...] = ()
    heartbeat: Lease | None = None
    if vnode is not None:
        guests = await notes.read("pods on the node", _guests(reader.computing, name), guests)
        heartbeat = await notes.read("lease of the node", _lease(reader.computing, name), None)
    return NodeFacts(
        side=seen.side,
        name=name,
        pnode_name=pnode_name,
        vnode=vnode,
        pnode=pnode,
        counted=counted,
        guests=guests,
        heartbeat=heartbeat,
        unread=tuple(notes.unread),
    )


async def _node(client: Client, name: str) -> Node | None:
    return await client.get(NODES, name)


async def _lease(client: Client, name: str) -> Lease | None:
    return await client.get(LEASES, name, NODE_LEASE_NAMESPACE)


async def _pods(client: Client, node: str) -> tuple[CountedPod, ...]:
    return tuple((await client.list(COUNTED_PODS, fields=f"spec.nodeName={node}")).items)


async def _guests(client: Client, node: str) -> tuple[VirtualPod, ...]:
    return tuple((await client.list(VIRTUAL_PODS, fields=f"spec.nodeName={node}")).items)
