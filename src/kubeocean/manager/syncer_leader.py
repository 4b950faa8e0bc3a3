"""Reads the Leases of syncers' elections to find out whether a syncer leads, and deletes them.

Clocks of other hosts are not trusted: a holder leads while the manager sees its Lease change, and
for one lease duration after the manager has first seen it. Leases are read only when manager and
syncer disagree, and while a binding is deleted.

A Lease has no owner, so the garbage collector does not delete the Lease with its binding. The
manager deletes the Lease when no live holder is left and no other binding's syncers use the same
Lease; the manager deletes the ring objects of syncers that shared the binding, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from kubeocean.api import naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, instant_of
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.sharding.admin import remove_ring_objects
from kubeocean.sharding.names import Names

__all__ = ["RECHECK_S", "SyncerLeader", "SyncerLeaders"]

RECHECK_S: Final = 5.0
_DEFAULT_DURATION_S: Final = 15

_log = get_logger(__name__)


class SyncerLeader(NamedTuple):
    """Whether a syncer leads; if not, the time of the last known renewal of its Lease."""

    leads: bool
    silent_since: datetime | None = None


class _Observation(NamedTuple):
    renewed: str
    at: float


class SyncerLeaders:
    """The election Leases of all bindings' syncers.

    `homes` returns the namespaces in which syncers may run.
    """

    def __init__(
        self,
        client: Client,
        *,
        homes: Callable[[], Iterable[str]],
        domain: Domain,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._homes = homes
        self._domain = domain
        self._clock = clock or RealClock()
        self._observed: dict[Key, _Observation] = {}

    async def of(self, binding: ClusterBinding) -> SyncerLeader:
        """Return whether a syncer of the binding leads now.

        :raises ApiError: the Leases could not be read.
        """
        silent: list[datetime] = []
        for key in self._keys(binding):
            lease = await self._read(key)
            if lease is not None and self._leads(lease):
                return SyncerLeader(True)
            if lease is not None and (renewed := self._last_renewal(lease)) is not None:
                silent.append(renewed)
        return SyncerLeader(False, max(silent, default=None))

    async def remove(self, binding: ClusterBinding, others: Iterable[ClusterBinding]) -> list[Key]:
        """Delete the Leases and the ring of a deleted binding; return Leases that are still held.

        :raises ApiError: the Leases could not be read or deleted.
        """
        shared = {name for each in others if each.uid != binding.uid for name in self._names(each)}
        held = []
        for key in self._keys(binding):
            if key.name in shared or (lease := await self._read(key)) is None:
                continue
            if self._leads(lease):
                held.append(key)
            else:
                await self._delete(lease)
        if not held:
            ring = naming.syncer_ring(binding.name, self._domain)
            for home in self._homes():
                await remove_ring_objects(self._client, Names(ring, self._domain.sharding), home)
        return held

    async def _delete(self, lease: Lease) -> None:
        try:
            # The version is a precondition, too: a syncer that acquires the Lease now keeps it.
            await self._client.delete(
                LEASES,
                lease.name,
                lease.namespace,
                uid=lease.uid,
                resource_version=lease.resource_version,
            )
        except (Conflict, NotFound):
            return
        except Forbidden as error:
            _log.warning(
                "Could not delete leader-election Lease of syncers",
                lease=str(lease.key),
                error=str(error),
            )
            return
        _log.info(
            "Deleted unused leader-election Lease of syncers", lease=str(lease.key), uid=lease.uid
        )

    def forget(self, binding: ClusterBinding) -> None:
        """Drop the observations of a deleted binding's Leases."""
        names = self._names(binding)
        for key in [key for key in self._observed if key.name in names]:
            del self._observed[key]

    def _keys(self, binding: ClusterBinding) -> list[Key]:
        return [Key(home, name) for home in self._homes() for name in self._names(binding)]

    def _names(self, binding: ClusterBinding) -> tuple[str, ...]:
        # The templates name the Lease after the Deployment; the syncer's default is the binding.
        deployment = naming.syncer_deployment(binding.spec.cluster_id, self._domain)
        election = naming.syncer_election(binding.name, self._domain)
        return tuple(dict.fromkeys((deployment, election)))

    async def _read(self, key: Key) -> Lease | None:
        try:
            return await self._client.get(LEASES, key.name, key.namespace)
        except NotFound:
            return None
        except Forbidden:
            # Templates may name a namespace in which the manager has no permissions.
            if key.namespace == self._domain.system_namespace:
                raise
            _log.warning("Could not read leader-election Lease of syncers", lease=str(key))
            return None

    def _leads(self, lease: Lease) -> bool:
        renewed, now = lease.spec.renew_time or "", self._clock.monotonic()
        observed = self._observed.get(lease.key)
        if observed is None or observed.renewed != renewed:
            observed = self._observed[lease.key] = _Observation(renewed, now)
        duration_s = lease.spec.lease_duration_seconds or _DEFAULT_DURATION_S
        return bool(lease.spec.holder_identity) and now - observed.at <= duration_s

    def _last_renewal(self, lease: Lease) -> datetime | None:
        """Return the renewal time in a Lease, or when its last change was observed, if earlier."""
        written = instant_of(lease.spec.renew_time)
        ago = timedelta(seconds=self._clock.monotonic() - self._observed[lease.key].at)
        return None if written is None else min(written, self._clock.now() - ago)
