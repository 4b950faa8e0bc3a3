"""Verdicts: what the status of a binding should say, given all that was seen.

Pure. The first thing that stands in the way is what `Ready` tells, in the order of the set-up: the
binding itself, the worker, its namespace and rights there, proxier, syncer.

`Ready`, `Permitted`, `SyncerReady`, `ProxierReady`, phase, last sync time and observed generation
are the manager's. `Connected` has one writer at a time: the syncer that leads, for it is the one
that has to reach the worker; while none leads, the manager. Where both would say the same, whoever
said it first has said it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kubeocean.api import conditions as said
from kubeocean.api.binding import BindingPhase, BindingStatus, ClusterBinding, problems
from kubeocean.api.conditions import Verdict
from kubeocean.api.problems import Problem, blocking, describe
from kubeocean.api.reasons import BindingEvent
from kubeocean.manager.findings import Cause, Finding
from kubeocean.manager.rolloutviews import Rolled, Side
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.objects import Condition, find_condition, set_condition

__all__ = [
    "Happening",
    "Seen",
    "contradicts",
    "happenings",
    "rightful",
    "rolled_out",
    "status_of",
    "wrong_with",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was read: `wrong` is what is wrong with the binding itself, `leads` whether a syncer
    does; a finding or a rollout that nobody has looked at yet is none."""

    binding: ClusterBinding
    wrong: str = ""
    finding: Finding | None = None
    rolled: Rolled | None = None
    leads: bool = False


class Happening(NamedTuple):
    """Something to tell of a binding."""

    type: EventType
    reason: str
    message: str


# The binding itself


def rightful(binding: ClusterBinding, others: Iterable[ClusterBinding]) -> ClusterBinding:
    """Who has the clusterID by right: the oldest of all that claim it.

    Servers count seconds: of twins it is the one that works already, for the other could not take
    over what that one owns, and neither would work.
    """
    claiming = [each for each in others if each.spec.cluster_id == binding.spec.cluster_id]
    return min((binding, *claiming), key=_seniority)


def _seniority(binding: ClusterBinding) -> tuple[str, bool, str]:
    return binding.metadata.creation_timestamp or "", not rolled_out(binding), binding.name


def wrong_with(binding: ClusterBinding, others: Iterable[ClusterBinding]) -> str:
    """What is wrong with a binding among all the others; nothing, mostly."""
    found = list(blocking(problems(binding.spec)))
    holder = rightful(binding, others)
    if holder.name != binding.name:
        message = f"must be unique, and binding {holder.name} had it before"
        found.append(Problem("spec.clusterID", binding.spec.cluster_id, message))
    return describe(found)


def rolled_out(binding: ClusterBinding) -> bool:
    """Whether we have rolled it out before. The earlier implementation never said of which
    generation it spoke."""
    told = find_condition(binding.status.conditions, said.SYNCER_READY)
    return told is not None and told.observed_generation > 0


# The worker


def contradicts(binding: ClusterBinding, finding: Finding) -> bool:
    """Whether what stands there of the connection is the opposite of what was found."""
    told = find_condition(binding.status.conditions, said.CONNECTED)
    return told is not None and told.status != _connection(finding, 0).status


def _connection(finding: Finding, generation: int) -> Condition:
    if finding.answers:
        return said.CONNECTION_PASSED.condition(generation=generation)
    return said.CONNECTION_FAILED.condition(generation=generation, error=finding.error)


def _connected(seen: Seen) -> Condition | None:
    """What to write of the connection; none, if that is not for us, or told already."""
    if seen.finding is None:
        return None
    told = find_condition(seen.binding.status.conditions, said.CONNECTED)
    wanted = _connection(seen.finding, seen.binding.metadata.generation)
    if told is None:
        return wanted
    ours = wanted.reason == told.reason == said.CONNECTION_FAILED.reason
    return None if seen.leads or (told.status == wanted.status and not ours) else wanted


# The status


def status_of(seen: Seen, *, now: str) -> BindingStatus:
    """The status as it should be; what is not ours stays as it is."""
    before, generation = seen.binding.status, seen.binding.metadata.generation
    conditions = before.conditions
    for condition in _told(seen):
        conditions = set_condition(conditions, condition, now=now)
    phase, ready = _ready(seen, conditions or ())
    turned = phase is BindingPhase.READY and before.phase != phase
    known = seen.wrong or seen.finding is not None
    return msgspec.structs.replace(
        before,
        phase=str(phase),
        conditions=set_condition(conditions, ready, now=now),
        last_sync_time=now if turned else before.last_sync_time,
        observed_generation=generation if known else before.observed_generation,
    )


