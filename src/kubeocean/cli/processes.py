"""`kubeocean manager`, `kubeocean syncer` and `kubeocean proxier`: the processes of Kubeocean.

Their flags follow the syntax of Go programs, which Typer does not parse.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from kubeocean.cli._run import command_line, fail

if TYPE_CHECKING:
    from kubeocean.process.settings import ProcessSettings

__all__ = ["GO_FLAGS", "manager", "proxier", "run_process", "syncer"]

# Typer passes all words after the command to the parser of Go flags.
GO_FLAGS: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
_USAGE: Final = 2

S = TypeVar("S", bound="ProcessSettings")


def manager(context: typer.Context) -> None:
    """Run the manager: validate, roll out, report on and clean up all ClusterBindings."""
    from kubeocean.manager import process
    from kubeocean.manager.settings import ManagerSettings

    about = "Runs the manager: validates, rolls out, reports on and cleans up all ClusterBindings."
    run_process("manager", ManagerSettings, process.run, context.args, about=about)


def syncer(context: typer.Context) -> None:
    """Run the syncer of one ClusterBinding: lend the nodes of its worker cluster and run pods."""
    from functools import partial

    from kubeocean.cli._agentless import agentless_member
    from kubeocean.syncer import process
    from kubeocean.syncer.settings import SyncerSettings

    about = "Runs the syncer of one ClusterBinding: lends its worker's nodes and runs pods there."
    work = partial(process.run, companions=(agentless_member,))
    run_process("syncer", SyncerSettings, work, context.args, about=about)


def proxier(context: typer.Context) -> None:
    """Run the proxier of one ClusterBinding: serve the kubelet API of its virtual nodes."""
    from kubeocean.proxier import process
    from kubeocean.proxier.settings import ProxierSettings

    about = "Runs the proxier of one ClusterBinding: serves the kubelet API of its virtual nodes."
    run_process("proxier", ProxierSettings, process.run, context.args, about=about)


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
        typer.echo(f"To list all flags, run: {command_line(*name.split(), '--help')}", err=True)
        raise typer.Exit(code) from None
    if parsed is None:  # --help
        typer.echo(usage(settings, program=f"kubeocean {name}", about=about))
        return
    raise typer.Exit(service.run(partial(process, parsed)))
