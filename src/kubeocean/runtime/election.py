"""Leader election on a Lease, by the rules of client-go.

A leader renews its Lease every `retry_s`, and may act until `renew_s` after the *start* of its last
successful renewal. A candidate acquires the Lease when the record has not changed for `lease_s`,
the duration that the holder published, on the candidate's own monotonic clock. Times that other
processes wrote are not used. As `lease_s` > `renew_s`, the leader has stopped before a candidate
starts, even if the leader was frozen in between.

    0            renew_s         lease_s          since the start of the leader's last renewal
    |--- may act --->|             |--- others may acquire the Lease --->

The deadline is enforced: `check` raises from then on, the leading coroutine is cancelled, and
nothing else starts before the coroutine has ended. Its writes during cancellation are refused by
`check`, too. Only a request that was in flight when the process was frozen can still arrive;
preconditions (resourceVersion, UID) cover that case.

One gap is inherent in the API: if a user deletes the Lease, a candidate that never saw its holder
can acquire a new one.

Layers: `observe` and `decide` are pure rules; `LeaseLock` reads and writes the Lease with a
resourceVersion and keeps labels, owners and unknown fields; `Campaign` runs the protocol on any
`Lock`; `Election` is a campaign on a Lease.
"""

from __future__ import annotations

import asyncio
import enum
import math
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Conflict,
    KubeoceanError,
    NotFound,
)
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json

__all__ = [
    "Campaign",
    "Election",
    "LeadershipLost",
    "LeaseAction",
    "LeaseLock",
    "LeaseSighting",
    "Lock",
    "LockEntry",
    "Record",
    "decide",
    "observe",
    "unique_identity",
]


@dataclass(frozen=True, slots=True)
class Record:
    """Content of a Lease. Its times are informative and decide nothing."""

    holder: str = ""  # "": no holder
    duration_s: int = 0  # 0: not set
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class LockEntry:
    """Record of a Lease as read, and the resourceVersion that the next write must name."""

    record: Record
    version: str


class LeaseAction(enum.Enum):
    """Action of a candidate on a Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LeaseSighting:
    """Last record of a Lease that this candidate read, and the monotonic time at which this record
    was first read."""

    record: Record | None  # None: no Lease was ever read
    version: str  # "": the Lease does not exist now
    at: float


def observe(before: LeaseSighting | None, entry: LockEntry | None, now: float) -> LeaseSighting:
    """Return the candidate's sighting of the Lease after reading `entry` at `now`."""
    if entry is None:
        return LeaseSighting(None, "", now) if before is None else replace(before, version="")
    if before is not None and before.version and before.record == entry.record:
        return replace(before, version=entry.version)
    return LeaseSighting(entry.record, entry.version, now)


def decide(
    seen: LeaseSighting, *, identity: str, now: float, deadline: float | None, lease_s: float
) -> LeaseAction:
    """Return the next action of a candidate on the Lease. `deadline` is the end of its own
    leadership, None if it does not lead.

    `lease_s` is the default for a holder that publishes no duration.
    """
    record = seen.record
    if deadline is not None and now >= deadline:
        return LeaseAction.LOST
    if record is not None and record.holder == identity:
        # Also for a candidate that does not lead: the answer to its own write was lost.
        return LeaseAction.RENEW if seen.version else LeaseAction.CREATE
    if deadline is not None:
        return LeaseAction.LOST
    if record is None:
        return LeaseAction.CREATE
    # A deleted Lease protects its holder like one that exists.
    if record.holder and now < seen.at + (record.duration_s or lease_s):
        return LeaseAction.WAIT
    return LeaseAction.TAKE if seen.version else LeaseAction.CREATE


class Lock(Protocol):
    """Record on which candidates of an election compete, such as a Lease."""

    async def read(self) -> LockEntry | None:
        """Read the record and its version; None if there is no record."""

    async def create(self, record: Record) -> LockEntry:
        """Create the record.

        :raises AlreadyExists: another candidate was first.
        """

    async def update(self, record: Record, version: str) -> LockEntry:
        """Replace the record, if its version is still `version`.

        :raises Conflict: the record has changed since.
        :raises NotFound: the record was deleted.
        """


class LeaseLock:
    """`Lock` on a Lease in an API server."""

    def __init__(self, client: Client, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> LockEntry | None:
        try:
            return _entry(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            return None

    async def create(self, record: Record) -> LockEntry:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": _spec(record),
        }
        return _entry(await self._client.create(LEASES, body, namespace=self._namespace))

    async def update(self, record: Record, version: str) -> LockEntry:
        # A resourceVersion in a patch is a precondition, as in an update; but a patch keeps
        # unknown fields.
        patch = MergePatch({"metadata": {"resourceVersion": version}, "spec": _spec(record)})
        return _entry(await self._client.patch(LEASES, self._name, patch, self._namespace))


def _entry(lease: Lease) -> LockEntry:
    spec = lease.spec
    record = Record(
        holder=spec.holder_identity or "",
        duration_s=spec.lease_duration_seconds or 0,
        acquired=spec.acquire_time or "",
        renewed=spec.renew_time or "",
        transitions=spec.lease_transitions or 0,
    )
    return LockEntry(record, lease.resource_version)


def _spec(record: Record) -> Json:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transitions,
    }


