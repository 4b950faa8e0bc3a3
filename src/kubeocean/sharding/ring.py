"""Ring: this replica's membership in a ring, the group of replicas that share a controller's keys.

A `Ring` keeps the replica's Lease, is a candidate in the election of the planner, follows the
table, and gains and loses slots as the table says. Workloads (`Workload`) and notifiers
(`ShardNotifier`) are added to a `Ring`.

An incarnation ends when its Lease could not be renewed in time: all of its work is cancelled and
awaited, and the replica rejoins under another ID. If cancelled work does not end, the process must
end: `run` raises `GaveUp`.

    ring = Ring(client, config)
    controller = ShardedController("pods", ring, …)
    Service("example", [ring, controller])
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from kubeocean.errors import ApiError, ConfigError, KubeoceanError
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.election import Election
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.sharding.admission import own_principal
from kubeocean.sharding.algorithms.custom import as_algorithm
from kubeocean.sharding.callbacks import check_callbacks
from kubeocean.sharding.config import Config
from kubeocean.sharding.fencing import Grant, NotOurs
from kubeocean.sharding.handover import HandoverPages
from kubeocean.sharding.heartbeat import Evicted, Heartbeat
from kubeocean.sharding.identity import filter_field, identity_of
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.nodes import NodeInfo, NodeMonitor, NodeWatcher
from kubeocean.sharding.planner import Planner
from kubeocean.sharding.planner_loop import PlannerLoop
from kubeocean.sharding.ring_checks import RingChecks
from kubeocean.sharding.slot_lease import SlotLeases
from kubeocean.sharding.slot_lifecycle import SlotLifecycle
from kubeocean.sharding.stores import (
    TABLE,
    ConfigMapStore,
    LoadedTable,
    TableStore,
    admission_view,
    state_of,
)
from kubeocean.sharding.table import Table, assignment, moved_slots
from kubeocean.sharding.workloads import ShardNotifier, Workload

__all__ = ["GaveUp", "Ring", "WakingClock", "replica_name"]

_HALF: Final = 2  # the planner's Lease is shorter, so that a dead planner is replaced early
_TRIES: Final = 2  # renewals of the planner's Lease, at least, before its deadline
_NONCE_BYTES: Final = 4

_log = get_logger(__name__)


class GaveUp(KubeoceanError):
    """Raised when cancelled work does not end: the process must end, or two replicas would work on
    one slot."""


class WakingClock(RealClock):
    """Monotonic clock that also counts the time for which the machine was suspended."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Lapsed(Exception):
    """Raised when this incarnation of the replica lost its Lease."""


class _Left(Exception):
    """Raised when this incarnation of the replica has handed over all its slots, as requested."""


