"""`kubeocean manager`: the process that looks after all bindings."""

from __future__ import annotations

from typing import Final

import typer

from kubeocean.cli.running import command_line, fail

__all__ = ["manager"]

_USAGE: Final = 2


def manager(context: typer.Context) -> None:
    """Look after all ClusterBindings: validate, roll out, tell, and clear up."""
    from functools import partial

    from kubeocean.errors import ConfigError
    from kubeocean.manager import process
    from kubeocean.manager.settings import Settings
    from kubeocean.runtime import service
    from kubeocean.runtime.goflags import parse, usage

    try:
        settings = parse(Settings, context.args)
    except ConfigError as error:
        code = fail(error, _USAGE)
        typer.echo(f"All flags: {command_line('manager', '--help')}", err=True)
        raise typer.Exit(code) from None
    if settings is None:
        about = "Looks after all ClusterBindings: validates, rolls out, tells, and clears up."
        typer.echo(usage(Settings, program="kubeocean manager", about=about))
        return
    raise typer.Exit(service.run(partial(process.run, settings)))