_JITTER: Final = 0.2  # fraction of retry_s: candidates that started together drift apart
_RACES: Final = (AlreadyExists, Conflict, NotFound)  # another candidate wrote first
_MOST: Final = (1 << 31) - 1  # transitions that a Lease can count
_NEVER: Final = float("-inf")
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed

_log = get_logger(__name__)


class LeadershipLost(KubeoceanError):
    """Raised if a candidate does not lead, or cannot be sure that it still leads."""


def unique_identity() -> str:
    """Return a name that no other process has, not even a restart of this one."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Campaign:
    """Candidate of an election on any `Lock`."""

    def __init__(
        self,
        lock: Lock,
        *,
        name: str,
        identity: str = "",
        lease_s: float = 15.0,
        renew_s: float = 10.0,
        retry_s: float = 2.0,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        _validate(name, lease_s, renew_s, retry_s)
        self.name = name
        self.identity = identity or unique_identity()
        self._lock = lock
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._retry_s = retry_s
        self._clock = clock or _WakingClock()
        self._chance = chance or random.SystemRandom().random
        self._seen: LeaseSighting | None = None
        self._fresh = False  # the last record read is the last one written
        self._doubt = False  # a write of this candidate may have succeeded without an answer
        self._deadline = _NEVER
        self._status = (
            (metrics or Metrics())
            .gauge("leader_election_master_status", "1 on the replica that leads", ["name"])
            .labels(name)
        )

    @property
    def is_leader(self) -> bool:
        return self.may_write()

    @property
    def deadline(self) -> float:
        """Monotonic time until which this candidate may write; in the past without leadership."""
        return self._deadline

    @property
    def holder(self) -> str:
        """Identity of the last known holder; empty if there is none."""
        return self._seen.record.holder if self._seen and self._seen.record else ""

    def may_write(self) -> bool:
        """Whether no other candidate can lead at this instant."""
        return self._clock.monotonic() < self._deadline

    def check(self) -> None:
        """Check, before each write, that this candidate leads.

        :raises LeadershipLost: the write must not be sent.
        """
        if not self.may_write():
            raise LeadershipLost(f"{self.identity} does not lead {self.name}")

    async def run(self, lead: Callable[[], Awaitable[None]], *, rejoin: bool = False) -> None:
        """Wait until elected, run `lead` to its end, then release the Lease at once.

        When leadership is lost, `lead` is cancelled and awaited. With `rejoin` the process becomes
        a candidate again, and `lead` may be called again; without:

        :raises LeadershipLost: the program should end, because its state may be outdated.
        """
        try:
            while True:
                await self._acquire()
                if await self._reign(lead):
                    return
                if not rejoin:
                    raise LeadershipLost(
                        f"{self.identity} lost the leadership of {self.name}: {self._why()}"
                    )
        finally:
            self._step_down()
            await self._release()

    async def _acquire(self) -> None:
        while True:
            self._fresh = False
            await self._round(self._budget_s)
            if self.may_write():  # False if the process was frozen between request and answer
                break
            self._step_down()
            await self._clock.sleep(self._pause())
        self._status.set(1)
        _log.info("Became leader", election=self.name, identity=self.identity)

    async def _reign(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run `lead` while leading; return False if `lead` was cancelled because leadership was
        lost.
        """
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            # The group would wrap an error of `lead`, so the error is carried around the group.
            try:
                async with asyncio.timeout(None) as tenure:
                    keeper = group.create_task(self._keep(tenure))
                    try:
                        await lead()
                    finally:
                        # Not earlier: a leader that is stopping leads until `lead` has ended.
                        keeper.cancel()
            except Exception as error:
                failure = error
        self._step_down()
        if failure is not None and not (tenure.expired() and isinstance(failure, TimeoutError)):
            raise failure
        return not tenure.expired()

    async def _keep(self, tenure: asyncio.Timeout) -> None:
        """Renew the Lease until renewals fail for too long; then end the leadership."""
        move = LeaseAction.RENEW
        while move is not LeaseAction.LOST and self._left_s() > 0:
            await self._clock.sleep(min(self._pause(), self._left_s()))
            move = await self._round(min(self._budget_s, self._left_s()))
        _log.error("Lost leadership", election=self.name, identity=self.identity, why=self._why())
        self._step_down()
        tenure.reschedule(_NOW)

    async def _round(self, budget_s: float) -> LeaseAction:
        """Read the Lease, and acquire or renew it if that is due. API errors are logged, not
        raised: the deadline decides.
        """
        try:
            return await within(self._clock, budget_s, self._move)
        except _RACES as error:
            _log.debug(
                "Another candidate wrote the Lease first", election=self.name, error=str(error)
            )
            return LeaseAction.WAIT
        except (ApiError, TimeoutError) as error:
            self._fresh = False
            _log.warning(
                "Failed to renew or acquire Lease",
                election=self.name,
                identity=self.identity,
                error=str(error),
            )
            return LeaseAction.WAIT

    async def _move(self) -> LeaseAction:
        seen = self._seen if self._fresh and self._seen else await self._look()
        move = self._decide(seen)
        if move in (LeaseAction.WAIT, LeaseAction.LOST):
            return move
        try:
            await self._write(seen, move)
        except _RACES:
            if not self._fresh:
                raise
            # The write was based on an outdated record: read and decide again.
            self._fresh = False
            return await self._move()
        return move

    def _decide(self, seen: LeaseSighting) -> LeaseAction:
        return decide(
            seen,
            identity=self.identity,
            now=self._clock.monotonic(),
            deadline=None if self._deadline == _NEVER else self._deadline,
            lease_s=self._lease_s,
        )

    async def _look(self) -> LeaseSighting:
        before = self.holder
        entry = await self._lock.read()
        self._seen = observe(self._seen, entry, self._clock.monotonic())
        self._doubt = False
        if self.holder not in ("", before, self.identity):
            _log.info("Another candidate became leader", election=self.name, leader=self.holder)
        return self._seen

    async def _write(self, seen: LeaseSighting, move: LeaseAction) -> None:
        """Write the Lease; leadership counts from the *start* of the request, because other
        candidates see the record later."""
        started = self._clock.monotonic()
        record = self._record(seen.record, move)
        self._doubt = True
        if move is LeaseAction.CREATE:
            entry = await self._lock.create(record)
        else:
            entry = await self._lock.update(record, seen.version)
        self._doubt = False
        self._fresh = True
        self._seen = LeaseSighting(entry.record, entry.version, self._clock.monotonic())
        self._deadline = started + self._renew_s

    def _record(self, old: Record | None, move: LeaseAction) -> Record:
        now = self._timestamp()
        ours = old is not None and old.holder == self.identity
        return Record(
            holder=self.identity,
            duration_s=math.ceil(self._lease_s),
            acquired=old.acquired if ours and old else now,
            renewed=now,
            transitions=min((old.transitions if old else 0) + (move is LeaseAction.TAKE), _MOST),
        )

    async def _release(self) -> None:
        """Release the Lease, so that other candidates need not wait for `lease_s`; `lead` has ended
        by now."""
        if self.holder != self.identity and not self._doubt:
            return
        try:
            await within(self._clock, self._budget_s, self._give_up)
        except (ApiError, TimeoutError) as error:
            _log.warning("Failed to release Lease", election=self.name, error=str(error))

    async def _give_up(self) -> None:
        seen = await self._look() if self._doubt or not self._seen else self._seen
        now = self._timestamp()
        while seen.record is not None and seen.record.holder == self.identity and seen.version:
            free = Record("", 1, acquired=now, renewed=now, transitions=seen.record.transitions)
            try:
                self._seen = observe(seen, await self._lock.update(free, seen.version), seen.at)
            except Conflict:
                seen = await self._look()
                continue
            _log.info("Released Lease", election=self.name, identity=self.identity)
            return

    def _why(self) -> str:
        if self.holder != self.identity:
            return f"held by {self.holder!r}"
        return f"not renewed for {self._renew_s:g} s"

    def _step_down(self) -> None:
        self._deadline = _NEVER
        self._status.set(0)

    @property
    def _budget_s(self) -> float:
        """Return the time limit of one round, so that a hung connection leaves time for another
        round."""
        return self._renew_s / 2

    def _left_s(self) -> float:
        return self._deadline - self._clock.monotonic()

    def _pause(self) -> float:
        return self._retry_s * (1 + _JITTER * self._chance())

    def _timestamp(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election(Campaign):
    """Candidate of an election on a Lease.

    `client` should not share a rate limit with the work: renewals cannot wait. `identity` must be
    unique to this process; by default one is generated.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str = "",
        lease_s: float = 15.0,
        renew_s: float = 10.0,
        retry_s: float = 2.0,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(
            LeaseLock(client, namespace=namespace, name=name),
            name=name,
            identity=identity,
            lease_s=lease_s,
            renew_s=renew_s,
            retry_s=retry_s,
            clock=clock,
            metrics=metrics,
        )


class _WakingClock(RealClock):
    """Monotonic clock that also counts the time for which the machine was suspended."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def _validate(name: str, lease_s: float, renew_s: float, retry_s: float) -> None:
    if not name:
        raise ConfigError("an election needs a name", field="name")
    if not retry_s > 0:
        raise ConfigError("must be more than 0", field="retry_s", value=retry_s)
    if not renew_s > retry_s * (1 + _JITTER):
        raise ConfigError(
            f"must be more than {1 + _JITTER:g} times retry_s ({retry_s:g})",
            field="renew_s",
            value=renew_s,
        )
    if not lease_s > renew_s:
        raise ConfigError(
            f"must be more than renew_s ({renew_s:g})", field="lease_s", value=lease_s
        )
