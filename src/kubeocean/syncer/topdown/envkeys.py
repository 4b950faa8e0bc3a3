"""Keys of what gives containers their whole environment.

Above, a variable from `envFrom` wins over one of a Service; to keep it so the keys have to be known
when a pod is made. They are read from the cache, once for each version of an object.
"""

from __future__ import annotations

from kubeocean.runtime.objects import Key
from kubeocean.syncer.forge.copies import Original
from kubeocean.syncer.topdown.copies import Copies

__all__ = ["EnvKeys"]


class EnvKeys:
    """Of one kind's objects, which are copied."""

    def __init__(self, copies: Copies) -> None:
        self._originals = copies.pairs.originals
        self._read: dict[Key, tuple[str, frozenset[str]]] = {}  # with the version
        self._originals.on_change(self._changed)

    async def of(self, key: Key) -> frozenset[str]:
        """The keys of an object; none if there is no such object."""
        original = self._originals.get(key)
        if original is None and await self._originals.caught_up(key):
            original = self._originals.get(key)  # it was copied just now
        if original is None:
            return frozenset()
        known = self._read.get(key)
        if known is None or known[0] != original.resource_version:
            data = original.content().get("data") or {}
            known = self._read[key] = original.resource_version, frozenset(data)
        return known[1]

    def _changed(self, old: Original | None, new: Original | None) -> None:
        if old is not None and new is None:
            self._read.pop(old.key, None)
