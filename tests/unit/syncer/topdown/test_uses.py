"""Who uses what, as the caches say."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import msgspec

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.codec import decode_object
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.podviews import VirtualPod
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.topdown.uses import CONFIG_MAP, Uses
from kubeocean.syncer.world import World

FIRST, LATER = ((CONFIG_MAP, Key("team", name)) for name in ("first", "later"))


class Server:
    """Knows one listing of pods."""

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


def _world(server: Server) -> World:
    client = Client(server)
    events = EventRecorder(client, component="test")
    world = World(
        binding_name="b",
        cluster_id="c",
        computing_id="id",
        computing=client,
        worker=client,
        reach=Reach(),
        events=events,
        worker_events=events,
    )
    world.bindings._put(Key("", "b"), ClusterBinding(metadata=Meta(name="b", uid="u")))
    labels = {DEFAULT.physical_cluster_id: "c"}
    vnode = Node(metadata=Meta(name="vnode-c-n", uid="n", resource_version="1", labels=labels))
    world.vnodes._put(vnode.key, vnode)
    return world


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


async def test_what_a_later_container_refers_to_is_known_to_who_did_not_make_the_pod() -> None:
    world = _world(Server())
    uses = Uses(world)
    world.vpods._put(Key("team", "p"), _pod(_body("1")))
    assert uses.is_used(FIRST)
    assert not uses.is_used(LATER)
    world.vpods._put(Key("team", "p"), _pod(_body("2", "later")))
    assert uses.is_used(LATER)
    assert uses.users(FIRST) == {Key("team", "p")}
    world.vpods._put(Key("team", "p"), None)
    assert not uses.is_used(LATER)


async def test_a_cache_that_has_not_seen_the_later_container_does_not_decide() -> None:
    server = Server()
    world = _world(server)
    uses = Uses(world)
    world.vpods._put(Key("team", "p"), _pod(_body("1")))
    assert not uses.is_used(LATER)
    server.pods = [_body("1")]
    assert await uses.unused(LATER, since=world.clock.monotonic())
    server.pods = [_body("2", "later")]
    assert not await uses.unused(LATER, since=world.clock.monotonic())
