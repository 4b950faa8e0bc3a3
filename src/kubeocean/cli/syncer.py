"""`kubeocean syncer`: the process that lends one worker cluster."""

from __future__ import annotations

from typing import Final

import typer

from kubeocean.cli.running import command_line, fail

__all__ = ["GO_FLAGS", "syncer"]

# All that stands after the command is for our own parser, which reads flags as Go programs do.
GO_FLAGS: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
_USAGE: Final = 2


def syncer(context: typer.Context) -> None:
    """Lend the nodes of one worker cluster, as its ClusterBinding says."""
    from functools import partial

    from kubeocean.errors import ConfigError
    from kubeocean.runtime import service
    from kubeocean.runtime.goflags import parse, usage
    from kubeocean.syncer import process
    from kubeocean.syncer.settings import Settings

    try:
        settings = parse(Settings, context.args)
    except ConfigError as error:
        code = fail(error, _USAGE)
        typer.echo(f"All flags: {command_line('syncer', '--help')}", err=True)
        raise typer.Exit(code) from None
    if settings is None:
        about = "Lends the nodes of one worker cluster, as its ClusterBinding says."
        typer.echo(usage(Settings, program="kubeocean syncer", about=about))
        return
    raise typer.Exit(service.run(partial(process.run, settings)))
