"""Processes: the commands that run until they are told to stop.

Their flags are read as Go programs read them, and not by the parser of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from kubeocean.cli.running import command_line, fail

if TYPE_CHECKING:
    from kubeocean.bound.settings import ProcessSettings

__all__ = ["GO_FLAGS", "run_process"]

# All that stands after the command is for our own parser, which reads flags as Go programs do.
GO_FLAGS: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
_USAGE: Final = 2

S = TypeVar("S", bound="ProcessSettings")


def run_process(
    name: str,
    settings: type[S],
    process: Callable[[S], Coroutine[None, None, int]],
    words: Sequence[str],
    *,
    about: str,
) -> None:
    """Run a process with the settings that `words` ask for, and leave with its exit code."""
    from functools import partial

    from kubeocean.errors import ConfigError
    from kubeocean.runtime import service
    from kubeocean.runtime.goflags import parse, usage

    try:
        given = parse(settings, words)
    except ConfigError as error:
        code = fail(error, _USAGE)
        typer.echo(f"All flags: {command_line(name, '--help')}", err=True)
        raise typer.Exit(code) from None
    if given is None:
        typer.echo(usage(settings, program=f"kubeocean {name}", about=about))
        return
    raise typer.Exit(service.run(partial(process, given)))
