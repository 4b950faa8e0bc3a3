"""Parts: which of a binding's work is this process's, where several share it.

Everything of a virtual node is in one part, and so is everything of a pod. A pod is known by its
namespace and name rather than by its UID: the next pod of that name takes the place of the one that
goes, in the worker as well, and two processes must not see to the two.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from kubeocean.runtime.objects import Key

__all__ = ["WHOLE", "Part", "of_node", "of_pod"]


class Part(Protocol):
    """What is ours."""

    def owns(self, what: str) -> bool:
        """Whether something may be taken up here."""

    def turn(self, what: str) -> AbstractAsyncContextManager[None]:
        """Do something about it until the block ends.

        :raises NotOurs: it is not ours, or not any more.
        """


class _Whole:
    """There is nobody else."""

    def owns(self, what: str) -> bool:
        return True

    def turn(self, what: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()


WHOLE: Final[Part] = _Whole()


def of_node(vnode: str) -> str:
    """What a virtual node and all that belongs to it is shared by."""
    return f"node/{vnode}"


def of_pod(virtual: Key) -> str:
    """What a virtual pod and all that belongs to it is shared by."""
    return f"pod/{virtual}"
