"""Controllers with caches of everything, of which each replica does its part."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kubeocean.errors import KubeoceanError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport_layers import Fenced, FencedTransport
from kubeocean.sharding.fencing import NotOurs
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.shared_controllers import SharedControllers
from support.faults import Faults
from support.ring_env import APP, SHORT_LEASES, SLOTS, config, make_objects
from support.wait import until

OTHER = "asked for here"


@dataclass
class Program:
    """A replica: a controller that is shared, and a part that runs alone."""

    name: str
    cluster: Cluster
    namespace: str
    done: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    gone: list[Key] = field(default_factory=list)
    leads: bool = False

    def __post_init__(self) -> None:
        self.faults = Faults()
        self.client = self.cluster.client(wrap=self.faults.wrap)
        self.ring = Ring(self.client, config(self.namespace, name=self.name, state=SHORT_LEASES))
        self.cache = Informer(self.client, CONFIG_MAPS, namespace=self.namespace, labels=APP)
        self.sharing = SharedControllers(self.ring, prepared=self.cache.synced)
        self.fenced = Client(FencedTransport(self.client.transport, self.sharing.check))
        self.controller: Controller[Key] = Controller("shared", self.reconcile)
        self.cache.on_change(lambda old, new: self.controller.enqueue((new or old).key))
        self.sharing.share(
            self.controller,
            by=str,
            keys=lambda: [each.key for each in self.cache.items()],
            besides=lambda key: key.name == OTHER,
            release=self.gone.append,
        )
        self.sharing.alone(self)

    async def reconcile(self, key: Key) -> Outcome:
        self.done[str(key)] += 1
        if key.name != OTHER:
            patch = MergePatch({"data": {"by": self.name}})
            await self.fenced.patch(CONFIG_MAPS, key.name, patch, key.namespace)
        return Done()

    async def run(self) -> None:
        """Run the part that only one replica runs: write for as long as the fence permits."""
        self.leads = True
        try:
            patch = MergePatch({"data": {"alone": self.name}})
            while True:
                await self.fenced.patch(CONFIG_MAPS, "o0", patch, self.namespace)
                await asyncio.sleep(0.1)
        except Fenced as error:
            self.refused.append(str(error))
            await asyncio.Event().wait()
        finally:
            self.leads = False

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        parts = (self.ring, self.cache, self.controller)
        tasks = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield
        finally:
            self.faults.heal()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()


async def test_each_does_its_part_and_one_does_what_is_done_alone(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    keys = set(await make_objects(client, namespace, 30))
    a, b = Program("a", cluster, namespace), Program("b", cluster, namespace)
    async with a.at_work(), b.at_work():

        def shared() -> bool:
            return a.ring.serving | b.ring.serving == set(range(SLOTS)) and bool(
                a.ring.serving and b.ring.serving
            )

        await until(shared)
        await until(lambda: a.done.keys() | b.done.keys() == keys)
        assert a.leads != b.leads
        # Keys of other replicas can be enqueued here; their reconcile needs no grant.
        other = Key(namespace, OTHER)
        for program in (a, b):
            program.controller.enqueue(other)
        await until(lambda: a.done[str(other)] and b.done[str(other)])
        # A key is its owner's alone.
        theirs = next(key for key in keys if not a.sharing.owns(key))
        with pytest.raises(NotOurs, match="which this replica does not own"):
            async with a.sharing.turn(theirs):
                pytest.fail("it was let in")
        a.done.clear()
        a.controller.enqueue(Key(*theirs.split("/")))
        mine = next(key for key in keys if a.sharing.owns(key))
        a.controller.enqueue(Key(*mine.split("/")))
        await until(lambda: a.done[mine])
        assert not a.done[theirs]
        assert mine in {text for slot in a.ring.serving for text in a.sharing.resources(slot)}

        # One replica is cut off: it may write nothing any more, and the other does all work.
        lost, kept = (a, b) if a.leads else (b, a)
        taken = {key for key in keys if lost.sharing.owns(key)}
        kept.done.clear()
        lost.gone.clear()
        lost.faults.partition()
        await until(lambda: not lost.ring.serving and not lost.leads)
        with pytest.raises(KubeoceanError):
            lost.sharing.check()
        assert {str(key) for key in lost.gone} == taken
        await until(lambda: len(kept.ring.serving) == SLOTS and kept.leads)
        await until(lambda: kept.done.keys() >= taken)
        await until(lambda: _by(client, namespace, kept.name))


async def _by(client: Client, namespace: str, name: str) -> bool:
    found = (await client.list(CONFIG_MAPS, namespace, labels=APP)).items
    return {(each.data or {}).get("by") for each in found} == {name}