def _told(seen: Seen) -> Iterator[Condition]:
    generation, finding = seen.binding.metadata.generation, seen.finding
    if seen.wrong:
        return
    if (connected := _connected(seen)) is not None:
        yield connected
    if finding is not None and finding.missing:
        missing = "; ".join(finding.missing)
        yield said.PERMISSIONS_MISSING.condition(generation=generation, missing=missing)
    elif finding is not None and finding.fit:
        without = f"; add-ons without rights: {', '.join(finding.without)}"
        notes = without if finding.without else ""
        yield said.PERMISSIONS_GRANTED.condition(generation=generation, notes=notes)
    if seen.rolled is not None:
        yield _side(seen.rolled.syncer, generation, _SYNCER)
        yield _side(seen.rolled.proxier, generation, _PROXIER)


class _Words(NamedTuple):
    created: Verdict
    updating: Verdict
    not_ready: Verdict
    not_set_up: Verdict


_SYNCER = _Words(
    said.SYNCER_CREATED, said.SYNCER_UPDATING, said.SYNCER_NOT_READY, said.SYNCER_NOT_SET_UP
)
_PROXIER = _Words(
    said.PROXIER_CREATED, said.PROXIER_UPDATING, said.PROXIER_NOT_READY, said.PROXIER_NOT_SET_UP
)


def _side(side: Side, generation: int, words: _Words) -> Condition:
    verdict = words.updating if side.ready else words.not_ready
    if side.is_ready:
        verdict = words.created
    elif side.failed:
        verdict = words.not_set_up
    return verdict.condition(generation=generation, reason=side.reason)


def _ready(seen: Seen, conditions: Iterable[Condition]) -> tuple[BindingPhase, Condition]:
    generation, finding = seen.binding.metadata.generation, seen.finding
    failed, pending = BindingPhase.FAILED, BindingPhase.PENDING
    if seen.wrong:
        return failed, said.BINDING_INVALID.condition(generation=generation, problems=seen.wrong)
    if finding is None:
        return _unknown(seen)
    if (error := _disconnected(finding, conditions)) is not None:
        return failed, said.BINDING_DISCONNECTED.condition(generation=generation, error=error)
    if finding.cause is Cause.NAMESPACE:
        unprepared = said.BINDING_UNPREPARED.condition(generation=generation, error=finding.error)
        return failed, unprepared
    if finding.cause is Cause.RIGHTS:
        return failed, said.BINDING_FORBIDDEN.condition(
            generation=generation, missing=finding.error
        )
    if seen.rolled is None:
        return pending, said.BINDING_INITIALIZING.condition(generation=generation, waits="")
    return _working(seen, seen.rolled)


def _unknown(seen: Seen) -> tuple[BindingPhase, Condition]:
    """Nobody has looked yet: what was said stays, if anything was."""
    before = find_condition(seen.binding.status.conditions, said.READY)
    if before is not None and seen.binding.status.phase in tuple(BindingPhase):
        return BindingPhase(seen.binding.status.phase), before
    generation = seen.binding.metadata.generation
    return BindingPhase.PENDING, said.BINDING_INITIALIZING.condition(
        generation=generation, waits=""
    )


def _disconnected(finding: Finding, conditions: Iterable[Condition]) -> str | None:
    """Why the worker cannot be reached, by our word or by the syncer's."""
    if not finding.answers:
        return finding.error
    told = find_condition(conditions, said.CONNECTED)
    return told.message if told is not None and told.status != "True" else None


def _working(seen: Seen, rolled: Rolled) -> tuple[BindingPhase, Condition]:
    generation = seen.binding.metadata.generation
    sides = (
        (rolled.proxier, said.BINDING_PROXIER_FAILED),
        (rolled.syncer, said.BINDING_SYNCER_FAILED),
    )
    for side, verdict in sides:
        if side.failed:
            error = verdict.condition(generation=generation, error=side.reason)
            return BindingPhase.FAILED, error
    for side, verdict in sides:
        if side.ready:
            continue
        if seen.binding.status.last_sync_time:  # it did work
            error = verdict.condition(generation=generation, error=side.reason)
            return BindingPhase.FAILED, error
        waits = said.BINDING_INITIALIZING.condition(generation=generation, waits=f"; {side.reason}")
        return BindingPhase.PENDING, waits
    return BindingPhase.READY, said.BINDING_READY.condition(generation=generation)


# Events


def happenings(before: BindingStatus, after: BindingStatus) -> Iterator[Happening]:
    """What there is to tell of a change that was written."""
    if not before.phase:
        message = f"The binding is taken care of; it is {after.phase}"
        yield Happening("Normal", BindingEvent.STATUS_UPDATED, message)
    if before.observed_generation != after.observed_generation:
        message = f"Generation {after.observed_generation} of the binding is looked after"
        yield Happening("Normal", BindingEvent.RECONCILING, message)
    was, is_ = (find_condition(each.conditions, said.READY) for each in (before, after))
    if is_ is None or (was is not None and (was.status, was.reason) == (is_.status, is_.reason)):
        return
    if is_.status == "True":
        yield Happening("Normal", BindingEvent.READY, is_.message)
    elif is_.reason != said.BINDING_INITIALIZING.reason:
        yield Happening("Warning", is_.reason, is_.message)
