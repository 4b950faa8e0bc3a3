"""Heartbeats of virtual nodes: their Leases, renewed only while the worker answers.

While the worker does not answer, the state of its nodes is unknown: heartbeats stop, and Kubernetes
shows the virtual nodes as NotReady by its own rules. When the worker answers again, heartbeats
resume. No Lease is renewed before the worker's nodes were listed for the first time.

A controller creates or adopts the Lease of a new node. From then on a schedule renews it, as
cheaply as possible: with many nodes this is nearly all that a syncer does. A renewal that fails is
repeated three times before the Lease expires; the controller creates a Lease that is gone or
replaced anew. Where replicas share a binding, each renews the Leases of its own nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kubeocean.api.group import NODE_LEASE_DURATION_S, NODE_LEASE_NAMESPACE
from kubeocean.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.kinds import LEASES, Lease, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.sharding.fencing import NotOurs
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.metrics import LeaseMetrics
from kubeocean.syncer.shard_filter import ALL, ShardFilter, of_node

__all__ = ["HeartbeatSchedule", "Heartbeats"]

SLOTS: Final = 10


class HeartbeatSchedule:
    """Calls `renew` for each name once in a period; `renew` must not raise.

    The period has slots, and a new name is added to the slot with the fewest names: calls are
    spread evenly, and those of one slot are made together, which costs far less than one by one. At
    most `at_once` calls run at a time; a call that hangs delays no other. No name has two calls at
    a time: a call that is due while the last call for that name waits or runs is skipped.
    """

    def __init__(
        self,
        renew: Callable[[str], Awaitable[None]],
        *,
        period_s: float,
        at_once: int,
        clock: Clock,
    ) -> None:
        self._renew = renew
        self._step_s = period_s / SLOTS
        self._at_once = at_once
        self._clock = clock
        self._slots: list[dict[str, None]] = [{} for _ in range(SLOTS)]
        self._slot_of: dict[str, int] = {}
        self._waiting: dict[str, None] = {}  # names that are due, in order
        self._running: set[str] = set()  # names with a call under way
        self._tasks = 0
        self._due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, name: str) -> bool:
        return name in self._slot_of

    def join(self, name: str) -> None:
        """Add a name to the schedule; its first call comes within a period."""
        if name not in self._slot_of:
            slot = min(range(SLOTS), key=lambda each: len(self._slots[each]))
            self._slots[slot][name] = None
            self._slot_of[name] = slot

    def leave(self, name: str) -> None:
        """Remove a name from the schedule."""
        slot = self._slot_of.pop(name, None)
        if slot is not None:
            del self._slots[slot][name]
            self._waiting.pop(name, None)

    def call_all(self) -> None:
        """Call `renew` for all names now; the schedule of later calls does not change."""
        self._enqueue(self._slot_of)

    async def run(self) -> None:
        """Call `renew` for each name on schedule, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            while True:
                await self._due.wait()
                self._due.clear()
                for _ in range(min(len(self._waiting), self._at_once - self._tasks)):
                    self._tasks += 1
                    group.create_task(self._work())

    async def _tick(self) -> None:
        """Start the calls of each slot. After a stall, missed slots are skipped, not replayed."""
        due, slot = self._clock.monotonic(), 0
        while True:
            due = max(due + self._step_s, self._clock.monotonic() - self._step_s)
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            slot = (slot + 1) % SLOTS
            self._enqueue(self._slots[slot])

    def _enqueue(self, names: Iterable[str]) -> None:
        self._waiting.update((name, None) for name in names if name not in self._running)
        if self._waiting:
            self._due.set()

    async def _work(self) -> None:
        try:
            while self._waiting:
                name = next(iter(self._waiting))
                del self._waiting[name]
                self._running.add(name)
                try:
                    await self._renew(name)
                finally:
                    self._running.discard(name)
        finally:
            self._tasks -= 1


WORKERS: Final = 16
RENEW_S: Final = NODE_LEASE_DURATION_S / 4
_RETRY_S: Final = 1.0

_log = get_logger(__name__)


