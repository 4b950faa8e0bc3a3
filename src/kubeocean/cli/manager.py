"""`kubeocean manager`: the process that reconciles all ClusterBindings."""

from __future__ import annotations

import typer

from kubeocean.cli._processes import run_process

__all__ = ["manager"]


def manager(context: typer.Context) -> None:
    """Run the manager: validate, roll out, report on and clean up all ClusterBindings."""
    from kubeocean.manager import process
    from kubeocean.manager.settings import ManagerSettings

    about = "Runs the manager: validates, rolls out, reports on and cleans up all ClusterBindings."
    run_process("manager", ManagerSettings, process.run, context.args, about=about)
