"""What a page about a binding is made from, read from both clusters."""

from __future__ import annotations

from typing import Final

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.bound.notes import Notes
from kubeocean.errors import NotFound
from kubeocean.explaining.facts import BindingFacts, Roll
from kubeocean.explaining.reading import Reader, Seen
from kubeocean.installation.settling import rollout
from kubeocean.manager.preflight import review
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, NODES, Node
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["read_binding"]

_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)


async def read_binding(reader: Reader, name: str) -> BindingFacts:
    """Everything that concerns the binding now."""
    notes, seen = Notes(), await reader.side(name)
    binding = seen.side.binding
    if binding is None:
        return BindingFacts(side=seen.side)
    listing = await notes.read("bindings", reader.computing.list(CLUSTER_BINDINGS), None)
    others = [each for each in (listing.items if listing else []) if each.name != name]
    return BindingFacts(
        side=seen.side,
        others=tuple(others),
        secret=seen.below.problem if seen.below.access is None else "",
        version=await notes.read("version of the worker", _version(seen.worker), ""),
        missing=await notes.read("rights in the worker", _missing(seen), ()),
        namespace=await notes.read("mount namespace", _namespace(seen), None),
        nodes=await notes.read("nodes", _nodes(reader, name), ()),
        rolls=await notes.read("Deployments", _rolls(reader, binding), ()),
        unread=tuple(notes.unread),
    )


async def _version(worker: Client | None) -> str:
    if worker is None:
        return ""
    answer: Json = await worker.request_json("GET", "/version")
    return str(answer.get("gitVersion", ""))


async def _missing(seen: Seen) -> tuple[str, ...]:
    """Rights without which a binding does not work; add-ons are the owner's to give."""
    if seen.worker is None:
        return ()
    return (await review(seen.worker, seen.side.mount, seen.side.domain)).missing


async def _namespace(seen: Seen) -> bool | None:
    if seen.worker is None:
        return None
    try:
        await seen.worker.get(NAMESPACES, seen.side.mount)
    except NotFound:
        return False
    return True


async def _nodes(reader: Reader, name: str) -> tuple[Node, ...]:
    labels = f"{reader.domain.cluster_binding}={naming.label_value(name)}"
    return tuple((await reader.computing.list(NODES, labels=labels)).items)


async def _rolls(reader: Reader, binding: ClusterBinding) -> tuple[Roll, ...]:
    domain, cluster_id = reader.domain, binding.spec.cluster_id
    names = (
        naming.syncer_deployment(cluster_id, domain),
        naming.proxier_deployment(cluster_id, domain),
    )
    found = []
    for name in names:
        try:
            there = await reader.computing.get(
                _DEPLOYMENTS, name, domain.system_namespace, keep_raw=True
            )
        except NotFound:
            continue
        state = rollout(there.content())
        found.append(Roll(name, state.said, state.done))
    return tuple(found)