class Ring:
    """Membership of this replica in a ring, the group of replicas that share a controller's
    keys."""

    def __init__(
        self,
        client: Client,
        config: Config | None = None,
        *,
        algorithm: object | None = None,
        notifiers: Iterable[ShardNotifier] = (),
        watchers: Iterable[NodeWatcher] = (),
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config or Config()
        self.names = self.config.names
        self.name = f"ring-{self.names.ring}"
        self.namespace = self.config.sharding.namespace
        self.slots = self.config.sharding.slots
        self.timing = self.config.timing()
        self.algorithm = as_algorithm(algorithm) if algorithm else self.config.algorithm()
        self.identity = identity_of(self.config, self.algorithm)
        environ = os.environ if environ is None else environ
        self.replica = replica_name(self.config, environ)
        self._template = self.config.node.template or environ.get("POD_TEMPLATE_HASH", "")
        self._address = self.config.node.address or environ.get("POD_IP", "")
        self._client = client
        self._clock = clock or WakingClock()
        self._registry = metrics or Metrics()
        self._metrics = RingMetrics(self._registry, self.names.ring)
        self._workloads: list[Workload] = []
        self._notifiers = list(notifiers)
        self._watchers = list(watchers)
        for at, notifier in enumerate(self._notifiers):
            check_callbacks(notifier, ShardNotifier, field=f"notifiers[{at}]", prefix="on_shard_")
        for at, watcher in enumerate(self._watchers):
            check_callbacks(watcher, NodeWatcher, field=f"watchers[{at}]", prefix="on_node_")
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._reassigned: asyncio.Queue[tuple[int, str, str]] = asyncio.Queue()
        self._table: Table | None = None
        self._principal = ""
        self._predecessor = self.config.node.predecessor
        self._prepared = asyncio.Event()  # the workloads of this replica are prepared
        self.healthy = asyncio.Event()  # this replica may get slots
        self._build()
        self._incarnate()

    def _build(self) -> None:
        names, clock = self.names, self._clock
        store = ConfigMapStore(
            self._client,
            namespace=self.namespace,
            labels=names.labels(TABLE),
            beside=admission_view,
        )
        self.tables = TableStore(
            store,
            key=names.table,
            ring=names.ring,
            slots=self.slots,
            identity=self.identity,
            clock=clock,
        )
        self._checks = RingChecks(
            self._client,
            self.tables,
            namespace=self.namespace,
            names=names,
            identity=self.identity,
            own=lambda: self.heartbeat.record,
            clock=clock,
        )
        self._pages = HandoverPages(self._client, namespace=self.namespace, names=names)
        self._objects = Informer(
            self._client,
            CONFIG_MAPS,
            namespace=self.namespace,
            fields=f"metadata.name={names.table}",
            clock=clock,
            metrics=self._registry,
        )
        self._objects.on_change(self._table_changed)
        planner = Planner(timing=self.timing, policy=self.config.policy(), algorithm=self.algorithm)
        self.planning = PlannerLoop(
            self._client,
            planner,
            self.tables,
            namespace=self.namespace,
            names=names,
            clock=clock,
            metrics=self._metrics,
            wrote=self._see,
            on_member=lambda: self._monitor.changed(),
            on_renewed=self._saw_renewal,
            on_saved=self._saved,
        )
        self._monitor = NodeMonitor(
            self.planning.nodes, self._watchers, clock=clock, period_s=self.timing.retry_s
        )
        self.election = Election(
            self._client,
            namespace=self.namespace,
            name=names.assigner,
            identity=f"{self.replica}_{secrets.token_hex(_NONCE_BYTES)}",
            lease_s=self.timing.lease_s / _HALF,
            renew_s=self.timing.renew_s / _HALF,
            # A candidate reads the Lease once in this time; a leader renews the Lease once.
            retry_s=min(self.timing.retry_s, self.timing.renew_s / _HALF / _TRIES),
            clock=clock,
            metrics=self._registry,
        )

    def _incarnate(self) -> None:
        """Start a new incarnation of this replica, with a new ID and a Lease of its own."""
        self.id = f"{self.replica}_{secrets.token_hex(_NONCE_BYTES)}"
        self._holder = SlotLeases(self.id, timing=self.timing, now=self._clock.monotonic())
        if self._table is not None:
            self._holder.see(self._table)
        self.tenancy = SlotLifecycle(
            self._workloads,
            self._notifiers,
            clock=self._clock,
            metrics=self._metrics,
            changed=self._wake.set,
            pages=self._pages if any(each.hands_over for each in self._workloads) else None,
            grant_of=self._grant_epoch,
            last_call_s=self.timing.cancel_s / _HALF,
        )
        node = self.config.node
        self.heartbeat = Heartbeat(
            self._client,
            namespace=self.namespace,
            names=self.names,
            record=MemberRecord(
                id=self.id,
                pulse="",
                state=MemberState.JOINING,
                template=self._template,
                predecessor=self._predecessor,
                address=self._address,
                capacity=node.capacity,
                controllers=tuple(sorted(each.name for each in self._workloads)),
            ),
            timing=self.timing,
            clock=self._clock,
            renewed=self._renewed,
            timeout_s=node.health_check_timeout_s,
            loads_every_s=node.health_check_interval_s,
            principal=self._principal,
        )

    # For workloads

    @property
    def metrics(self) -> Metrics:
        return self._registry

    @property
    def table(self) -> Table | None:
        """The newest table of slot owners that this replica has seen."""
        return self._table

    @property
    def serving(self) -> frozenset[int]:
        """Slots whose keys this replica may reconcile now."""
        return frozenset(slot for slot in self.tenancy.serving if self.owns(slot))

    @property
    def ready(self) -> bool:
        """Whether this replica is a healthy member of the ring."""
        return self.healthy.is_set()

    def add(self, workload: Workload) -> None:
        """Add a workload that works on this replica's slots; call before `run`.

        :raises ConfigError: the ring has a workload of this name.
        """
        # Hand-overs and filters are stored by name: two of one name would read each other's.
        if any(each.name == workload.name for each in self._workloads):
            raise ConfigError(
                f"ring {self.names.ring} has a controller of this name already; choose another one",
                field="controller name",
                value=workload.name,
            )
        self._workloads.append(workload)

    def shard_of(self, key: str) -> int:
        """Return the shard of a key."""
        return self.algorithm.get_shard(key, self.slots)

    def validate_shard(self, shard: int, key: str) -> bool:
        """Return whether a key belongs to a shard."""
        return self.algorithm.validate_shard(shard, key, self.slots)

    def nodes(self) -> list[NodeInfo]:
        """Return the replicas of the ring as this replica sees them."""
        return self.planning.nodes()

    def healthy_nodes(self) -> list[NodeInfo]:
        """Return the replicas that may get shards."""
        return [node for node in self.nodes() if node.status is MemberState.HEALTHY]

    def filter_of(self, controller: str) -> str:
        """Return the name of the filter that a controller must use: the configured one, or for
        `auto` the one that the other replicas use; `auto` if there are no other replicas."""
        configured = self.config.sharding.filter
        return (
            self._checks.recorded.get(filter_field(controller), "auto")
            if configured == "auto"
            else (configured)
        )

    async def identify(self, field: str, value: str) -> None:
        """Add a setting to the identity of the ring, which all replicas must share.

        :raises ConfigError: other replicas have another value of the setting.
        """
        self.identity[field] = value
        await self._checks.check_setting(field, value)

    def owns(self, slot: int) -> bool:
        """Return whether this replica may start to reconcile a key of this slot."""
        return slot in self.tenancy.serving and self._holder.may_start(slot, self._now())

    def grant(self, slot: int) -> Grant:
        """Return this replica's grant of a slot.

        :raises NotOurs: this replica does not own the slot.
        """
        grant = Grant(slot, self._holder.token(slot), self.id)
        self.check(grant)
        return grant

    def check(self, grant: Grant | None) -> None:
        """Raise NotOurs if a grant does not hold or, with None, if this replica's Lease has
        expired."""
        now = self._now()
        if grant is None:
            if not self._holder.valid(now):
                raise NotOurs(f"{self.id} has no valid Lease in ring {self.names.ring}")
            return
        held = grant.member == self.id and self._holder.may_write(grant.slot, now)
        if not held or self._holder.token(grant.slot) != grant.epoch:
            raise NotOurs(f"{grant.member} does not hold shard {grant.slot} any more")

    # Start and stop

    async def run(self) -> None:
        """Take part in the ring until `stop`.

        Cancelling `run` cancels all work and releases the Lease without waiting for other replicas.
        :raises GaveUp: cancelled work does not end.
        :raises ConfigError: another replica has this name, or replicas of the ring have another
            configuration.
        """
        self._ended.clear()
        try:
            if not await self._introduce():
                return
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._objects.run()),
                    group.create_task(self.planning.leases.run()),
                    group.create_task(self.election.run(self._lead, rejoin=True)),
                    group.create_task(self._notify_reassigned()),
                ]
                if self._watchers:
                    tasks.append(group.create_task(self._monitor.run()))
                await self._live()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            self.healthy.clear()
            self._ended.set()

    async def stop(self) -> None:
        """Hand all slots over to other replicas and leave the ring; returns when `run` has
        ended."""
        self._leaving.set()
        self._wake.set()
        await self._ended.wait()

    async def _introduce(self) -> bool:
        """Compare this replica with the ring as soon as the API server answers; return False if
        `stop` was called before."""
        while True:
            try:
                await self._compare()
                return True
            except ApiError as error:
                _log.warning(
                    "Could not compare this replica's configuration with the ring's",
                    ring=self.names.ring,
                    error=str(error),
                )
            with suppress(TimeoutError):
                await within(self._clock, self.timing.retry_s, self._leaving.wait)
                return False

    async def _compare(self) -> None:
        """Check that this replica fits into the ring, and find a dead predecessor."""
        await self._checks.check_configuration()
        self._principal = await own_principal(self._client)
        namesake = await self._checks.check_name(self.replica, wait_s=2 * self.timing.retry_s)
        self._predecessor = self._predecessor or namesake
        self._incarnate()

    async def _live(self) -> None:
        """Run one incarnation after the other until this replica leaves the ring."""
        while True:
            try:
                await self._be()
            except _Left:
                pass
            except _Lapsed as end:
                self._metrics.lapses.inc()
                _log.error(
                    "Lost membership of ring", ring=self.names.ring, replica=self.id, why=str(end)
                )
            except GaveUp:
                self._holder.lapse()  # work that still runs can write no more
                raise
            except (asyncio.CancelledError, ConfigError):
                await self._end()
                await self._release()
                raise
            self.healthy.clear()
            await self._end(graceful=self._leaving.is_set())
            if self._leaving.is_set():
                await self._release()
                return
            self._predecessor = self.id
            self._incarnate()

    async def _be(self) -> None:
        """Join the ring as one incarnation and work on slots, until _Left or _Lapsed is raised."""
        await self._join()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew())
                group.create_task(self._prepare())
                await self._work(group)
                raise _Left  # ends the group with all its tasks
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._plan())
            for workload in self._workloads:
                group.create_task(self._lead_workload(workload))

    async def _lead_workload(self, workload: Workload) -> None:
        # A replica with another `sharding.election` may be elected, too. It must end before it
        # writes a slot label.
        await self.planning.agreed.wait()
        await workload.lead()

    async def _plan(self) -> None:
        # The first table records the filters of the workloads, which are known when they are
        # prepared.
        await self._prepared.wait()
        await self.planning.run()

    async def _join(self) -> None:
        while True:
            try:
                return await self.heartbeat.join()
            except ApiError as error:
                _log.warning("Failed to join ring", ring=self.names.ring, error=str(error))
                with suppress(TimeoutError):
                    await within(self._clock, self.timing.retry_s, self._leaving.wait)
                    raise _Left from None
                self._incarnate()  # the Lease may have been created, and the answer lost

    async def _renew(self) -> None:
        try:
            await self.heartbeat.run()
        except Evicted as error:
            self._holder.lapse()
            raise _Lapsed(str(error)) from error

    async def _prepare(self) -> None:
        if not self._prepared.is_set():
            for workload in self._workloads:
                await self._retried(workload.prepare, workload.name)
            check = partial(self._checks.check_controllers, wait_s=self.timing.lease_s)
            await self._retried(check, "")
            self._prepared.set()
        if not self._leaving.is_set():
            self.heartbeat.say(state=MemberState.HEALTHY)
            self.healthy.set()
            _log.info("Joined ring", ring=self.names.ring, replica=self.id)

    async def _retried(self, step: Callable[[], Awaitable[None]], controller: str) -> None:
        """Await a step of the preparation until the API server refuses none of its requests."""
        while True:
            try:
                return await step()
            except ApiError as error:
                _log.warning(
                    "Failed to prepare controller for shards",
                    ring=self.names.ring,
                    controller=controller,
                    error=str(error),
                )
            await self._clock.sleep(self.timing.retry_s)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Gain, hand over and acknowledge slots according to the table, until this incarnation has
        left.
        """
        give_back_by = float("inf")
        while True:
            self._wake.clear()
            await self._checks.raise_error()
            now = self._now()
            if not self._holder.valid(now):
                raise _Lapsed(
                    f"the Lease of this replica was not renewed for {self.timing.renew_s:g} s"
                )
            duties = self._holder.duties(now, self.tenancy.busy())
            if duties.give_up:
                raise GaveUp(
                    f"replica {self.id} did not end its work on shards {sorted(duties.overdue)} in"
                    " time after cancelling the work; the process must end, or another replica"
                    " would work on them meanwhile"
                )
            self.tenancy.apply(duties, group)
            self.heartbeat.say(acks=duties.acks, seen=duties.seen)
            self.heartbeat.say(unplaced=sum(each.unplaced() for each in self._workloads))
            self.heartbeat.report(self._loads())
            if self._leaving.is_set():
                self.heartbeat.say(state=MemberState.LEAVING)
                give_back_by = min(give_back_by, now + self.timing.handover_s)
                if self._may_go() or now >= give_back_by:
                    return
            until = min(duties.wake_at, give_back_by, now + self.config.state.sync_interval_s)
            with suppress(TimeoutError):
                await within(self._clock, until - now, self._wake.wait)

    def _may_go(self) -> bool:
        """Return whether this replica owns no slots any more, or no other replica can get them."""
        table = self._table
        if table is None or not table.owned_by(self.id):
            return True
        return not self.planning.others(self.id)

    async def _end(self, *, graceful: bool = False) -> None:
        """End all work of this incarnation.

        A graceful end keeps the grants meanwhile, as long as the Lease is valid: the list of
        handled objects is written for the next owners.

        :raises GaveUp: cancelled work does not end; the process must end.
        """
        if not graceful:
            self._holder.lapse()
        limit_s = self.timing.drain_s + self.timing.cancel_s
        try:
            await within(self._clock, limit_s, self.tenancy.end)
        except TimeoutError:
            raise GaveUp(f"replica {self.id} did not end its work within {limit_s:g} s") from None
        finally:
            self._holder.lapse()

    async def _release(self) -> None:
        """Release the Lease, so that the planner need not wait for its expiry."""
        self.heartbeat.say(released=True, state=MemberState.LEAVING)
        try:
            await within(self._clock, self.timing.renew_s / 2, self.heartbeat.beat)
        except (ApiError, TimeoutError) as error:
            _log.warning("Failed to release Lease", replica=self.id, error=str(error))
        else:
            _log.info("Left ring", ring=self.names.ring, replica=self.id)

    # Changes of the table

    def _table_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            self.planning.lost()  # takes no slot from this replica; written again by the planner
            return
        try:
            loaded = self.tables.read(state_of(new))
            self._checks.see(loaded, prepared=self._prepared.is_set())
            if self._checks.error is not None:
                self._wake.set()
            self._see(loaded.table)
        except ConfigError as error:
            if self._table is None:
                self._checks.error = error
                self._wake.set()
                return
            _log.error("Ignored shard table that cannot be read", error=str(error))
            self.planning.lost()

    def _saw_renewal(self, record: MemberRecord) -> None:
        self._checks.see_renewed(record, self.planning.running())
        if self._checks.error is not None:
            self._wake.set()

    def _saved(self, loaded: LoadedTable) -> None:
        self._checks.recorded = loaded.identity  # known before the watch delivers the table

    def _see(self, table: Table) -> None:
        before = self._table
        if not self._holder.see(table):
            if table != before:
                self.planning.lost()  # an old table, or content that no replica wrote
            return
        self._table = table
        self._metrics.epoch.set(table.epoch)
        self.planning.saw(table)
        self._wake.set()
        moved = moved_slots(before, table)
        if moved or before is None:
            _log.info(
                "Shard assignment changed",
                ring=self.names.ring,
                epoch=table.epoch,
                old_assignment=assignment(before),
                new_assignment=assignment(table),
            )
        for move in moved:
            self._reassigned.put_nowait(move)

    async def _notify_reassigned(self) -> None:
        while True:
            move = await self._reassigned.get()
            for notifier in self._notifiers:
                try:
                    await notifier.on_shard_reassigned(*move)
                except Exception as error:  # whatever the code of the user raises
                    _log.error(
                        "Notifier failed in on_shard_reassigned",
                        shard=move[0],
                        error=f"{type(error).__name__}: {error}",
                        exc_info=error,
                    )

    def _renewed(self, started: float, answered: float) -> bool:
        held = self._holder.renewed(started=started, answered=answered)
        if not held:
            self._wake.set()
        return held

    def _loads(self) -> dict[int, float]:
        total: dict[int, float] = {}
        for workload in self._workloads:
            for slot, load in workload.loads().items():
                total[slot] = total.get(slot, 0.0) + load
        return total

    def _grant_epoch(self, slot: int) -> int:
        """Return the epoch of the grant under which this replica may write to a slot, or 0."""
        held = self._holder.may_write(slot, self._now())
        return self._holder.token(slot) if held else 0

    def _now(self) -> float:
        return self._clock.monotonic()


def replica_name(config: Config, environ: Mapping[str, str]) -> str:
    """Return this replica's name: the configured one, that of the pod, or a generated one."""
    name = config.node.identity or environ.get("POD_NAME", "")
    return name or f"{socket.gethostname()}-{secrets.token_hex(3)}"


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that caused the other errors of the group."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
