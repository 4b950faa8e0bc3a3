"""Shard filters: which keys of a binding belong to this replica, where several share the binding.

All objects of a virtual node are in one shard, and so are all objects of a pod. The shard of a pod
follows from its namespace and name rather than its UID: the next pod of that name has the same name
in the worker as well, and two replicas must not work on the two.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from kubeocean.runtime.objects import Key

__all__ = ["ALL", "ShardFilter", "of_node", "of_pod"]


class ShardFilter(Protocol):
    """Decides which keys belong to this replica."""

    def owns(self, what: str) -> bool:
        """Whether this replica may work on a key: the key's shard belongs to the replica."""

    def turn(self, what: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which this replica works on a key.

        The shard of the key is not handed over before the block ends.

        :raises NotOurs: the key belongs to another replica.
        """


class _All:
    """The shard filter of a replica that works alone: all keys belong to it."""

    def owns(self, what: str) -> bool:
        return True

    def turn(self, what: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()


ALL: Final[ShardFilter] = _All()


def of_node(vnode: str) -> str:
    """Return the key by which a virtual node and its objects are sharded."""
    return f"node/{vnode}"


def of_pod(virtual: Key) -> str:
    """Return the key by which a virtual pod and its objects are sharded."""
    return f"pod/{virtual}"
