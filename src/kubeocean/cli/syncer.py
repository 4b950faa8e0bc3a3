"""`kubeocean syncer`: the process that lends the nodes of one worker cluster."""

from __future__ import annotations

import typer

from kubeocean.cli._processes import run_process

__all__ = ["syncer"]


def syncer(context: typer.Context) -> None:
    """Run the syncer of one ClusterBinding: lend the nodes of its worker cluster and run pods."""
    from functools import partial

    from kubeocean.cli._agentless import agentless_member
    from kubeocean.syncer import process
    from kubeocean.syncer.settings import Settings

    about = "Runs the syncer of one ClusterBinding: lends its worker's nodes and runs pods there."
    work = partial(process.run, companions=(agentless_member,))
    run_process("syncer", Settings, work, context.args, about=about)
