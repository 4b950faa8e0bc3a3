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
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod
from kubeocean.syncer.replication.kinds.table import references_of
from kubeocean.syncer.replication.referring_pods import CONFIG_MAP, PodReferences, Reference
from kubeocean.syncer.worker_health import WorkerHealth

FIRST, LATER = ((CONFIG_MAP, Key("team", name)) for name in ("first", "later"))


class Server:
    """A transport that answers every request with one listing of pods."""

    generation = 0

    def __init__(self) -> None:
        self.pods: list[Json] = []
        self.paths: list[str] = []

    async def send(self, request: Request) -> Response:
        self.paths.append(request.path)
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


async def test_the_pods_of_a_namespace_are_listed_once_and_never_those_of_all() -> None:
    server = Server()
    clusters = _clusters(server)
    refs = PodReferences(clusters, references_of)
    since = clusters.clock.monotonic()
    # A worker can put any annotation on a copy.
    for name in ("a", "b", "c"):
        for namespace in ("team", "", "other"):
            unused = await refs.unused((CONFIG_MAP, Key(namespace, name)), since=since)
            assert unused is bool(namespace)
    assert server.paths == [f"/api/v1/namespaces/{each}/pods" for each in ("team", "other")]


async def test_the_end_of_the_last_physical_pod_ends_the_references_of_a_finished_pod() -> None:
    clusters = _clusters(Server())
    refs = PodReferences(clusters, references_of)
    ended: list[Reference] = []
    refs.on_change(ended.append)
    finished = _body("1") | {"status": {"phase": "Succeeded"}}
    marks = {DEFAULT.virtual_pod_namespace: "team", DEFAULT.virtual_pod_name: "p"}
    meta = Meta(name="pp", namespace="m", uid="pp", resource_version="1", annotations=marks)
    clusters.ppods._put(Key("m", "pp"), PhysicalPod(metadata=meta))
    clusters.vpods._put(Key("team", "p"), _pod(finished))
    assert refs.is_used(FIRST)
    assert ended == []
    clusters.ppods._put(Key("m", "pp"), None)
    assert ended == [FIRST]
    assert not refs.is_used(FIRST)
