"""Whether a source should have a copy, and how long callers wait for one."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.errors import InternalError, Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, VirtualClock
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod
from kubeocean.syncer.replication.copy_forge import Source
from kubeocean.syncer.replication.kinds.configmaps import CONFIG_MAPS
from kubeocean.syncer.replication.kinds.table import references_of
from kubeocean.syncer.replication.kinds.volumes import VOLUMES
from kubeocean.syncer.replication.missing import WATCHED_S, Missing
from kubeocean.syncer.replication.referring_pods import PodReferences
from kubeocean.syncer.replication.replicator import ANSWER_S, Replicator, Rules
from kubeocean.syncer.replication.sources import UNUSED_BYTES, MarkedSources
from kubeocean.syncer.replication.tokens import Tokens
from kubeocean.syncer.worker_health import WorkerHealth
from support.forge_inputs import vpod

TOKEN: Json = {
    "name": "token",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
}
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


def _clusters(clock: Clock | None = None) -> Clusters:
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
        clock=clock or RealClock(),
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


async def test_callers_do_not_wait_for_ever_for_a_cache_that_cannot_be_filled() -> None:
    clock = VirtualClock()
    replicator = _replicator(_clusters(clock))
    first = asyncio.ensure_future(replicator.ensure(SETTINGS))
    await clock.advance(ANSWER_S)
    missing = await first
    assert isinstance(missing, Missing)
    assert missing.message == (
        "ConfigMap team/settings is not copied: the configmaps of the computing cluster could not"
        " be listed"
    )
    assert missing.retry_s < WATCHED_S
    # A request for another object returns at once: a hundred pods would block all workers.
    other = await replicator.ensure(Key("team", "other"))
    assert isinstance(other, Missing)
    assert other.message.startswith("ConfigMap team/other is not copied")


async def test_a_pod_is_told_at_once_that_its_tokens_cannot_be_listed() -> None:
    clock = VirtualClock()
    tokens = Tokens(_clusters(clock))
    refs = references(vpod(volumes=[TOKEN]))
    assert refs.tokens
    pod = VirtualPod(metadata=Meta(name="web", namespace="team", uid="u"))
    attached = asyncio.ensure_future(tokens.attach(pod, PhysicalPod(), refs))
    await clock.advance(5.0)
    with pytest.raises(InternalError, match="the cache of Secrets of the worker has not synced"):
        await attached


async def test_the_cache_holds_no_more_content_of_unused_sources_than_its_bound() -> None:
    """Any user who may write ConfigMaps can label them as replicated."""
    clusters = _clusters()
    used = {Key("team", "used")}
    sources = MarkedSources(clusters, CONFIG_MAPS)
    sources.is_used = used.__contains__
    content = b'{"data": {"k": "' + b"x" * 1024 * 1024 + b'"}}'

    def cached(name: str, kind: MarkedSources = sources) -> Source:
        meta = Meta(name=name, namespace="team", uid=name, resource_version="1")
        source = Source(metadata=meta)
        msgspec.structs.force_setattr(source, "raw", content)
        return kind.bounded(source)

    held = sum(len(cached(f"c{number}").raw) for number in range(100))
    assert 0 < held <= UNUSED_BYTES
    assert cached("c1").raw == content, "an object counts once"
    assert cached("c99").raw == b""
    assert cached("used").raw == content
    gone = Source(metadata=Meta(name="c1", namespace="team", uid="c1", resource_version="2"))
    sources.cache._put(gone.key, gone)
    sources.cache._put(gone.key, None)
    assert cached("c99").raw == content
    volumes = MarkedSources(clusters, VOLUMES)
    volumes.is_used = used.__contains__
    assert all(cached(f"v{number}", volumes).raw for number in range(100))
