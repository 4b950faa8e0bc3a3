"""Rings for tests: replicas in this process, each with its own connections and its own faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

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
    "SHORT_DRAINS",
    "SHORT_LEASES",
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
# The slot of a key depends on its name. With so many keys more than half of the slots have one, and
# a replica that hands over half of its slots hands over some that have work.
MANY = 2 * SLOTS
# For tests in which a membership or a hand-over ends by force: these have to wait for it.
SHORT_LEASES = {"leaseDuration": "6s", "renewDeadline": "4s"}
SHORT_DRAINS = {"drainDeadline": "2s", "cancelDeadline": "1s", "handoverDeadline": "5s"}


def config(namespace: str, *, name: str, ring: str = "ring", **sections: dict[str, Any]) -> Config:
    """Return a config of a ring that decides at once, and in which no membership and no hand-over
    ends by force, also on a busy machine; `sections` are merged into these settings."""
    document: dict[str, dict[str, Any]] = {
        "sharding": {
            "ring": ring,
            "namespace": namespace,
            "slots": SLOTS,
            "settlePeriod": "300ms",
            "rebalanceInterval": "1s",
            "drainDeadline": "1m",
            "handoverDeadline": "2m",
            "filter": "label",
        },
        # Measured loads vary on a busy machine; without load reports all slots weigh the same.
        "node": {"identity": name, "healthCheckInterval": "1h"},
        "state": {"leaseDuration": "30s", "renewDeadline": "20s", "retryPeriod": "400ms"},
    }
    for section, keys in sections.items():
        document[section] = {**document.get(section, {}), **keys}
    return read_config(document)


@dataclass(frozen=True, slots=True)
class Act:
    """Event of a replica's work on a key."""

    replica: str
    event: str
    key: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a replica's handler."""

    replica: str
    event: str
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

    def _record(self, event: str, obj: ConfigMap) -> None:
        data = (obj.data or {}).get("text", "")
        self._calls.append(Call(self._replica, event, str(obj.key), obj.uid, data))


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
    """A ring member with one controller, which records its reconciles."""

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
        """Stop the replica as SIGTERM does."""
        await self.ring.stop()
        await self.controller.stop()
        await self.ended()

    async def crash(self) -> None:
        """End the replica without any further request, as a crash does."""
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
        """Stop the replica at the end of a test, in any state."""
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
        """Start replicas of these names; return them when they share all slots and have done all
        keys."""
        replicas = [self.join(name, **options) for name in names]
        await self.share(replicas)
        wanted = set(keys)
        await until(lambda: set(self.done()) == wanted)
        return replicas

    def note(self, replica: str, event: str, key: Key, epoch: int) -> None:
        self.acts.append(Act(replica, event, str(key), epoch))

    def done(self, since: int = 0) -> Counter[str]:
        """Return how often each key was reconciled."""
        return Counter(act.key for act in self.acts[since:] if act.event == "end")

    def by(self, key: str) -> list[str]:
        return [act.replica for act in self.acts if act.key == key and act.event == "begin"]

    def check_exclusive(self) -> None:
        """Check that no key has two reconciles at a time, and that its epochs only grow."""
        inside: dict[str, Act] = {}
        epochs: dict[str, int] = {}
        for act in self.acts:
            if act.event == "begin":
                assert act.key not in inside, (inside[act.key], act)
                assert act.epoch >= epochs.get(act.key, 0), act
                inside[act.key], epochs[act.key] = act, act.epoch
            else:
                del inside[act.key]

    def handled(self, event: str) -> Counter[tuple[str, str]]:
        """Return how often the handlers were called so for each object, by key and UID."""
        return Counter((call.key, call.uid) for call in self.calls if call.event == event)

    async def share(self, replicas: Iterable[Replica], *, within: float = 90) -> None:
        """Wait until these have all slots among them, each about the same."""
        some = list(replicas)

        def fair() -> bool:
            counts = [len(replica.slots) for replica in some]
            # An agreed table is not enough: the slots have to be in service.
            return sum(counts) == SLOTS and max(counts) - min(counts) <= 1

        await until(fair, within=within, waiting_for=f"a fair share of {[r.name for r in some]}")


class Deaf:
    """Work of one replica that no cancellation ends, until it is set free or the block ends."""

    def __init__(self, replica: str) -> None:
        self.free = asyncio.Event()
        self._replica = replica

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.free.set()

    async def __call__(self, replica: Replica, key: Key) -> None:
        while replica.name == self._replica and not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue


async def make_objects(client: Client, namespace: str, count: int, *, start: int = 0) -> list[str]:
    """Create ConfigMaps for a ring; return their keys."""
    names = [f"o{number}" for number in range(start, start + count)]
    labels = dict([APP.split("=")])

    async def make(name: str) -> None:
        body = {"metadata": {"name": name, "labels": labels}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(make(name))
    return [f"{namespace}/{name}" for name in names]
