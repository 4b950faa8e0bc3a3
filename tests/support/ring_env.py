"""Rings for tests: replicas in this process, each with its own connections and its own faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Done, Outcome
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.sharding import ResourceHandler
from kubeocean.sharding.config import Config, read_config
from kubeocean.sharding.controller import ShardedController
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.table import name_of
from kubeocean.sharding.workloads import ShardNotifier
from support.faults import Faults
from support.wait import until

__all__ = [
    "APP",
    "MANY",
    "SLOTS",
    "Act",
    "Call",
    "Deaf",
    "Notes",
    "Recorder",
    "Replica",
    "RingEnv",
    "config",
    "make_objects",
]

APP = "app=sharded"
SLOTS = 32
# Keys fall into slots as their names will: with so many, more than half of the slots have one, and
# whoever gives up half of its slots gives up some that have work.
MANY = 2 * SLOTS


def config(namespace: str, *, name: str, ring: str = "ring", **sections: dict[str, Any]) -> Config:
    """A ring with short periods; sections are added to what is there."""
    document: dict[str, dict[str, Any]] = {
        "sharding": {
            "ring": ring,
            "namespace": namespace,
            "slots": SLOTS,
            "settlePeriod": "300ms",
            "rebalanceInterval": "1s",
            "drainDeadline": "2s",
            "cancelDeadline": "1s",
            "handoverDeadline": "5s",
            "filter": "label",
        },
        # Loads are what they are on a busy machine; without them all slots weigh the same.
        "node": {"identity": name, "healthCheckInterval": "1h"},
        "state": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "400ms"},
    }
    for section, keys in sections.items():
        document[section] = {**document.get(section, {}), **keys}
    return read_config(document)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a replica did about a key."""

    replica: str
    what: str
    key: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a replica's handler."""

    replica: str
    what: str
    key: str
    uid: str
    data: str


class Recorder(ResourceHandler[ConfigMap]):
    """Handler of a replica that records its calls in the ring's list."""

    def __init__(self, replica: str, calls: list[Call]) -> None:
        self._replica = replica
        self._calls = calls

    async def handle_add(self, obj: ConfigMap) -> None:
        self._record("add", obj)

    async def handle_update(self, old: ConfigMap, new: ConfigMap) -> None:
        self._record("update", new)

    async def handle_delete(self, obj: ConfigMap) -> None:
        self._record("delete", obj)

    def _record(self, what: str, obj: ConfigMap) -> None:
        data = (obj.data or {}).get("text", "")
        self._calls.append(Call(self._replica, what, str(obj.key), obj.uid, data))


@dataclass
class Notes(ShardNotifier):
    """The calls that a notifier got; `hold` keeps the replica from releasing its shards."""

    gained: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    reassigned: list[tuple[int, str, str]] = field(default_factory=list)
    resources: dict[int, Sequence[str]] = field(default_factory=dict)
    lost_resources: dict[int, Sequence[str]] = field(default_factory=dict)
    hold: asyncio.Event | None = None

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        self.gained.append(shard)
        self.resources[shard] = resources

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.lost.append(shard)
        self.lost_resources[shard] = resources

    async def on_shard_reassigned(self, shard: int, old: str, new: str) -> None:
        self.reassigned.append((shard, name_of(old), name_of(new)))


