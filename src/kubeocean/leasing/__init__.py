"""Decisions of leasing: which nodes are lent, when, how much of them, and how they are reclaimed.

Pure: no function here reads a clock, waits, or sends a request. A name exported here is imported at
its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.leasing.admission import Shortage, admit, shortage
    from kubeocean.leasing.cached_policy import CachedPolicy, read_policy
    from kubeocean.leasing.capacity import Capacity, LimitedBy, node_capacity, offer
    from kubeocean.leasing.decision import (
        BindingSelector,
        Decision,
        Ignore,
        LeaveUnchanged,
        Lend,
        Reclaim,
        ReclaimCause,
        ReclaimRules,
        WindowClosed,
        decide,
    )
    from kubeocean.leasing.limits import Limit, cautious_limits, parse_limits
    from kubeocean.leasing.parsed_policy import ParsedPolicy
    from kubeocean.leasing.policy_choice import Candidate, choose
    from kubeocean.leasing.reclaim import ReclaimInput, ReclaimPhase, ReclaimPlan, plan_reclaim
    from kubeocean.leasing.requests import NodeUsage, requests_of
    from kubeocean.leasing.windows import Calendar, next_edge, within
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "admission": (
                "Shortage",
                "admit",
                "shortage",
            ),
            "capacity": (
                "Capacity",
                "LimitedBy",
                "node_capacity",
                "offer",
            ),
            "cached_policy": (
                "CachedPolicy",
                "read_policy",
            ),
            "decision": (
                "BindingSelector",
                "Decision",
                "LeaveUnchanged",
                "Ignore",
                "Lend",
                "Reclaim",
                "ReclaimCause",
                "ReclaimRules",
                "WindowClosed",
                "decide",
            ),
            "limits": (
                "Limit",
                "cautious_limits",
                "parse_limits",
            ),
            "parsed_policy": ("ParsedPolicy",),
            "policy_choice": (
                "Candidate",
                "choose",
            ),
            "reclaim": (
                "ReclaimInput",
                "ReclaimPhase",
                "ReclaimPlan",
                "plan_reclaim",
            ),
            "requests": (
                "NodeUsage",
                "requests_of",
            ),
            "windows": (
                "Calendar",
                "next_edge",
                "within",
            ),
        },
    )

__all__ = [
    "BindingSelector",
    "CachedPolicy",
    "Calendar",
    "Candidate",
    "Capacity",
    "Decision",
    "Ignore",
    "LeaveUnchanged",
    "Lend",
    "Limit",
    "LimitedBy",
    "NodeUsage",
    "ParsedPolicy",
    "Reclaim",
    "ReclaimCause",
    "ReclaimInput",
    "ReclaimPhase",
    "ReclaimPlan",
    "ReclaimRules",
    "Shortage",
    "WindowClosed",
    "admit",
    "cautious_limits",
    "choose",
    "decide",
    "next_edge",
    "node_capacity",
    "offer",
    "parse_limits",
    "plan_reclaim",
    "read_policy",
    "requests_of",
    "shortage",
    "within",
]
