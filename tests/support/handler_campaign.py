"""Campaign against handlers: objects change at random while replicas start, stop and fail.

`Campaign` makes every change, so it records which objects exist, and when each was created, changed
and deleted. `Evidence` compares this with the calls that the replicas recorded.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from kubeocean.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.sharding.names import Names
from kubeocean.sharding.slots import slot_of
from support.sharding_proof import Proof
from support.sharding_worker import RING
from support.wait import until

__all__ = ["Campaign", "Evidence", "HandlerCall", "Life"]

WORKER = Path(__file__).with_name("handler_worker.py")
LABEL = Names(RING).slot_label
PAUSE_S = 0.01
LAG_S = 30.0  # of caches and notifiers on a busy machine


def now() -> float:
    """Return the time on the clock that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A line of the replicas' record."""

    at: float
    who: str
    event: str
    slot: int
    epoch: int
    key: str
    uid: str
    seq: str


@dataclass
class Life:
    """An object's true state. Times are those at which a request began or was answered."""

    name: str
    uid: str
    seq: int
    created: float
    deleting: float = float("inf")
    deleted: float = float("inf")
    graceful: bool = False  # deleted while replicas came and went in order
    hidden: float = float("-inf")  # when its slot label was last removed or changed


@dataclass
class Evidence:
    """The truth and the calls.

    `disturbed` are incarnations that were killed, frozen or cut off; `outages` are the times from
    the stop of the API server until it answered again.
    """

    namespace: str
    slots: int
    lives: list[Life]
    calls: list[HandlerCall]
    disturbed: set[str]
    outages: list[tuple[float, float]]

    def check(self, *, guaranteed: bool) -> dict[str, float]:
        """Check all promises; return the counts."""
        deletions = Counter((call.key, call.uid) for call in self.of("delete"))
        deleted = {self._id(life): life for life in self.lives if life.deleting < float("inf")}
        expected = self._expected()
        lost = expected.keys() - deletions.keys()
        false = [
            call
            for call in self.of("delete")
            if (call.key, call.uid) not in deleted or call.at < deleted[call.key, call.uid].deleting
        ]
        repeated = {each for each, count in deletions.items() if count > 1}
        assert not false, false[:3]
        missing = self.missing(guaranteed=guaranteed)
        assert not missing, sorted(missing)[:3]
        if guaranteed:
            unexplained = {each for each in repeated if not self._was_interrupted(each)}
            assert not unexplained, sorted(unexplained)[:3]
        else:
            assert not repeated, sorted(repeated)[:3]
        self._check_changes()
        self._check_overlap()
        return {
            "objects": len(self.lives),
            "calls": len(self.calls),
            "deletions": len(expected),
            "deletions_in_graceful_steps": sum(life.graceful for life in expected.values()),
            "deletions_lost": len(lost),
            "deletions_repeated": len(repeated),
            "shards_gained_and_lost": self._check_notifications(),
        }

    def _was_interrupted(self, deleted: tuple[str, str]) -> bool:
        """Whether a deletion may have been handled, and its finalizer not removed thereafter.

        So it is if a replica was disturbed, or had no API server until its slot was another's.
        """
        calls = [each for each in self.of("delete") if (each.key, each.uid) == deleted]
        return any(each.who in self.disturbed for each in calls) or all(
            any(began < later.at and earlier.at < ended for began, ended in self.outages)
            and earlier.epoch != later.epoch
            for earlier, later in pairwise(calls)
        )

    def missing(self, *, guaranteed: bool) -> set[tuple[str, str]]:
        """Return the deletions that must have been handled, and were not."""
        handled = {(call.key, call.uid) for call in self.of("delete")}
        return {
            each
            for each, life in self._expected().items()
            if each not in handled and (guaranteed or life.graceful)
        }

    def _expected(self) -> dict[tuple[str, str], Life]:
        """Return the deleted objects that were handled before, by key and UID."""
        added = {(call.key, call.uid) for call in self.of("add")}
        deleted = {self._id(life): life for life in self.lives if life.deleting < float("inf")}
        return {each: life for each, life in deleted.items() if each in added}

    def of(self, *kinds: str) -> list[HandlerCall]:
        return [call for call in self.calls if call.event in kinds]

    def behind(self, replicas: Collection[str] | None = None) -> list[str]:
        """Return the living objects whose last call was not for their last version, or not by one
        of these replicas."""
        last = {
            (call.key, call.uid): call.seq
            for call in self.of("add", "update")
            if replicas is None or call.who in replicas
        }
        return [
            life.name
            for life in self.lives
            if life.deleting == float("inf") and last.get(self._id(life)) != str(life.seq)
        ]

    def _check_changes(self) -> None:
        assert not self.behind()

    def _check_overlap(self) -> None:
        """Check that no key has two calls at a time, and that epochs of a slot only grow."""
        inside: dict[str, HandlerCall] = {}
        newest: dict[int, HandlerCall] = {}
        owners: dict[tuple[int, int], str] = {}
        for call in self.of("begin", "end"):
            assert owners.setdefault((call.slot, call.epoch), call.who) == call.who, call
            if call.event == "begin":
                last = newest.get(call.slot)
                assert last is None or call.epoch >= last.epoch, (last, call)
                newest[call.slot] = call
            if call.who in self.disturbed:
                continue
            if call.event == "begin":
                assert call.key not in inside, (inside[call.key], call)
                inside[call.key] = call
            else:
                inside.pop(call.key, None)

    def _check_notifications(self) -> int:
        """Check that the keys of a gained or lost shard are those of the objects in it, except for
        objects that changed in the last seconds; return the number of notifications."""
        count = 0
        gone = {(call.key, call.uid): call.at for call in self.of("delete")}  # with a finalizer
        by_slot: dict[int, list[Life]] = {}
        for life in self.lives:
            by_slot.setdefault(self._slot(life), []).append(life)
        for call in self.of("gained", "lost"):
            if call.who in self.disturbed:
                continue
            count += 1
            named = set() if call.key == "-" else set(call.key.split(","))
            lives, at = by_slot.get(call.slot, []), call.at
            sure = {
                self._key(life)
                for life in lives
                if life.created < at - LAG_S and life.deleting > at and life.hidden < at - LAG_S
            }
            possible = {
                self._key(life)
                for life in lives
                if life.created < at
                and max(life.deleted, gone.get(self._id(life), 0.0)) > at - LAG_S
            }
            assert sure <= named <= possible, (call.event, call.who, sure - named, named - possible)
        return count

    def _key(self, life: Life) -> str:
        return f"{self.namespace}/{life.name}"

    def _id(self, life: Life) -> tuple[str, str]:
        return self._key(life), life.uid

    def _slot(self, life: Life) -> int:
        return slot_of(self._key(life), self.slots)


