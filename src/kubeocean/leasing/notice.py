"""Notice: the taint that tells pods that their node is taken back, and what follows when.

The taint's `timeAdded` is the only memory of when the way back began. Servers keep whole seconds:
ours is rounded up, so that nobody gets less than the grace. A taint without a time, or with one
that is still to come, was not given by us: the grace begins now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from kubeocean.api.group import TRUE
from kubeocean.leasing.instants import ceil_second, instant_of, text_of
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.situation import Situation
from kubeocean.leasing.tolerations import NO_SCHEDULE
from kubeocean.runtime.kinds import Taint

__all__ = ["Notice", "notice_of", "reclaim_taints", "without_time"]


@dataclass(frozen=True, slots=True)
class Notice:
    """When which step of taking back begins, and the taint that says so."""

    taint: Taint  # as a notice is: NoSchedule
    present: Taint | None  # the one that the node has
    evict_from: datetime
    deadline: datetime


def notice_of(situation: Situation, cause: Cause) -> Notice:
    """The notice that this cause asks for; one that was given before is kept."""
    domain = situation.domain
    key = domain.taint_vnode_deleting if cause.removes_node else domain.taint_out_of_time_windows
    present = next((each for each in situation.taints if each.key == key), None)
    latest = ceil_second(situation.now)

    added = _time_added(present)
    if added is None or added > latest:
        taint = Taint(key, TRUE, NO_SCHEDULE, text_of(latest))
        since = latest
    else:
        assert present is not None  # it has a time
        taint = Taint(key, TRUE, NO_SCHEDULE, present.time_added)
        since = added
    if situation.rules_since is not None:
        since = max(since, min(situation.rules_since, latest))

    evict_from = since + timedelta(seconds=situation.rules.grace_s)
    deadline = evict_from + timedelta(seconds=situation.rules.deadline_s)
    return Notice(taint, present, evict_from, deadline)


def reclaim_taints(situation: Situation) -> tuple[Taint, ...]:
    """Those taints of the node that were put there to take it back."""
    domain = situation.domain
    keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
    return tuple(each for each in situation.taints if each.key in keys)


def without_time(taint: Taint) -> Taint:
    """The taint as one that keeps new pods away and begins no grace."""
    return msgspec.structs.replace(taint, effect=NO_SCHEDULE, time_added=None)


def _time_added(taint: Taint | None) -> datetime | None:
    return instant_of(taint.time_added) if taint is not None else None
