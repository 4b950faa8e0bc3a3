"""`kubeocean down`: stop what `kubeocean up` started."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kubeocean.cli.output import DEFAULT_NAME, NameOption, named, progress_for
from kubeocean.cli.running import command_line, run

__all__ = ["down"]


def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove the data, too.")] = False,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Stop the clusters; no process is left. Their data stays, unless it is purged."""

    async def work() -> None:
        from kubeocean.local.lifecycle import Lifecycle

        lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
        if not await lifecycle.take_down(purge=purge):
            typer.echo(f"{name} was not up")
        elif purge:
            typer.echo(f"{name} is down, its data is removed")
        else:
            again = command_line("up", *named(name))
            typer.echo(f"{name} is down; its data is kept for the next: {again}")

    run(work)
