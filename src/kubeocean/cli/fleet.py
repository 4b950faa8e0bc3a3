"""`kubeocean fleet`: the processes of a fleet, and commands for its members."""

from __future__ import annotations

import typer

from kubeocean.cli._processes import GO_FLAGS, run_process
from kubeocean.cli.fleet_clusters import clusters
from kubeocean.cli.fleet_cordon import cordon, uncordon
from kubeocean.cli.fleet_join import join
from kubeocean.cli.fleet_leave import leave

__all__ = ["fleet", "hub", "member"]

fleet = typer.Typer(name="fleet", help="Run a fleet of clusters.", no_args_is_help=True)


@fleet.command(context_settings=GO_FLAGS)
def hub(context: typer.Context) -> None:
    """Run the hub: admit members, report their health, and keep their inventory."""
    from kubeocean.fleet import hub as process
    from kubeocean.fleet.settings import HubSettings

    about = (
        "Runs the hub of a fleet: admits members, reports their health, keeps their inventory."
        " Takes the flags of KubeFleet's hub agent."
    )
    run_process("fleet hub", HubSettings, process.run, context.args, about=about)


@fleet.command(context_settings=GO_FLAGS)
def member(context: typer.Context) -> None:
    """Run the agent of a member: report its health and properties to the hub."""
    from kubeocean.fleet import member as process
    from kubeocean.fleet.settings import MemberSettings

    about = (
        "Runs the agent of a member: reports its health and properties to the hub. Takes the flags"
        " and the environment of KubeFleet's member agent."
    )
    run_process("fleet member", MemberSettings, process.run, context.args, about=about)


fleet.command()(clusters)
fleet.command()(join)
fleet.command()(leave)
fleet.command()(cordon)
fleet.command()(uncordon)
