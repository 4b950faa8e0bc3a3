"""`kubeocean manager`: the process that looks after all bindings."""

from __future__ import annotations

import typer

from kubeocean.cli.processes import run_process

__all__ = ["manager"]


def manager(context: typer.Context) -> None:
    """Look after all ClusterBindings: validate, roll out, tell, and clear up."""
    from kubeocean.manager import process
    from kubeocean.manager.settings import Settings

    about = "Looks after all ClusterBindings: validates, rolls out, tells, and clears up."
    run_process("manager", Settings, process.run, context.args, about=about)
