"""Sharding of a binding: all replicas of a syncer work, each on its own shards.

    by virtual node   heartbeat, CSINode, reservation of host ports
    by virtual pod    the pod, its status and events, its tokens
    by object         copies of ConfigMaps, Secrets, claims and volumes; a replica that runs a pod
                      which waits for a copy creates it, and the name is the same for all replicas
    by the leader     the binding, its policies and nodes, mirrored Services, LogConfigs, the sweep,
                      companions

Nodes are not sharded: the ports of their proxier are allocated one by one, and the pace at which a
policy's nodes are drained is that of all of them together. Every replica has the caches of the
whole binding, so that nothing has to be read when a shard moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kubeocean.runtime.components import Runnable
from kubeocean.runtime.objects import Key
from kubeocean.sharding.shared_controllers import SharedControllers
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.csinodes import CsiNodes
from kubeocean.syncer.nodes.host_ports import HostPorts
from kubeocean.syncer.pods.views import virtual_key
from kubeocean.syncer.replication.replicator import Replicator
from kubeocean.syncer.replication.tokens import Tokens, pod_of
from kubeocean.syncer.shard_filter import of_node, of_pod

__all__ = ["share", "until_synced"]


async def until_synced(clusters: Clusters) -> None:
    """Return when the caches of the computing cluster that owning a shard requires have synced."""
    for cache in (clusters.bindings, clusters.vnodes, clusters.vpods):
        await cache.synced()


def share(syncer: Syncer, sharing: SharedControllers, *companions: Runnable) -> list[Runnable]:
    """Restrict a syncer's controllers to this replica's shards; return the parts to run.

    Companions run on the leader, as do all parts that are not sharded.
    """
    clusters, pod_copies = syncer.clusters, syncer.pod_copies
    _share_nodes(syncer, sharing)
    sharing.share(syncer.pods.controller, by=of_pod, keys=partial(_pods, clusters))
    syncer.pods.share(sharing)
    # Only the leader exposes the metrics of the whole binding.
    syncer.metrics.share(lambda: sharing.ring.election.is_leader)
    tokens = pod_copies.tokens
    sharing.share(
        tokens.controller, by=partial(_token_shard, tokens), keys=partial(_secrets, tokens)
    )
    for replicator in pod_copies.replicators.values():
        sharing.share(
            replicator.controller,
            by=partial(_copy_shard, replicator),
            keys=replicator.keys,
            besides=replicator.is_requested,
        )
    alone: tuple[Runnable, ...] = (
        syncer.bindings.controller,
        syncer.policies.controller,
        syncer.nodes.controller,
        syncer.services.controller,
        syncer.log_configs.controller,
        *syncer.sweep.parts,
        *companions,
    )
    sharing.alone(*alone)
    return [part for part in syncer.parts if part not in alone]


def _share_nodes(syncer: Syncer, sharing: SharedControllers) -> None:
    clusters = syncer.clusters
    heartbeats, csinodes, host_ports = syncer.heartbeats, syncer.csinodes, syncer.host_ports
    sharing.share(heartbeats.controller, by=_vnode, keys=partial(_vnodes, clusters))
    heartbeats.share(sharing)
    sharing.share(
        csinodes.controller,
        by=lambda key: of_node(clusters.vnode_name(key.name)),
        keys=partial(_pnodes, csinodes),
    )
    sharing.share(host_ports.controller, by=_vnode, keys=partial(_reserved, host_ports))


# All keys of each controller, and the shard of a key


def _vnode(key: Key) -> str:
    return of_node(key.name)


def _vnodes(clusters: Clusters) -> Iterator[Key]:
    return (vnode.key for vnode in clusters.vnodes.items())


def _pnodes(csinodes: CsiNodes) -> Iterator[Key]:
    clusters, name = csinodes.clusters, csinodes.clusters.domain.physical_node_name
    yield from (Key("", clusters.pnode_of(vnode)) for vnode in clusters.vnodes.items())
    yield from (Key("", copy.annotations.get(name, "")) for copy in csinodes.copies.items())


def _reserved(host_ports: HostPorts) -> Iterator[Key]:
    yield from _vnodes(host_ports.clusters)
    for cache in (host_ports.reservations, host_ports.unclaimed):
        yield from (Key("", pod.spec.node_name) for pod in cache.items())


def _pods(clusters: Clusters) -> Iterator[Key]:
    yield from (vpod.key for vpod in clusters.vpods.items())
    yield from (virtual_key(ppod, clusters.domain) for ppod in clusters.ppods.items())


def _secrets(tokens: Tokens) -> Iterator[Key]:
    return (secret.key for secret in tokens.secrets.items())


def _token_shard(tokens: Tokens, key: Key) -> str:
    """Return the shard of a token Secret: that of its pod, or any if the Secret is gone."""
    secret = tokens.secrets.get(key)
    return f"token/{key}" if secret is None else of_pod(pod_of(secret, tokens.clusters.domain)[0])


def _copy_shard(replicator: Replicator, key: Key) -> str:
    return f"{replicator.kind}/{key}"
