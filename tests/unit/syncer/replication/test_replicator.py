"""Whether a source should have a copy while its binding is being deleted."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.configmaps import CONFIG_MAPS
from kubeocean.syncer.replication.kinds import references_of
from kubeocean.syncer.replication.references import PodReferences
from kubeocean.syncer.replication.replicator import Replicator, Rules
from kubeocean.syncer.worker_health import WorkerHealth

SETTINGS = Key("team", "settings")


class Nowhere:
    """A transport that reaches no server."""

    generation = 0

    async def send(self, request: Request) -> Response:
        raise Unreachable("there is no server here", sent=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


class AlwaysUsed(Rules):
    """A pod refers to every source: perhaps a deleted pod that still terminates in the worker."""

    def is_used(self, key: Key) -> bool:
        return True


def _clusters() -> Clusters:
    client = Client(Nowhere())
    events = EventRecorder(client, component="test")
    return Clusters(
        binding_name="b",
        cluster_id="c",
        computing_id="id",
        computing=client,
        worker=client,
        worker_health=WorkerHealth(),
        events=events,
        worker_events=events,
    )


def _replicator(clusters: Clusters) -> Replicator:
    references = PodReferences(clusters, references_of)
    return Replicator(clusters, CONFIG_MAPS, AlwaysUsed(clusters, CONFIG_MAPS, references, {}))


@pytest.mark.parametrize(
    ("deleting", "nodes", "wanted"),
    [(False, 1, True), (False, 0, True), (True, 1, True), (True, 0, False)],
)
async def test_a_deleted_binding_without_nodes_wants_no_copy(
    deleting: bool, nodes: int, wanted: bool
) -> None:
    clusters = _clusters()
    replicator = _replicator(clusters)
    since = "2026-01-01T00:00:00Z" if deleting else None
    meta = Meta(name="b", uid="u", resource_version="1", deletion_timestamp=since)
    clusters.bindings._put(Key("", "b"), ClusterBinding(metadata=meta))
    for number in range(nodes):
        vnode = Node(metadata=Meta(name=f"v{number}", uid=f"{number}", resource_version="1"))
        clusters.vnodes._put(vnode.key, vnode)
    for cache in (clusters.bindings, clusters.vnodes, clusters.vpods):
        cache._complete("1")
    assert replicator.wanted(SETTINGS) is wanted


async def test_a_deleted_binding_wants_copies_until_its_nodes_are_known() -> None:
    clusters = _clusters()
    replicator = _replicator(clusters)
    meta = Meta(name="b", uid="u", deletion_timestamp="2026-01-01T00:00:00Z")
    clusters.bindings._put(Key("", "b"), ClusterBinding(metadata=meta))
    assert replicator.wanted(SETTINGS)
