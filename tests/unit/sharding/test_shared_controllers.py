"""Tests that a reconcile that was cancelled with its shard is repeated by the next owner."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from kubeocean.errors import Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.shared_controllers import SharedControllers
from kubeocean.sharding.table import SlotEntry, empty_table
from support.ring_env import SLOTS, config


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


class Replica:
    """Replica with all shards, and a controller whose first reconcile does not end by itself."""

    def __init__(self, *, besides: bool) -> None:
        clock = VirtualClock()
        self.clock = clock
        self.ring = Ring(Client(Nowhere()), config("n", name="a"), clock=clock, environ={})
        self.ring._holder.renewed(started=0.0, answered=0.0)
        owned = dict.fromkeys(range(SLOTS), SlotEntry(self.ring.id))
        self.ring._see(empty_table(self.ring.names.ring, SLOTS).changed(owned))
        self.ring.tenancy.serving |= owned.keys()
        self.sharing = SharedControllers(self.ring, clock=clock)
        self.turns = 0
        self.controller: Controller[str] = Controller("shared", self.reconcile, clock=clock)
        self.sharing.share(
            self.controller, by=str, keys=lambda: ["one"], besides=lambda key: besides
        )

    async def reconcile(self, key: str) -> Outcome:
        self.turns += 1
        if self.turns == 1:
            await asyncio.Event().wait()
        return Done()

    def loses(self, key: str) -> None:
        slot = self.ring.shard_of(key)
        self.ring.tenancy.serving.discard(slot)
        self.sharing.cancel([slot])


@pytest.mark.parametrize(("besides", "turns"), [(True, 2), (False, 1)])
async def test_a_key_that_a_task_waits_for_is_done_here_when_its_shard_went(
    besides: bool, turns: int
) -> None:
    replica = Replica(besides=besides)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(replica.controller.run())
        replica.controller.enqueue("one")
        await replica.clock.advance(0)
        assert replica.turns == 1
        replica.loses("one")
        await replica.clock.advance(60)
        assert replica.turns == turns
        running.cancel()