@dataclass
class Campaign(Proof):
    """Objects, random changes, and replicas that handle them."""

    seed: int = 1
    guaranteed: bool = False
    cut_s: float = 10.0
    lives: list[Life] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.worker = WORKER
        self.environ = {
            "SHARD_DELETIONS": "guaranteed" if self.guaranteed else "observed",
            "SHARD_CUT_S": str(self.cut_s),
            **self.environ,
        }
        self._random = random.Random(self.seed)
        self._alive: dict[str, Life] = {}
        self._created = 0
        self._graceful = False

    # Objects and replicas

    async def populate(self) -> None:
        """Create the first objects."""
        limit = asyncio.Semaphore(16)

        async def create() -> None:
            async with limit:
                await self._create()

        async with asyncio.TaskGroup() as group:
            for _ in range(self.objects):
                group.create_task(create())

    @asynccontextmanager
    async def changing(self, *, graceful: bool) -> AsyncIterator[None]:
        """Change objects at random until the block ends."""
        self._graceful = graceful
        stop = asyncio.Event()

        async def change() -> None:
            while not stop.is_set():
                try:
                    await self._change()
                except (ApiError, TimeoutError):
                    await asyncio.sleep(0.5)  # the API server is restarting
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(change())
            try:
                yield
            finally:
                stop.set()
                await asyncio.wait([task])

    async def handled(self, *, within: float = 300) -> None:
        """Wait until every object was handled in its last version, by a running replica."""

        async def complete() -> bool:
            self.check_alive()
            living = (await self.overseer.state()).living
            assert self.evidence().behind(living) == []
            return True

        await until(complete, within=within, every=1.0, waiting_for="all objects to be handled")

    async def deletions_handled(self, *, within: float) -> None:
        """Wait until no deletion that must be handled is missing."""

        def complete() -> bool:
            self.check_alive()
            assert self.evidence().missing(guaranteed=self.guaranteed) == set()
            return True

        await until(complete, within=within, every=1.0, waiting_for="all deletions to be handled")

    def evidence(self) -> Evidence:
        """Return all that is known so far."""
        calls = []
        for line in self.file.read_text().splitlines():
            words = line.split(" ")
            if len(words) == 8:  # a killed replica may have left half a line
                at, who, event, slot, epoch, key, uid, seq = words
                calls.append(
                    HandlerCall(float(at), who, event, int(slot), int(epoch), key, uid, seq)
                )
        calls.sort(key=lambda call: call.at)
        return Evidence(self.namespace, self.slots, self.lives, calls, self.disturbed, self.outages)

    async def restart_server(self) -> None:
        """Restart the API server."""
        began = now()
        await self.cluster.restart("kube-apiserver")
        self.outages.append((began, now()))

    async def cut_off(self, name: str) -> None:
        """Cut a replica off from the network for a while, and wait until it is back."""
        await self._disturb(name)
        pid = self.replicas[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)
        await asyncio.sleep(self.cut_s)  # the passing of time is the fault

    async def stopped(self, name: str, seconds: float) -> None:
        """Stop a replica with SIGSTOP for so long."""
        await self._disturb(name)
        self.replicas[name].pause()
        await asyncio.sleep(seconds)
        self.replicas[name].resume()

    async def _while_loaded(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # Changes

    async def _change(self) -> None:
        choice = self._random.random()
        if choice < 0.2 or not self._alive:
            await self._create()
            return
        life = self._alive[self._random.choice(sorted(self._alive))]
        try:
            if choice < 0.4:
                await self._delete(life)
            elif choice < 0.45:
                await self._delete(life)
                await self._create(life.name)
            elif choice < 0.7:
                await self._patch(life, {})
            elif choice < 0.85:
                await self._replace(life)
            else:
                right = slot_of(f"{self.namespace}/{life.name}", self.slots)
                other = str((right + 1) % self.slots)
                label = self._random.choice([None, "abc", "99999", other])
                life.hidden = now()
                await self._patch(life, {"labels": {LABEL: label}})
                life.hidden = now()
        except (AlreadyExists, Conflict, NotFound):
            return  # a finalizer still holds the object of that name, or a label was restored

    async def _create(self, name: str = "") -> None:
        if not name:
            self._created += 1
            name = f"o{self._created}"
        body = {"metadata": {"name": name, "labels": {"app": "sharded"}}, "data": {"seq": "0"}}
        began, unsure = now(), False
        while True:
            try:
                obj = await self.client.create(CONFIG_MAPS, body, namespace=self.namespace)
                break
            except AlreadyExists:
                if not unsure:
                    raise  # a finalizer still holds the object that had the name before
                obj = await self.client.get(CONFIG_MAPS, name, self.namespace)
                if not obj.deleting:
                    break
            except ApiError:  # the object may have been created, and the answer lost
                unsure = True
            await asyncio.sleep(0.5)
        self._alive[name] = life = Life(name, obj.uid, 0, began)
        self.lives.append(life)

    async def _delete(self, life: Life) -> None:
        life.deleting, life.graceful = now(), self._graceful
        self._alive.pop(life.name, None)
        while True:  # after a lost answer the object may be deleted or not
            try:
                await self.client.delete(CONFIG_MAPS, life.name, self.namespace, uid=life.uid)
                break
            except (Conflict, NotFound):
                break
            except ApiError:
                await asyncio.sleep(0.5)
        life.deleted = now()

    async def _patch(self, life: Life, metadata: dict[str, object]) -> None:
        life.seq += 1
        body = {"metadata": {"uid": life.uid, **metadata}, "data": {"seq": str(life.seq)}}
        patch = MergePatch(body)
        await self._insist(lambda: self.client.patch(CONFIG_MAPS, life.name, patch, self.namespace))

    async def _replace(self, life: Life) -> None:
        """Replace an object as `kubectl replace` does with the user's file: without the labels and
        annotations of the ring. Finalizers stay, as in a file that was read from the server."""
        life.seq += 1

        async def put() -> None:
            stored = await self.client.get(CONFIG_MAPS, life.name, self.namespace)
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": life.name,
                    "uid": life.uid,
                    "resourceVersion": stored.resource_version,
                    "labels": {"app": "sharded"},
                    "finalizers": list(stored.metadata.finalizers or ()),
                },
                "data": {"seq": str(life.seq)},
            }
            path = CONFIG_MAPS.path(self.namespace, life.name)
            await self.client.request("PUT", path, body=body)

        life.hidden = now()
        await self._insist(put)
        life.hidden = now()

    async def _insist(self, write: Callable[[], Awaitable[object]]) -> None:
        """Repeat a write until its result is known."""
        while True:
            try:
                await write()
                return
            except NotFound:
                raise
            except ApiError:
                await asyncio.sleep(0.2)
