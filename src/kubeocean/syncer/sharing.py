"""Sharing a binding: all replicas of a syncer work, each on its part.

    by virtual node   its heartbeat, its CSINode, its reservation of ports
    by virtual pod    the pod, its status and events, its tokens
    by object         copies of ConfigMaps, Secrets, claims and volumes; whoever runs a pod that
                      waits for one makes it, the name is the same for all
    by one replica    the binding, its policies and nodes, mirrored Services, LogConfigs, the sweep

Nodes are not shared: the ports of their proxier are given out one by one, and how fast a policy's
nodes are emptied is counted for all of them together. Every replica has the caches of the whole
binding, so that nothing has to be read when a part moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from kubeocean.runtime.components import Runnable
from kubeocean.runtime.objects import Key
from kubeocean.sharding.sharing import Sharing
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.bottomup.csinodes import CsiNodes
from kubeocean.syncer.bottomup.hostports import HostPorts
from kubeocean.syncer.forge import tokens as forge
from kubeocean.syncer.parts import of_node, of_pod
from kubeocean.syncer.podviews import virtual_key
from kubeocean.syncer.topdown.copies import Copies
from kubeocean.syncer.topdown.tokens import Tokens
from kubeocean.syncer.world import World

__all__ = ["known", "share"]


async def known(world: World) -> None:
    """Return when enough is known to have a part: what the computing cluster has. The worker need
    not answer."""
    for cache in (world.bindings, world.vnodes, world.vpods):
        await cache.synced()


def share(syncer: Syncer, sharing: Sharing) -> list[Runnable]:
    """Let the controllers of a syncer work on this replica's part; what runs on every replica."""
    world, dependents = syncer.world, syncer.dependents
    _share_nodes(syncer, sharing)
    sharing.share(syncer.pods.controller, by=of_pod, keys=partial(_pods, world))
    syncer.pods.share(sharing)
    # Figures of the whole binding are told once.
    syncer.figures.share(lambda: sharing.ring.election.is_leader)
    tokens = dependents.tokens
    sharing.share(tokens.controller, by=partial(_bearer, tokens), keys=partial(_secrets, tokens))
    kinds = (dependents.config_maps, dependents.secrets, dependents.claims, dependents.volumes)
    for copies in kinds:
        sharing.share(
            copies.controller,
            by=partial(_copy, copies),
            keys=partial(_copied, copies),
            besides=copies.asked,
        )
    alone: tuple[Runnable, ...] = (
        syncer.bindings.controller,
        syncer.policies.controller,
        syncer.nodes.controller,
        syncer.services.controller,
        syncer.logconfigs.controller,
        *syncer.sweep.parts,
    )
    sharing.alone(*alone)
    return [part for part in syncer.parts if part not in alone]


def _share_nodes(syncer: Syncer, sharing: Sharing) -> None:
    world = syncer.world
    leases, csinodes, hostports = syncer.leases, syncer.csinodes, syncer.hostports
    sharing.share(leases.controller, by=_vnode, keys=partial(_vnodes, world))
    leases.share(sharing)
    sharing.share(
        csinodes.controller,
        by=lambda key: of_node(world.vnode_name(key.name)),
        keys=partial(_pnodes, csinodes),
    )
    sharing.share(hostports.controller, by=_vnode, keys=partial(_reserved, hostports))


# What there is, by the keys of each controller


def _vnode(key: Key) -> str:
    return of_node(key.name)


def _vnodes(world: World) -> Iterator[Key]:
    return (vnode.key for vnode in world.vnodes.items())


def _pnodes(csinodes: CsiNodes) -> Iterator[Key]:
    world, name = csinodes.world, csinodes.world.domain.physical_node_name
    yield from (Key("", world.pnode_of(vnode)) for vnode in world.vnodes.items())
    yield from (Key("", copy.annotations.get(name, "")) for copy in csinodes.copies.items())


def _reserved(hostports: HostPorts) -> Iterator[Key]:
    yield from _vnodes(hostports.world)
    for cache in (hostports.reservations, hostports.unclaimed):
        yield from (Key("", pod.spec.node_name) for pod in cache.items())


def _pods(world: World) -> Iterator[Key]:
    yield from (vpod.key for vpod in world.vpods.items())
    yield from (virtual_key(ppod, world.domain) for ppod in world.ppods.items())


def _secrets(tokens: Tokens) -> Iterator[Key]:
    return (secret.key for secret in tokens.secrets.items())


def _bearer(tokens: Tokens, key: Key) -> str:
    """A token is in the part of its pod; one that is gone is nobody's business."""
    secret = tokens.secrets.get(key)
    return (
        f"token/{key}" if secret is None else of_pod(forge.pod_of(secret, tokens.world.domain)[0])
    )


def _copy(copies: Copies, key: Key) -> str:
    return f"{copies.kind}/{key}"


def _copied(copies: Copies) -> Iterable[Key]:
    pairs = copies.pairs
    yield from (original.key for original in pairs.originals.items())
    yield from (pairs.virtual_of(copy) for copy in pairs.copies.items())
