"""Usage: what the pods on one node request, kept current one pod at a time.

A change of a pod costs as much as that pod has resources, however many pods there are. The totals
are at any time what adding up all pods afresh would give.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeocean.leasing.amounts import Amounts, add, subtract
from kubeocean.runtime.quantity import Quantity

__all__ = ["NodeUsage"]


@dataclass(frozen=True, slots=True)
class _Share:
    amounts: Amounts
    ours: bool


class NodeUsage:
    """The requests on a node: of our pods, and of everybody else's."""

    __slots__ = ("_others", "_ours", "_shares")

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._ours: dict[str, Quantity] = {}
        self._others: dict[str, Quantity] = {}

    @property
    def ours(self) -> Amounts:
        """What our pods request together."""
        return dict(self._ours)

    @property
    def others(self) -> Amounts:
        """What everybody else's pods request together."""
        return dict(self._others)

    def __len__(self) -> int:
        return len(self._shares)

    def put(self, uid: str, amounts: Amounts, *, ours: bool) -> bool:
        """Count the pod as this, whatever it counted as before; whether that made a difference.

        A pod that takes nothing is not kept.
        """
        share = _Share(amounts, ours) if amounts else None
        if self._shares.get(uid) == share:
            return False
        self.drop(uid)
        if share is not None:
            self._shares[uid] = share
            add(self._side(share), share.amounts)
        return True

    def drop(self, uid: str) -> bool:
        """Count the pod no longer; whether it was counted."""
        share = self._shares.pop(uid, None)
        if share is None:
            return False
        subtract(self._side(share), share.amounts)
        return True

    def _side(self, share: _Share) -> dict[str, Quantity]:
        return self._ours if share.ours else self._others
