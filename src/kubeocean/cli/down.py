"""`kubeocean down`: stops the clusters that `kubeocean up` started."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kubeocean.cli._output import DEFAULT_NAME, NameOption, named, progress_for
from kubeocean.cli._run import command_line, run

__all__ = ["down"]


def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the data of the clusters.")
    ] = False,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Stop the clusters that `up` started. Their data is kept for the next start."""

    async def work() -> None:
        from kubeocean.local.lifecycle import Lifecycle

        lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
        if not await lifecycle.take_down(purge=purge):
            typer.echo(f"{name} was not up")
        elif purge:
            typer.echo(f"{name} is down and its data is removed")
        else:
            start = command_line("up", *named(name))
            typer.echo(f"{name} is down; its data is kept. To start it again, run: {start}")

    run(work)
