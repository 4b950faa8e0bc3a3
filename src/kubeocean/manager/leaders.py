"""Leaders: whether a syncer is at work for a binding, as the Lease of its election says.

Nobody's clock is trusted: who holds a Lease leads for as long as it is seen to be renewed, and one
that is seen for the first time gets the benefit of the doubt. Read only where it matters, which is
when manager and syncer disagree, and while a binding is deleted.

A Lease names nobody but its holder, so it outlives its binding unless it is removed from here: once
nobody holds it, or who does is silent, and no other binding's syncers would meet on it. So does
what syncers have left that shared the binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.sharding.names import Names
from kubeocean.sharding.remains import remove_remains

__all__ = ["LOOK_AGAIN_S", "Leader", "Leaders"]

LOOK_AGAIN_S: Final = 5.0
_DURATION_S: Final = 15  # of a Lease that does not say

_log = get_logger(__name__)


class Leader(NamedTuple):
    """Whether a syncer leads; if not, since when as far as anybody knows."""

    leads: bool
    silent_since: datetime | None = None


class _Sighting(NamedTuple):
    renewed: str
    at: float


class Leaders:
    """The syncers of all bindings; `homes` says in which namespaces they may run."""

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
        self._seen: dict[Key, _Sighting] = {}

    async def of(self, binding: ClusterBinding) -> Leader:
        """Who leads for a binding now.

        :raises ApiError: the server could not be asked.
        """
        silent: list[datetime] = []
        for key in self._keys(binding):
            lease = await self._read(key)
            if lease is not None and self._leads(lease):
                return Leader(True)
            if lease is not None and (renewed := self._last_sign(lease)) is not None:
                silent.append(renewed)
        return Leader(False, max(silent, default=None))

    async def remove(self, binding: ClusterBinding, others: Iterable[ClusterBinding]) -> list[Key]:
        """Delete the Leases of a binding that goes, and its ring; those that somebody still holds.

        :raises ApiError: the server could not be asked.
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
                await remove_remains(self._client, Names(ring, self._domain.sharding), home)
        return held

    async def _delete(self, lease: Lease) -> None:
        try:
            # The version too: who takes it now keeps it.
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
            _log.warning("Left lease of syncers behind", lease=str(lease.key), error=str(error))
            return
        _log.info("Deleted lease of syncers", lease=str(lease.key), uid=lease.uid)

    def forget(self, binding: ClusterBinding) -> None:
        """It is gone."""
        names = self._names(binding)
        for key in [each for each in self._seen if each.name in names]:
            del self._seen[key]

    def _keys(self, binding: ClusterBinding) -> list[Key]:
        return [Key(home, name) for home in self._homes() for name in self._names(binding)]

    def _names(self, binding: ClusterBinding) -> tuple[str, ...]:
        # The templates name the Lease after the Deployment; a syncer by itself, after the binding.
        deployment = naming.syncer_deployment(binding.spec.cluster_id, self._domain)
        election = naming.syncer_election(binding.name, self._domain)
        return tuple(dict.fromkeys((deployment, election)))

    async def _read(self, key: Key) -> Lease | None:
        try:
            return await self._client.get(LEASES, key.name, key.namespace)
        except NotFound:
            return None
        except Forbidden:
            # Only where the templates say that they run, and nobody has let us look.
            if key.namespace == self._domain.system_namespace:
                raise
            _log.warning("May not see whether a syncer leads", lease=str(key))
            return None

    def _leads(self, lease: Lease) -> bool:
        renewed, now = lease.spec.renew_time or "", self._clock.monotonic()
        before = self._seen.get(lease.key)
        if before is None or before.renewed != renewed:
            before = self._seen[lease.key] = _Sighting(renewed, now)
        duration_s = lease.spec.lease_duration_seconds or _DURATION_S
        return bool(lease.spec.holder_identity) and now - before.at <= duration_s

    def _last_sign(self, lease: Lease) -> datetime | None:
        """When it was renewed: as its holder wrote it, but no later than when we saw it."""
        written = instant_of(lease.spec.renew_time)
        sighting = self._seen[lease.key]
        ago = timedelta(seconds=self._clock.monotonic() - sighting.at)
        return None if written is None else min(written, self._clock.now() - ago)