class Replica:
    """A ring member with one controller, which notes what it does."""

    def __init__(
        self,
        ring_env: RingEnv,
        name: str,
        *,
        clock: Clock | None = None,
        reconcile: Callable[[Replica, Key], Any] | None = None,
        handles: bool = False,
        workers: int = 4,
        options: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.name = name
        self.faults = Faults()
        self.client = ring_env.cluster.client(wrap=self.faults.wrap)
        self.metrics = Metrics()
        self.notes = Notes()
        self._ring_env = ring_env
        self._reconcile = reconcile
        settings = config(ring_env.namespace, name=name, **sections)
        self.ring = Ring(
            self.client, settings, notifiers=[self.notes], clock=clock, metrics=self.metrics
        )
        self.controller: ShardedController[ConfigMap] = ShardedController(
            "ring",
            self.ring,
            self.client,
            CONFIG_MAPS,
            reconcile=None if handles else self.reconcile,
            handler=Recorder(name, ring_env.calls) if handles else None,
            namespace=ring_env.namespace,
            labels=APP,
            workers=workers,
            clock=clock,
            **(options or {}),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def reconcile(self, key: Key) -> Outcome:
        grant = self.ring.grant(self.ring.shard_of(str(key)))
        self._ring_env.note(self.name, "begin", key, grant.epoch)
        try:
            if self._reconcile is not None:
                await self._reconcile(self, key)
        finally:
            self._ring_env.note(self.name, "end", key, grant.epoch)
        return Done()

    @property
    def slots(self) -> frozenset[int]:
        return self.ring.serving

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self.ring.run()),
            asyncio.create_task(self.controller.run()),
        ]

    async def leave(self) -> None:
        """End as SIGTERM does."""
        await self.ring.stop()
        await self.controller.stop()
        await self.ended()

    async def crash(self) -> None:
        """End without a word: nothing that it says on its way out gets anywhere."""
        self.faults.partition()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        self._tasks = []

    async def ended(self) -> None:
        for task in self._tasks:
            await task
        await self.client.close()
        self._tasks = []

    async def close(self) -> None:
        """At the end of a test, whatever the state."""
        if self.notes.hold is not None:
            self.notes.hold.set()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error


class RingEnv:
    """Replicas of one ring, and the account of all that they did."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.replicas: list[Replica] = []
        self.acts: list[Act] = []
        self.calls: list[Call] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, cluster: Cluster, namespace: str) -> AsyncIterator[RingEnv]:
        ring_env = cls(cluster, namespace)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(ring_env._close)
            yield ring_env

    async def _close(self) -> None:
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                if replica._tasks:
                    group.create_task(replica.close())

    def join(self, name: str, **options: Any) -> Replica:
        replica = Replica(self, name, **options)
        self.replicas.append(replica)
        replica.start()
        return replica

    async def at_work(self, keys: Iterable[str], *names: str, **options: Any) -> list[Replica]:
        """Replicas of these names that share fairly, once they have done all keys."""
        replicas = [self.join(name, **options) for name in names]
        await self.share(replicas)
        wanted = set(keys)
        await until(lambda: set(self.done()) == wanted)
        return replicas

    def note(self, replica: str, what: str, key: Key, epoch: int) -> None:
        self.acts.append(Act(replica, what, str(key), epoch))

    def done(self, since: int = 0) -> Counter[str]:
        """How often each key was reconciled."""
        return Counter(act.key for act in self.acts[since:] if act.what == "end")

    def by(self, key: str) -> list[str]:
        return [act.replica for act in self.acts if act.key == key and act.what == "begin"]

    def check_exclusive(self) -> None:
        """At no time two reconciles of one key; epochs of a key only grow."""
        inside: dict[str, Act] = {}
        epochs: dict[str, int] = {}
        for act in self.acts:
            if act.what == "begin":
                assert act.key not in inside, (inside[act.key], act)
                assert act.epoch >= epochs.get(act.key, 0), act
                inside[act.key], epochs[act.key] = act, act.epoch
            else:
                del inside[act.key]

    def handled(self, what: str) -> Counter[tuple[str, str]]:
        """Return how often the handlers were called so for each object, by key and UID."""
        return Counter((call.key, call.uid) for call in self.calls if call.what == what)

    async def share(self, replicas: Iterable[Replica], *, within: float = 90) -> None:
        """Wait until these have all slots among them, each about the same."""
        some = list(replicas)

        def fair() -> bool:
            counts = [len(replica.slots) for replica in some]
            # An agreed table is not enough: the slots have to be in service.
            return sum(counts) == SLOTS and max(counts) - min(counts) <= 1

        await until(fair, within=within, what=f"a fair share of {[r.name for r in some]}")


class Deaf:
    """Work of one replica that no cancellation ends, until it is set free."""

    def __init__(self, replica: str) -> None:
        self.free = asyncio.Event()
        self._replica = replica

    async def __call__(self, replica: Replica, key: Key) -> None:
        while replica.name == self._replica and not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue


async def make_objects(client: Client, namespace: str, count: int, *, start: int = 0) -> list[str]:
    """ConfigMaps that a ring works on; their keys."""
    names = [f"o{number}" for number in range(start, start + count)]
    labels = dict([APP.split("=")])

    async def make(name: str) -> None:
        body = {"metadata": {"name": name, "labels": labels}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(make(name))
    return [f"{namespace}/{name}" for name in names]
