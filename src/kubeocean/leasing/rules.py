"""Rules: by what a node is taken back.

Why it is taken back decides whose rules hold. A window that closes and a policy that goes, or lets
go of the node, are the owner's business: the policy's own rules. A binding that is deleted has to
end, so what does not leave is made to. A node that is gone has nothing left to be gentle with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from kubeocean.api.policy import PolicySpec

__all__ = ["ABANDON_S", "DEADLINE_S", "Cause", "Rules", "rules_of"]

DEADLINE_S: Final = 300  # what a disruption budget can hold back eviction, where nobody says
ABANDON_S: Final = 120  # what a forced deletion may take where a node has to go


class Cause(StrEnum):
    """Why a node is not lent any more."""

    WINDOW_CLOSED = "WindowClosed"
    POLICY_REMOVED = "PolicyRemoved"
    POLICY_NARROWED = "PolicyNarrowed"  # it does not select this node any more
    BINDING_DELETED = "BindingDeleted"
    NODE_GONE = "NodeGone"  # from the worker, as the worker itself says

    @property
    def removes_node(self) -> bool:
        """Whether the virtual node goes, too; a closed window only empties it."""
        return self is not Cause.WINDOW_CLOSED


@dataclass(frozen=True, slots=True)
class Rules:
    """How a node is taken back.

    Pods have `grace_s` to leave by themselves. Only with `force` are they then evicted, within the
    pace and as far as disruption budgets allow, and after another `deadline_s` deleted whatever a
    budget says. Where `abandon_s` is set, a pod that is still not gone so long after that is given
    up. A node that pods were evicted from takes no new ones for `cool_down_s`.
    """

    force: bool = False
    grace_s: float = 0
    deadline_s: float = DEADLINE_S
    evictions_per_minute: int | None = None  # None: no limit
    cool_down_s: float = 0
    abandon_s: float | None = None  # None: never


def rules_of(spec: PolicySpec | None, cause: Cause | None) -> Rules:
    """The rules that hold for this cause; where no policy is known, the gentlest of all.

    Without a cause, they are those of a node that is lent.
    """
    own = _own_rules(spec if spec is not None else PolicySpec())
    if cause is Cause.BINDING_DELETED:
        return replace(own, force=True, abandon_s=ABANDON_S)
    if cause is Cause.NODE_GONE:
        return Rules(force=True, deadline_s=0, abandon_s=ABANDON_S)
    return own


def _own_rules(spec: PolicySpec) -> Rules:
    deadline_s, pace = spec.force_reclaim_deadline_seconds, spec.max_evictions_per_minute
    return Rules(
        force=spec.force_reclaim,
        grace_s=max(spec.graceful_reclaim_period_seconds, 0),
        deadline_s=DEADLINE_S if deadline_s is None else max(deadline_s, 0),
        evictions_per_minute=pace if pace is not None and pace > 0 else None,
        cool_down_s=max(spec.cool_down_seconds, 0),
    )
