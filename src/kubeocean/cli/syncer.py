"""`kubeocean syncer`: the process that lends one worker cluster."""

from __future__ import annotations

import typer

from kubeocean.cli.processes import run_process

__all__ = ["syncer"]


def syncer(context: typer.Context) -> None:
    """Lend the nodes of one worker cluster, as its ClusterBinding says."""
    from kubeocean.syncer import process
    from kubeocean.syncer.settings import Settings

    about = "Lends the nodes of one worker cluster, as its ClusterBinding says."
    run_process("syncer", Settings, process.run, context.args, about=about)
