"""Vacancy: who works alone waits for those that share.

The Lease of the election keeps a leader that works alone and the assigner of a ring apart. But
replicas act on the slots that they have without an assigner, too, for as long as they renew Leases
of their own. So a leader that works alone begins when the last of them is gone, or has certainly
stopped by the ring's own rules. Nobody can give them more slots meanwhile: for that, one would have
to be elected.

Who shares has to list those Leases, and who does not need not. So we ask whether we may before we
do; if not, nobody shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeocean.errors import ApiError, Forbidden
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.config import Config
from kubeocean.sharding.heartbeat import may_see, read_members
from kubeocean.sharding.members import Sighting, expired, observe

__all__ = ["Vacancy"]

_NAMED: Final = 5

_log = get_logger(__name__)


class Vacancy:
    """Whether nobody works in a ring any more; `waits` while somebody does."""

    def __init__(self, client: Client, config: Config, *, clock: Clock | None = None) -> None:
        self._client = client
        self._config = config
        self._clock = clock or RealClock()
        self.waits = False

    async def wait(self) -> None:
        """Return once nobody does."""
        sightings: Mapping[str, Sighting] = {}
        timing = self._config.timing()
        try:
            while True:
                try:
                    if not await may_see(self._client, self._config.sharding.namespace):
                        return
                    sightings = await self._look(sightings)
                except Forbidden:
                    return  # not even to ask
                except ApiError as error:
                    _log.warning("Could not see who shares the work", error=str(error))
                else:
                    alive = [each for each, seen in sightings.items() if not expired(seen, timing)]
                    if not alive:
                        return
                    if not self.waits:
                        named = sorted(alive)[:_NAMED]
                        _log.info("Waiting for replicas that share the work", replicas=named)
                self.waits = True
                await self._clock.sleep(timing.retry_s)
        finally:
            self.waits = False

    async def _look(self, before: Mapping[str, Sighting]) -> Mapping[str, Sighting]:
        config, clock = self._config, self._clock
        asked = clock.monotonic()
        records = await read_members(self._client, config.sharding.namespace, config.names)
        return observe(before, records, asked=asked, now=clock.monotonic())
