"""Runs the long-running commands: manager, syncer and proxier.

Their flags follow the syntax of Go programs, which Typer does not parse.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from kubeocean.cli._run import command_line, fail

if TYPE_CHECKING:
    from kubeocean.process.settings import ProcessSettings

__all__ = ["GO_FLAGS", "run_process"]

# Typer passes all words after the command to the parser of Go flags.
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
    """Run a process with the settings in `words`, and exit with its code."""
    from functools import partial

    from kubeocean.errors import ConfigError
    from kubeocean.runtime import service
    from kubeocean.runtime.flags import parse, usage

    try:
        parsed = parse(settings, words)
    except ConfigError as error:
        code = fail(error, _USAGE)
        typer.echo(f"To list all flags, run: {command_line(name, '--help')}", err=True)
        raise typer.Exit(code) from None
    if parsed is None:  # --help
        typer.echo(usage(settings, program=f"kubeocean {name}", about=about))
        return
    raise typer.Exit(service.run(partial(process, parsed)))