class Heartbeats:
    """Creates and renews one Lease for each virtual node; the key is the name of the node."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._part: ShardFilter = ALL
        self._known: dict[str, str] = {}  # node -> UID of its Lease, which the node owns
        self._failing = False
        self._schedule = HeartbeatSchedule(
            self._renew_own, period_s=RENEW_S, at_once=WORKERS, clock=clusters.clock
        )
        self.controller: Controller[Key] = Controller(
            f"lease-{clusters.binding_name}",
            self.reconcile,
            workers=WORKERS,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self.parts: tuple[Runnable, ...] = (self.controller, self._schedule)
        self._metrics = LeaseMetrics(clusters.metrics)
        clusters.vnodes.on_change(self._vnode_changed)
        clusters.worker_health.on_change(self._reached)

    def share(self, part: ShardFilter) -> None:
        """Renew only the Leases of nodes in these shards; call before `run`."""
        self._part = part

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (new is None or new.uid != old.uid or new.deleting):
            self._forget(old.name)
        if new is not None and (old is None or old.uid != new.uid):
            self.controller.enqueue(new.key)

    def _reached(self, answers: bool) -> None:
        if answers:
            self._schedule.call_all()
            for vnode in self._clusters.vnodes.items():
                if vnode.name not in self._known:
                    self.controller.enqueue(vnode.key)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._schedule.leave(name)

    # A Lease that is not known yet

    async def reconcile(self, key: Key) -> Outcome:
        """Create or adopt the Lease of a virtual node, and schedule its renewal."""
        vnode = self._clusters.vnodes.get(key)
        if vnode is None or vnode.deleting or not self._clusters.worker_health.answers:
            return Done()
        if not self._clusters.pnodes.has_synced:
            return After(_RETRY_S)
        try:
            lease = await self._create(vnode)
        except AlreadyExists:
            try:
                lease = await self._adopt(vnode)
            except NotFound:
                return After(0.0)  # the Lease was deleted with an earlier node of that name
        vnode = self._clusters.vnodes.get(key)
        if vnode is not None and not vnode.deleting:  # else no event would end the renewals
            self._known[key.name] = lease.uid
            self._schedule.join(key.name)
        return Done()

    async def _create(self, vnode: Node) -> Lease:
        body: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": vnode.name,
                "namespace": NODE_LEASE_NAMESPACE,
                "ownerReferences": [_owner(vnode)],
            },
            "spec": self._spec(vnode.name),
        }
        return await self._clusters.computing.create(LEASES, body)

    async def _adopt(self, vnode: Node) -> Lease:
        metadata: Json = {"ownerReferences": [_owner(vnode)]}
        body = MergePatch({"metadata": metadata, "spec": self._spec(vnode.name)})
        return await self._clusters.computing.patch(LEASES, vnode.name, body, NODE_LEASE_NAMESPACE)

    # A Lease that is known

    async def _renew_own(self, name: str) -> None:
        uid = self._known.get(name)
        if uid is None or not self._clusters.worker_health.answers:
            return
        try:
            async with self._part.turn(of_node(name)):
                await self._renew(name, uid)
        except NotOurs:
            self._forget(name)

    async def _renew(self, name: str, uid: str) -> None:
        body = MergePatch({"metadata": {"uid": uid}, "spec": self._spec(name)})
        try:
            await self._clusters.computing.patch(LEASES, name, body, NODE_LEASE_NAMESPACE)
        except (NotFound, Conflict, Invalid):
            self._forget(name)
            self.controller.enqueue(Key("", name))
        except ApiError as error:
            self._note_failure(error)
        else:
            self._metrics.renewed.inc()
            self._failing = False

    def _note_failure(self, error: ApiError) -> None:
        """Count a failed renewal, and log the first: a failure for one node is one for all."""
        self._metrics.failed.inc()
        if not self._failing:
            self._failing = True
            _log.warning(
                "Could not renew Lease of virtual node",
                error=str(error),
                leases=len(self._schedule),
            )

    def _spec(self, name: str) -> Json:
        return {
            "holderIdentity": name,
            "leaseDurationSeconds": NODE_LEASE_DURATION_S,
            "renewTime": f"{self._clusters.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}",
        }


def _owner(vnode: Node) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": vnode.name, "uid": vnode.uid}
