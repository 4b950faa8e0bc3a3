"""Checks of the hub of a fleet: its definitions, its leader, its members and its placements.

The functions that explain members and placements also judge them here, so doctor and explain agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from kubeocean import __version__
from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import SCHEDULED
from kubeocean.api.fleet.definitions import hub_definitions
from kubeocean.api.fleet.names import ANNOTATION_AGENT_VERSION, SYSTEM_NAMESPACE
from kubeocean.api.fleet.placements import Placement
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.settings import HUB_LEASE
from kubeocean.inspect.doctor.server_checks import compare_definitions
from kubeocean.inspect.explain.member import MemberDetails, explain_member, silence
from kubeocean.inspect.explain.placement import PlacementDetails, explain_placement
from kubeocean.inspect.explain.report import ExplanationRule
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.fleet.progress import NOT_REPORTED, placement_problem
from kubeocean.inspect.format import few
from kubeocean.inspect.snapshot import FleetSnapshot, known, require
from kubeocean.runtime.kinds import Lease

__all__ = ["CHECKS"]

_JOINING: Final = timedelta(minutes=1)  # within which an agent reports for the first time
_LEAVING: Final = timedelta(minutes=15)  # after which a hub removes a member by default
_STUCK: Final = timedelta(minutes=5)  # in one step of a placement
_INSTALL: Final = "install the fleet's definitions again, as with the chart kubeocean-fleet-hub"
_RELEASE: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_FAULTS: Final = frozenset(
    {
        ExplanationRule.NOT_ADMITTED,
        ExplanationRule.AGENT_NEVER_SEEN,
        ExplanationRule.HEARTBEAT_LOST,
        ExplanationRule.NOT_JOINED,
        ExplanationRule.MEMBER_UNHEALTHY,
    }
)


def _check_definitions(fleet: FleetSnapshot, at: datetime) -> Iterator[Finding]:
    """Check that all kinds of a hub are installed, served, and have all fields that we write."""
    yield from compare_definitions(
        "fleet definitions", "hub", require(fleet.definitions), hub_definitions(), _INSTALL
    )


def _check_hub(fleet: FleetSnapshot, at: datetime) -> Iterator[Finding]:
    """Check that a hub leads, or that heartbeats show a hub that runs without an election."""
    lease = require(fleet.elections).get(HUB_LEASE)
    is_heard = any(not silence(member, at) for member in require(fleet.members))
    if is_heard or _is_held(lease, at):
        return
    since = lease.spec.renew_time if lease is not None else None
    message = f"none has led since {since}" if since else "none has ever led"
    remedy = f"see the pods in {SYSTEM_NAMESPACE}: kubeocean fleet hub has to run"
    yield Finding(Severity.ERROR, "hub", message, remedy, check="fleet hub")


def _is_held(lease: Lease | None, at: datetime) -> bool:
    if lease is None or not lease.spec.holder_identity:
        return False
    renewed = stored_instant(lease.spec.renew_time)
    limit = timedelta(seconds=2 * (lease.spec.lease_duration_seconds or 0))
    return renewed is not None and at - renewed <= limit


def _check_members(fleet: FleetSnapshot, at: datetime) -> Iterator[Finding]:
    """Check that members have joined, send heartbeats, are healthy, and leave in time."""
    for member in require(fleet.members):
        about = f"member {member.name}"
        internal = known(fleet.internals, {}).get(member.name)
        explanation = explain_member(MemberDetails(member.name, at, member, internal))
        message = "; ".join((explanation.verdict, *explanation.reasons))
        remedy = few(explanation.remedies) or f"kubeocean explain member {member.name}"
        if explanation.rule is ExplanationRule.MEMBER_LEAVING:
            if _has_passed(member.metadata.deletion_timestamp, _LEAVING, at):
                yield Finding(Severity.WARNING, about, message, remedy, check="fleet members")
        elif explanation.rule in _FAULTS and not _is_new(member, explanation.rule, at):
            yield Finding(Severity.ERROR, about, message, remedy, check="fleet members")


def _is_new(member: MemberCluster, rule: ExplanationRule, at: datetime) -> bool:
    """Whether a member that has not reported yet may still be joining."""
    is_joining = rule in (
        ExplanationRule.NOT_ADMITTED,
        ExplanationRule.AGENT_NEVER_SEEN,
        ExplanationRule.NOT_JOINED,
    )
    return is_joining and not _has_passed(member.metadata.creation_timestamp, _JOINING, at)


def _check_agents(fleet: FleetSnapshot, at: datetime) -> Iterator[Finding]:
    """Check that agents are not older than this program; KubeFleet's report no version."""
    for name, internal in sorted(require(fleet.internals).items()):
        version = internal.annotations.get(ANNOTATION_AGENT_VERSION, "")
        if _release(version) < _release(__version__) and version:
            message = f"its agent has version {version}, which is older than {__version__}"
            remedy = f"kubeocean fleet join {name}, or another image in its Deployment"
            yield Finding(Severity.WARNING, f"member {name}", message, remedy, check="fleet agents")


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    return tuple(int(each or 0) for each in match.groups()) if match is not None else ()


def _check_placements(fleet: FleetSnapshot, at: datetime) -> Iterator[Finding]:
    """Check that no placement remains in one step or in its deletion for too long."""
    unseen = require(fleet.unseen)
    for placement in require(fleet.placements):
        about = f"placement {placement.key}"
        explanation = explain_placement(PlacementDetails(placement.key, at, placement))
        message = "; ".join((explanation.verdict, *explanation.reasons[:3]))
        remedy = f"kubeocean explain placement {placement.key}"
        severity = _severity(placement, unseen, at)
        if severity is not None:
            yield Finding(severity, about, message, remedy, check="fleet placements")


def _severity(placement: Placement, unseen: frozenset[str], at: datetime) -> Severity | None:
    """Return the severity of a placement's state; None if it is complete or in progress."""
    if placement.deleting:
        is_stuck = _has_passed(placement.metadata.deletion_timestamp, _STUCK, at)
        return Severity.WARNING if is_stuck else None
    problem = placement_problem(placement)
    if problem is None:
        return None
    if problem.reason == NOT_REPORTED:
        return Severity.ERROR if placement.uid in unseen else None
    if not _has_passed(problem.last_transition_time, _STUCK, at):
        return None
    # A policy that too few clusters fulfil may be intended.
    return Severity.WARNING if problem.type.endswith(SCHEDULED.name) else Severity.ERROR


def _has_passed(since: str | None, time: timedelta, at: datetime) -> bool:
    instant = stored_instant(since)
    return instant is not None and at - instant > time


CHECKS: Final = {
    "fleet definitions": _check_definitions,
    "fleet hub": _check_hub,
    "fleet members": _check_members,
    "fleet agents": _check_agents,
    "fleet placements": _check_placements,
}
