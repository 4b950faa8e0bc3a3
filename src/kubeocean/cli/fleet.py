"""`kubeocean fleet`: the processes of a fleet, and commands for its members and placements."""

from __future__ import annotations

import typer

from kubeocean.cli.fleet_join import join
from kubeocean.cli.fleet_leave import leave
from kubeocean.cli.fleet_members import clusters, cordon, uncordon
from kubeocean.cli.fleet_placements import placements, tree
from kubeocean.cli.processes import GO_FLAGS, run_process

__all__ = ["fleet", "hub", "member"]

fleet = typer.Typer(name="fleet", help="Run and manage a fleet of clusters.", no_args_is_help=True)


@fleet.command(context_settings=GO_FLAGS)
def hub(context: typer.Context) -> None:
    """Run the hub: admit members, keep their inventory, and place objects on them."""
    from kubeocean.fleet import hub as process
    from kubeocean.fleet.settings import HubSettings

    about = (
        "Runs the hub of a fleet: admits members, reports their health, keeps their inventory, and"
        " places objects on them. Takes the flags of KubeFleet's hub agent."
    )
    run_process("fleet hub", HubSettings, process.run, context.args, about=about)


@fleet.command(context_settings=GO_FLAGS)
def member(context: typer.Context) -> None:
    """Run the agent of a member: report to the hub, and apply the objects that it places."""
    from kubeocean.fleet import member as process
    from kubeocean.fleet.settings import MemberSettings

    about = (
        "Runs the agent of a member: reports its health and properties to the hub, and applies the"
        " objects that the hub places. Takes the flags and the environment of KubeFleet's member"
        " agent."
    )
    run_process("fleet member", MemberSettings, process.run, context.args, about=about)


fleet.command()(clusters)
fleet.command()(placements)
fleet.command()(tree)
fleet.command()(join)
fleet.command()(leave)
fleet.command()(cordon)
fleet.command()(uncordon)
