"""References of pods to the objects that they need, as the caches and the server show them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import msgspec

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, Key, Meta, decode_object
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.views import VirtualPod
from kubeocean.syncer.replication.kinds import references_of
from kubeocean.syncer.replication.references import CONFIG_MAP, PodReferences
from kubeocean.syncer.worker_health import WorkerHealth

FIRST, LATER = ((CONFIG_MAP, Key("team", name)) for name in ("first", "later"))


class Server:
    """A transport that answers every request with one listing of pods."""

    generation = 0

    def __init__(self) -> None:
        self.pods: list[Json] = []

    async def send(self, request: Request) -> Response:
        listing = {"metadata": {"resourceVersion": "9"}, "items": self.pods}
        return Response(200, {}, msgspec.json.encode(listing))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


def _clusters(server: Server) -> Clusters:
    client = Client(server)
    events = EventRecorder(client, component="test")
    clusters = Clusters(
        binding_name="b",
        cluster_id="c",
        computing_id="id",
        computing=client,
        worker=client,
        worker_health=WorkerHealth(),
        events=events,
        worker_events=events,
    )
    clusters.bindings._put(Key("", "b"), ClusterBinding(metadata=Meta(name="b", uid="u")))
    labels = {DEFAULT.physical_cluster_id: "c"}
    vnode = Node(metadata=Meta(name="vnode-c-n", uid="n", resource_version="1", labels=labels))
    clusters.vnodes._put(vnode.key, vnode)
    return clusters


def _body(version: str, *ephemeral: str) -> Json:
    def container(name: str) -> Json:
        return {"name": name, "envFrom": [{"configMapRef": {"name": name}}]}

    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "p", "resourceVersion": version},
        "spec": {
            "nodeName": "vnode-c-n",
            "containers": [container("first")],
            "ephemeralContainers": [container(each) for each in ephemeral],
        },
    }


def _pod(body: Json) -> VirtualPod:
    return decode_object(VirtualPod, msgspec.json.encode(body), keep_raw=True)


async def test_references_of_an_ephemeral_container_are_read_from_the_cache() -> None:
    clusters = _clusters(Server())
    refs = PodReferences(clusters, references_of)
    clusters.vpods._put(Key("team", "p"), _pod(_body("1")))
    assert refs.is_used(FIRST)
    assert not refs.is_used(LATER)
    clusters.vpods._put(Key("team", "p"), _pod(_body("2", "later")))
    assert refs.is_used(LATER)
    assert refs.pods(FIRST) == {Key("team", "p")}
    clusters.vpods._put(Key("team", "p"), None)
    assert not refs.is_used(LATER)


async def test_a_reference_that_the_cache_does_not_show_is_found_at_the_server() -> None:
    server = Server()
    clusters = _clusters(server)
    refs = PodReferences(clusters, references_of)
    clusters.vpods._put(Key("team", "p"), _pod(_body("1")))
    assert not refs.is_used(LATER)
    server.pods = [_body("1")]
    assert await refs.unused(LATER, since=clusters.clock.monotonic())
    server.pods = [_body("2", "later")]
    assert not await refs.unused(LATER, since=clusters.clock.monotonic())
