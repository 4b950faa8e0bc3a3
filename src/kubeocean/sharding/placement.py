"""Shards of objects as the code of the user computes them, and objects for which that code fails.

The sharding key of an object (`get_resource_key`) and the shard of a key (`get_shard` of a custom
algorithm) may be computed by code of the user, and this code may fail on one replica alone: a file
is missing there, or a cache is stale. Another shard in its place would give one key two owners. So
an object whose shard cannot be computed is *unplaced*: this replica does not work on it, and
computes its shard again, with increasing delays, until that succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from kubeocean.errors import KubeoceanError
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object
from kubeocean.runtime.redaction import redact

__all__ = ["ShardComputation", "Unplaced"]

_LOGGED: Final = 20  # objects, if the code of the user fails for very many

_log = get_logger(__name__)


class Unplaced(KubeoceanError):
    """Raised when the shard of an object cannot be computed, because code of the user failed."""


class ShardComputation:
    """Computes the shards of a controller's objects with `compute`, which may raise any error.

    `failed` is set when a computation has failed; the code that repeats computations clears it.
    """

    def __init__(self, controller: str, compute: Callable[[Object], int]) -> None:
        self._controller = controller
        self._compute = compute
        self._logged: set[Key] = set()
        self.failed = asyncio.Event()

    def shard_of(self, obj: Object) -> int:
        """Return the shard of an object, which depends on its name alone.

        :raises Unplaced: `compute` failed.
        """
        try:
            return self._compute(obj)
        except Exception as error:  # whatever the code of the user raises
            reason = str(redact(error))
            self.failed.set()
            if obj.key not in self._logged and len(self._logged) < _LOGGED:
                self._logged.add(obj.key)
                _log.error(
                    "Could not compute shard of object, skipped the object",
                    controller=self._controller,
                    object=str(obj.key),
                    error=reason,
                )
            raise Unplaced(f"could not compute the shard of {obj.key}: {reason}") from error

    def find(self, obj: Object) -> int | None:
        """Return the shard of an object; None if it cannot be computed."""
        try:
            return self.shard_of(obj)
        except Unplaced:
            return None

    def log_placed(self, unplaced: Collection[Key]) -> None:
        """Log the objects that are not `unplaced` any more, and forget that they were logged."""
        placed = self._logged.difference(unplaced)
        self._logged -= placed
        for key in sorted(placed):
            _log.info(
                "Computed shard of object again, or object was deleted",
                controller=self._controller,
                object=str(key),
            )
