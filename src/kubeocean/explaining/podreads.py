"""What a page about a pod is made from, read from both clusters.

Of a pod that is bound, just what it stands on; of one that waits, all virtual nodes, and the deals
behind those that come closest; of one that is gone, what policies and events tell of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from kubeocean.api import naming
from kubeocean.bound.notes import Notes
from kubeocean.errors import NotFound
from kubeocean.explaining.facts import Evicted, NodeFacts, PodFacts
from kubeocean.explaining.nodereads import facts_of
from kubeocean.explaining.places import sift
from kubeocean.explaining.reading import Reader
from kubeocean.explaining.waiting import best_of
from kubeocean.leasing.counted import COUNTED_PODS, CountedPod
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import EVENTS, NODES, SECRETS, Event, Node
from kubeocean.runtime.objects import Key, Resource, Untyped
from kubeocean.syncer.forge.references import references
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod

__all__ = ["read_pod"]

_CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, Untyped)
_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped)


async def read_pod(reader: Reader, key: Key) -> PodFacts:
    """Everything that concerns the pod now."""
    notes = Notes()
    pod = await notes.read(f"pod {key}", _pod(reader.computing, key), None)
    events = await notes.read("events", _events(reader.computing, key), ())
    facts = PodFacts(key=key, now=reader.clock.now(), domain=reader.domain, pod=pod, events=events)
    if pod is None or pod.deleting:
        facts = replace(facts, evicted=await _evictions(reader, key, notes))
    if pod is not None and pod.spec.node_name:
        facts = await _bound(reader, facts, pod, notes)
    elif pod is not None and not pod.finished:
        facts = await _unbound(reader, facts, notes)
    return replace(facts, unread=(*facts.unread, *notes.unread))


async def _evictions(reader: Reader, key: Key, notes: Notes) -> tuple[Evicted, ...]:
    """What policies remember of a pod of this name."""
    found = []
    for seen in await notes.read("bindings", reader.all_sides(), []):
        if seen.worker is None:
            notes.unread.append(f"worker {seen.side.name}: {seen.side.problem}")
        for policy in seen.side.policies:
            if policy.spec.cluster != seen.side.name or policy.status.reclaim is None:
                continue
            found += [
                Evicted(policy.name, seen.side.name, each)
                for each in policy.status.reclaim.last_evictions or ()
                if (each.namespace, each.name) == key
            ]
    return tuple(found)


# A pod without a node


async def _unbound(reader: Reader, facts: PodFacts, notes: Notes) -> PodFacts:
    domain = reader.domain
    managed = f"{domain.managed_by}={domain.product}"
    listing = await notes.read("nodes", reader.computing.list(NODES, labels=managed), None)
    nodes = tuple(listing.items) if listing is not None else ()
    taken = await notes.read("pods on nodes", _taken(reader.computing, nodes), {})
    facts = replace(facts, nodes=nodes, taken=taken)
    best = best_of(facts, sift(facts))
    if best is None:
        return facts
    known = await facts_of(reader, best)
    if known.side.problem:
        notes.unread.append(f"worker {known.side.name}: {known.side.problem}")
    return replace(facts, bindings={best.name: known}, unread=known.unread)


async def _taken(client: Client, nodes: tuple[Node, ...]) -> dict[str, tuple[CountedPod, ...]]:
    """The pods on virtual nodes. There may be many on others: they go by in pages."""
    names = {node.name for node in nodes}
    found: dict[str, list[CountedPod]] = defaultdict(list)
    async for page in client.pages(COUNTED_PODS, fields="spec.nodeName!="):
        if page.begins:
            found.clear()
        for pod in page.items:
            if pod.spec.node_name in names:
                found[pod.spec.node_name].append(pod)
    return {name: tuple(pods) for name, pods in found.items()}


# A pod with a node


async def _bound(reader: Reader, facts: PodFacts, pod: VirtualPod, notes: Notes) -> PodFacts:
    name = pod.spec.node_name
    vnode = await notes.read(f"node {name}", _node(reader.computing, name), None)
    if vnode is None:
        return facts
    node = await facts_of(reader, vnode)
    facts = replace(facts, node=node, unread=node.unread)
    worker = (await reader.side(node.side.name)).worker
    if node.side.binding is None or worker is None:
        return facts
    ppods = [
        found
        for key in _names(pod, node)
        if (found := await notes.read(f"pod {key} of the worker", _ppod(worker, key), None))
    ]
    own = [each for each in ppods if each.annotations.get(_uid(reader)) == pod.uid]
    below: tuple[Event, ...] = ()
    for ppod in own:
        told = await notes.read("events of the worker", _events(worker, ppod.key), ())
        below += tuple(each for each in told if each.involved_object.uid == ppod.uid)
    absent = await _absent(reader.computing, pod, notes) if not own else ()
    return replace(facts, ppods=tuple(ppods), below=below, absent=absent)


def _uid(reader: Reader) -> str:
    return reader.domain.virtual_pod_uid


def _names(pod: VirtualPod, node: NodeFacts) -> list[Key]:
    """Every name under which it may run."""
    domain, mount = node.side.domain, node.side.mount
    said = pod.annotations
    names = [
        Key(mount, naming.physical_name(pod.name, pod.namespace)),
        Key(mount, naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)),
    ]
    if domain.physical_pod_name in said:
        namespace = said.get(domain.physical_pod_namespace, mount)
        names.append(Key(namespace, said[domain.physical_pod_name]))
    return list(dict.fromkeys(names))


async def _absent(client: Client, pod: VirtualPod, notes: Notes) -> tuple[str, ...]:
    """What it refers to and cannot do without, and is not there."""
    refs = references(pod.content())
    wanted = [(_CONFIG_MAPS, name) for name, optional in refs.config_maps.items() if not optional]
    wanted += [(SECRETS, name) for name, optional in refs.secrets.items() if not optional]
    wanted += [(_CLAIMS, name) for name in refs.all_claims]
    missing = []
    for resource, name in wanted:
        what = f"{resource.kind} {pod.namespace}/{name}"
        if not await notes.read(what, _is_there(client, resource, Key(pod.namespace, name)), True):
            missing.append(what)
    return tuple(missing)


# Single reads


async def _is_there(client: Client, resource: Resource[Untyped], key: Key) -> bool:
    try:
        await client.get(resource, key.name, key.namespace)
    except NotFound:
        return False
    return True


async def _pod(client: Client, key: Key) -> VirtualPod | None:
    return await client.get(VIRTUAL_PODS, key.name, key.namespace, keep_raw=True)


async def _ppod(client: Client, key: Key) -> PhysicalPod | None:
    return await client.get(PHYSICAL_PODS, key.name, key.namespace, keep_raw=True)


async def _node(client: Client, name: str) -> Node | None:
    return await client.get(NODES, name)


async def _events(client: Client, key: Key) -> tuple[Event, ...]:
    fields = f"involvedObject.kind=Pod,involvedObject.name={key.name}"
    return tuple((await client.list(EVENTS, key.namespace, fields=fields)).items)
