"""`kubeocean proxier`: logs, exec and metrics of one binding's virtual nodes."""

from __future__ import annotations

from typing import Final

import typer

from kubeocean.cli.running import command_line, fail

__all__ = ["proxier"]

_USAGE: Final = 2


def proxier(context: typer.Context) -> None:
    """Answer for the virtual nodes of one binding, as their kubelets would."""
    from functools import partial

    from kubeocean.errors import ConfigError
    from kubeocean.proxier import process
    from kubeocean.proxier.settings import Settings
    from kubeocean.runtime import service
    from kubeocean.runtime.goflags import parse, usage

    try:
        settings = parse(Settings, context.args)
    except ConfigError as error:
        code = fail(error, _USAGE)
        typer.echo(f"All flags: {command_line('proxier', '--help')}", err=True)
        raise typer.Exit(code) from None
    if settings is None:
        about = "Answers for the virtual nodes of one binding, as their kubelets would."
        typer.echo(usage(Settings, program="kubeocean proxier", about=about))
        return
    raise typer.Exit(service.run(partial(process.run, settings)))
