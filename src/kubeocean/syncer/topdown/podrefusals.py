"""Refusals: telling a user why a pod does not run in the worker, and when it is tried again.

Each says which object and why, in an event and in a condition of the virtual pod. Attempts become
rarer, from one second to five minutes; what may have changed in our sight ends the wait.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kubeocean.api.reasons import PodEvent
from kubeocean.errors import NotFound
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge import podstatus
from kubeocean.syncer.podviews import VIRTUAL_PODS, VirtualPod
from kubeocean.syncer.topdown.podwrites import PodWrites
from kubeocean.syncer.world import World

__all__ = ["LONGEST_MESSAGE", "LONGEST_S", "Refusals"]

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
LONGEST_MESSAGE: Final = 1024

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wait:
    uid: str
    due_s: float
    next_s: float


class Refusals:
    """Of one binding's pods, for as long as they wait."""

    def __init__(self, world: World, writes: PodWrites) -> None:
        self._world = world
        self._writes = writes
        self._waits: dict[Key, _Wait] = {}

    def waiting(self) -> list[Key]:
        """The pods that wait."""
        return list(self._waits)

    def left_s(self, vpod: VirtualPod) -> float:
        """Seconds until the next attempt is due."""
        wait = self._waits.get(vpod.key)
        if wait is None or wait.uid != vpod.uid:
            return 0.0
        return max(0.0, wait.due_s - self._world.clock.monotonic())

    def hurry(self, key: Key) -> None:
        """Something changed that may help."""
        wait = self._waits.get(key)
        if wait is not None:
            self._waits[key] = _Wait(wait.uid, 0.0, wait.next_s)

    def forget(self, key: Key) -> None:
        """It runs, or is gone."""
        self._waits.pop(key, None)

    def put_off(self, vpod: VirtualPod, *, at_most_s: float = LONGEST_S) -> float:
        """Wait longer than the last time; for how many seconds."""
        before = self._waits.get(vpod.key)
        same = before is not None and before.uid == vpod.uid
        delay_s = min(before.next_s if before is not None and same else FIRST_S, at_most_s)
        due_s = self._world.clock.monotonic() + delay_s
        self._waits[vpod.key] = _Wait(vpod.uid, due_s, min(delay_s * 2, LONGEST_S))
        return delay_s

    async def tell(
        self,
        vpod: VirtualPod,
        message: str,
        *,
        reason: str = PodEvent.FAILED_CREATE,
        at_most_s: float = LONGEST_S,
    ) -> float:
        """Say why it does not run; seconds until the next attempt."""
        delay_s = self.put_off(vpod, at_most_s=at_most_s)
        _log.info("Could not create pod", vpod=str(vpod.key), why=message, retry_in_s=delay_s)
        said = reference(VIRTUAL_PODS, vpod)
        self._world.events.emit(said, "Warning", PodEvent.FAILED_CREATE, message)
        await self._note(vpod, reason=reason, message=message[:LONGEST_MESSAGE])
        return delay_s

    async def _note(self, vpod: VirtualPod, *, reason: str, message: str) -> None:
        now = self._world.now_text()
        status = podstatus.refusal(vpod.content(), reason=reason, message=message, now=now)
        if not status:
            return
        meta = {"uid": vpod.uid, "resourceVersion": vpod.resource_version}
        body: Json = {"metadata": meta, "status": status}
        with suppress(NotFound):
            written = await self._world.computing.patch(
                VIRTUAL_PODS, vpod.name, MergePatch(body), vpod.namespace, subresource="status"
            )
            self._writes.wrote_above(written)
