"""Heartbeat: writes the Lease of this replica, and reads the Leases of all replicas of a ring.

Each incarnation of a replica has a Lease of its own. The replica renews the Lease every `retry_s`,
and at once when its record changes: when the replica is ready, when it leaves, when it acknowledges
the loss of slots. The record is stored in annotations. An incarnation whose Lease was deleted has
been evicted and never acts again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kubeocean.errors import ApiError, ConfigError, KubeoceanError, NotFound
from kubeocean.runtime.access_reviews import may
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json
from kubeocean.sharding.members import MemberRecord, decode_member, encode_loads, encode_member
from kubeocean.sharding.names import Names
from kubeocean.sharding.timing import Timing

__all__ = ["MEMBER", "Evicted", "Heartbeat", "may_see", "read_members", "record_of", "records_of"]

MEMBER: Final = "member"
_JITTER: Final = 0.2

_log = get_logger(__name__)


class Evicted(KubeoceanError):
    """Raised when the Lease of this incarnation of a replica was deleted."""


class Heartbeat:
    """Writes the Lease by which one incarnation of a replica shows that it is alive.

    `renewed(started, answered)` is called for every successful renewal, and returns whether the
    renewal was in time.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        names: Names,
        record: MemberRecord,
        timing: Timing,
        clock: Clock,
        renewed: Callable[[float, float], bool],
        timeout_s: float = 5.0,
        loads_every_s: float = 10.0,
        principal: str = "",
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._names = names
        self._timing = timing
        self._clock = clock
        self._renewed = renewed
        self._timeout_s = min(timeout_s, timing.renew_s / 2)
        self._loads_every_s = loads_every_s
        self._principal = principal
        self._record = record
        self._loads: Mapping[int, float] = {}
        self._loads_due = float("-inf")
        self._written = ""  # record as the Lease contains it
        self._news = asyncio.Event()
        self._uid = ""
        self.name = names.member(record.id)

    @property
    def record(self) -> MemberRecord:
        return self._record

    @property
    def published(self) -> bool:
        """Whether the Lease contains the current record of this replica."""
        return self._written == encode_member(self._record)

    def say(self, **changes: object) -> None:
        """Change fields of this replica's record (`state`, `acks`, `released`) and renew the Lease
        at once."""
        record = replace(self._record, **changes)  # type: ignore[arg-type]  # fields by name
        if record != self._record:
            self._record = record
            self._news.set()

    def report(self, loads: Mapping[int, float]) -> None:
        """Set the loads of the slots, which are written to the Lease at intervals."""
        self._loads = dict(loads)

    async def join(self) -> None:
        """Create the Lease of this replica."""
        lease = self._lease()
        meta = {
            "name": self.name,
            "namespace": self._namespace,
            "labels": self._names.labels(MEMBER),
            **lease["metadata"],
        }
        kind = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        body = {**kind, "metadata": meta, "spec": lease["spec"]}
        started = self._clock.monotonic()
        created = await self._client.create(LEASES, body, namespace=self._namespace)
        self._uid = created.uid
        self._record = replace(
            self._record, uid=created.uid, joined=_number(created.resource_version)
        )
        self._settle(lease, started)

    async def run(self) -> None:
        """Renew the Lease until the incarnation ends.

        Failed requests are retried and not raised: the deadline that `renewed` keeps decides.
        :raises Evicted: the Lease was deleted.
        """
        while True:
            try:
                await within(self._clock, self._timeout_s, self.beat)
                pause_s = self._timing.retry_s * (1 - _JITTER * random.random())  # noqa: S311 - spreads load
            except NotFound as error:
                raise Evicted(f"could not renew Lease {self.name}: {error}") from error
            except (ApiError, TimeoutError) as error:
                _log.warning("Failed to renew Lease", lease=self.name, error=str(error))
                pause_s = self._timing.retry_s / 4
            await self._pause(pause_s)

    async def beat(self) -> None:
        """Renew the Lease once, with the current record."""
        self._news.clear()
        lease = self._lease()
        started = self._clock.monotonic()
        # The UID is the precondition: a Lease created again under this name belongs to another
        # writer.
        lease["metadata"]["uid"] = self._uid
        await self._client.patch(LEASES, self.name, MergePatch(lease), self._namespace)
        self._settle(lease, started)

    async def _pause(self, seconds: float) -> None:
        try:
            await within(self._clock, seconds, self._news.wait)
        except TimeoutError:
            return

    def _settle(self, lease: Json, started: float) -> None:
        annotations = lease["metadata"]["annotations"]
        self._written = annotations[self._names.record]
        if self._names.loads in annotations:
            self._loads_due = started + self._loads_every_s
        self._renewed(started, self._clock.monotonic())

    def _lease(self) -> Json:
        annotations = {self._names.record: encode_member(self._record)}
        if self._principal:
            annotations[self._names.principal] = self._principal
        if self._loads and self._clock.monotonic() >= self._loads_due:
            annotations[self._names.loads] = encode_loads(self._loads)
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "metadata": {"annotations": annotations},
            "spec": {
                "holderIdentity": self._record.id,
                "leaseDurationSeconds": math.ceil(self._timing.lease_s),
                "renewTime": now,
            },
        }


def record_of(lease: Lease, names: Names) -> MemberRecord | None:
    """Return the replica's record on a Lease; None if no replica of the ring wrote the Lease."""
    spec, annotations = lease.spec, lease.annotations
    member = spec.holder_identity or ""
    try:
        if lease.name != names.member(member):  # a copy, or the Lease of another holder
            message = f"must be {names.member(member)!r}, the Lease name of its holderIdentity"
            raise ConfigError(message, field="name", value=lease.name)
        record = decode_member(
            member,
            text=annotations.get(names.record, ""),
            pulse=lease.resource_version,
            lease_s=float(spec.lease_duration_seconds or 0),
            loads=annotations.get(names.loads, ""),
            uid=lease.uid,
        )
    except ConfigError as error:
        _log.warning("Ignored Lease that no replica wrote", lease=lease.name, error=str(error))
        return None
    # Before its first renewal, a Lease has the version of its creation.
    return record if record.joined else replace(record, joined=_number(lease.resource_version))


def _number(version: str) -> int:
    return int(version) if version.isdecimal() and version.isascii() else 0


async def read_members(client: Client, namespace: str, names: Names) -> list[MemberRecord]:
    """Return the records of all members of a ring, read with a consistent list of their Leases."""
    listing = await client.list(LEASES, namespace, labels=names.selects(MEMBER))
    return records_of(listing.items, names)


def records_of(leases: Iterable[Lease], names: Names) -> list[MemberRecord]:
    """Return the records of the members of the ring among these Leases."""
    records = (record_of(lease, names) for lease in leases)
    return [record for record in records if record is not None]


async def may_see(client: Client, namespace: str) -> bool:
    """Return whether this account may list the Leases of a ring's members. Checked first, so that
    accounts without the right cause no denied requests.

    :raises ApiError: the API server did not answer the access review.
    """
    listing = {"verb": "list", "group": LEASES.group, "resource": LEASES.plural}
    return await may(client, {**listing, "namespace": namespace})
