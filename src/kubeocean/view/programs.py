"""Programs: whether the manager, a syncer or a proxier works.

Their Deployments say it best. A program that somebody runs by hand is known by the lease that its
replicas compete for, and where there is none by what the binding's conditions say.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from kubeocean.leasing.instants import instant_of, text_of
from kubeocean.runtime.kinds import Lease
from kubeocean.runtime.objects import Condition
from kubeocean.view.kinds import Deployment
from kubeocean.view.model import ProgramState, ProgramView

__all__ = ["program_view"]

# Leaders renew every few seconds; our clock may differ from theirs.
_SILENT: Final = timedelta(seconds=60)


def program_view(
    deployment: Deployment | None,
    elections: Iterable[Lease],
    condition: Condition | None,
    *,
    now: datetime,
) -> ProgramView:
    """One program; `elections` are the leases that its replicas may compete for."""
    renewed = max(elections, key=lambda each: each.spec.renew_time or "", default=None)
    if deployment is not None:
        return _deployed(deployment, renewed, now)
    if renewed is not None:
        return _elected(renewed, now)
    if condition is None:
        return ProgramView()
    state = ProgramState.RUNNING if condition.status == "True" else ProgramState.DOWN
    return ProgramView(state, message=condition.message)


def _deployed(deployment: Deployment, election: Lease | None, now: datetime) -> ProgramView:
    wanted, serving = deployment.spec.replicas, deployment.serving
    leader = _elected(election, now) if election is not None else ProgramView()
    state, message = ProgramState.RUNNING, ""
    if not wanted:
        state, message = ProgramState.DOWN, f"Deployment {deployment.key} is scaled to 0"
    elif serving < wanted:
        state = ProgramState.DEGRADED if serving else ProgramState.DOWN
        message = f"{serving} of {wanted} replicas of Deployment {deployment.key} serve"
    elif leader.state is ProgramState.DOWN:
        state, message = ProgramState.DOWN, leader.message
    elif deployment.renewed < wanted:
        state = ProgramState.DEGRADED
        said = f"{deployment.renewed} of {wanted} replicas of Deployment {deployment.key} are new"
        message = f"{said}, the others serve as before"
    return ProgramView(state, wanted, serving, leader.leader, message)


def _elected(election: Lease, now: datetime) -> ProgramView:
    holder, renewed = election.spec.holder_identity or "", instant_of(election.spec.renew_time)
    if holder and renewed is not None and now - renewed < _SILENT:
        return ProgramView(ProgramState.RUNNING, leader=holder)
    since = f" since {text_of(renewed)}" if renewed is not None else ""
    return ProgramView(ProgramState.DOWN, message=f"nobody leads{since} (Lease {election.key})")
