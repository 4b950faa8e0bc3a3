"""Whether there shall be a copy, while its binding goes."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from kubeocean.api.binding import ClusterBinding
from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, Key, Meta
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.forge.configmaps import CONFIG_MAPS
from kubeocean.syncer.forge.copies import Copy, Original
from kubeocean.syncer.reach import Reach
from kubeocean.syncer.topdown.copies import Copies, Rules
from kubeocean.syncer.world import World

SETTINGS = Key("team", "settings")


class Nowhere:
    """A way to no server."""

    generation = 0

    async def send(self, request: Request) -> Response:
        raise Unreachable("there is no server here", sent=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


async def _translate(original: Original, name: str) -> Json:
    return {}


async def _unused(key: Key, copy: Copy, since: float) -> bool:
    return False


def _world() -> World:
    client = Client(Nowhere())
    events = EventRecorder(client, component="test")
    return World(
        binding_name="b",
        cluster_id="c",
        computing_id="id",
        computing=client,
        worker=client,
        reach=Reach(),
        events=events,
        worker_events=events,
    )


def _copies(world: World) -> Copies:
    """Copies of what some pod uses: perhaps one that was deleted, and still ends in the worker."""
    rules = Rules(translate=_translate, used=lambda key: True, unused=_unused, known=lambda: True)
    return Copies(world, CONFIG_MAPS, rules)


@pytest.mark.parametrize(
    ("deleting", "nodes", "wanted"),
    [(False, 1, True), (False, 0, True), (True, 1, True), (True, 0, False)],
)
async def test_a_binding_that_goes_and_has_no_node_left_wants_no_copy(
    deleting: bool, nodes: int, wanted: bool
) -> None:
    world = _world()
    copies = _copies(world)
    since = "2026-01-01T00:00:00Z" if deleting else None
    meta = Meta(name="b", uid="u", resource_version="1", deletion_timestamp=since)
    world.bindings._put(Key("", "b"), ClusterBinding(metadata=meta))
    for number in range(nodes):
        vnode = Node(metadata=Meta(name=f"v{number}", uid=f"{number}", resource_version="1"))
        world.vnodes._put(vnode.key, vnode)
    for cache in (world.bindings, world.vnodes, world.vpods):
        cache._complete("1")
    assert copies.wanted(SETTINGS) is wanted


async def test_what_is_not_known_yet_ends_nothing() -> None:
    world = _world()
    copies = _copies(world)
    meta = Meta(name="b", uid="u", deletion_timestamp="2026-01-01T00:00:00Z")
    world.bindings._put(Key("", "b"), ClusterBinding(metadata=meta))
    assert copies.wanted(SETTINGS)
