"""Exclusive start: a single leader waits until no replica of a ring works any more.

A program runs either as a single leader or as a ring of replicas that share its keys. The Lease of
the election excludes a single leader and the planner of a ring from each other. Replicas, however,
work on their slots without a planner, too, for as long as they renew their own Leases. So a single
leader starts when the last of these Leases is released or has expired by the ring's rules. No
replica can get more slots meanwhile: granting slots takes an elected planner.

Listing these Leases needs a right that only sharing replicas have. An access review checks the
right first; without the right, the ring does not exist.
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
from kubeocean.sharding.members import MemberSighting, expired, observe

__all__ = ["ExclusiveStart"]

_NAMED: Final = 5

_log = get_logger(__name__)


class ExclusiveStart:
    """Makes a single leader wait until no replica works in a ring any more; `waits` is True
    meanwhile."""

    def __init__(self, client: Client, config: Config, *, clock: Clock | None = None) -> None:
        self._client = client
        self._config = config
        self._clock = clock or RealClock()
        self.waits = False

    async def wait(self) -> None:
        """Return once no replica works in the ring."""
        sightings: Mapping[str, MemberSighting] = {}
        timing = self._config.timing()
        try:
            while True:
                try:
                    if not await may_see(self._client, self._config.sharding.namespace):
                        return
                    sightings = await self._look(sightings)
                except Forbidden:
                    return  # this account may not even create an access review
                except ApiError as error:
                    _log.warning(
                        "Could not list replicas of ring, postponed the start of the single leader",
                        ring=self._config.names.ring,
                        error=str(error),
                    )
                else:
                    alive = [each for each, seen in sightings.items() if not expired(seen, timing)]
                    if not alive:
                        return
                    if not self.waits:
                        named = sorted(alive)[:_NAMED]
                        _log.info(
                            "Postponed the start until replicas that run with sharding have"
                            " stopped",
                            replicas=named,
                        )
                self.waits = True
                await self._clock.sleep(timing.retry_s)
        finally:
            self.waits = False

    async def _look(self, before: Mapping[str, MemberSighting]) -> Mapping[str, MemberSighting]:
        config, clock = self._config, self._clock
        started = clock.monotonic()
        records = await read_members(self._client, config.sharding.namespace, config.names)
        return observe(before, records, started=started, now=clock.monotonic())
