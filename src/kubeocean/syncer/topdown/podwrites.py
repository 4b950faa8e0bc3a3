"""Own writes of pods: nothing is decided about a virtual pod before both caches show what we wrote.

Writes below are filed under the virtual pod for which they were made, because that is the key by
which a pod is looked at.
"""

from __future__ import annotations

from kubeocean.runtime.objects import Key
from kubeocean.syncer.filedwrites import FiledWrites
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.world import World

__all__ = ["PodWrites"]


class PodWrites:
    """What was written of late, on both sides."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._below = FiledWrites()  # by virtual pod

    def wrote_above(self, vpod: VirtualPod) -> None:
        self._world.vpods.wrote(vpod)

    def wrote_below(self, key: Key, ppod: PhysicalPod) -> None:
        self._below.wrote(key, self._world.ppods, ppod)

    def deleted_below(self, key: Key, ppod: PhysicalPod) -> None:
        self._below.deleted(key, self._world.ppods, ppod)

    async def caught_up(self, key: Key) -> bool:
        """Whether both caches are whole and show all that we wrote for this virtual pod."""
        world = self._world
        caches = (world.bindings, world.vnodes, world.vpods, world.ppods)
        if not all(cache.has_synced for cache in caches):
            return False
        if not await world.vpods.caught_up(key):
            return False
        # A worker that does not answer will not show us what we wrote, and is not decided from.
        return not world.reach.answers or await self._below.shown(key, world.ppods)
