"""`kubeocean kubeconfig`: how to reach the clusters."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.output import DEFAULT_NAME, NameOption, named, print_json
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["kubeconfig"]


class _Shown(StrEnum):
    PATH = "path"
    YAML = "yaml"
    JSON = "json"


def kubeconfig(
    context: Annotated[
        str | None, typer.Option(metavar="CONTEXT", help="Only this cluster.", show_default="all")
    ] = None,
    output: Annotated[
        _Shown, typer.Option("--output", "-o", help="Where it is, or what is in it.")
    ] = _Shown.PATH,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Print the kubeconfig of the running clusters.

    export KUBECONFIG=$(kubeocean kubeconfig)
    """

    async def work() -> None:
        path = _find(name, context)
        if output is _Shown.PATH:
            typer.echo(path)
        elif output is _Shown.YAML:
            typer.echo(path.read_text(), nl=False)
        else:
            import yaml

            print_json(yaml.safe_load(path.read_text()))

    run(work)


def _find(name: str, context: str | None) -> Path:
    """The file of all contexts, or of one.

    :raises LocalError: it is not up.
    :raises ConfigError: there is no such context.
    """
    from kubeocean.errors import ConfigError, LocalError
    from kubeocean.local.state import StateDirectory, state_home

    directory = StateDirectory(name, state_home(os.environ))
    state = directory.read()
    if state is None or not state.alive or state.phase != "running":
        raise LocalError(f"{name} is not up; start it with: {command_line('up', *named(name))}")
    if context is None:
        return directory.kubeconfig
    known = [cluster.context for cluster in state.clusters]
    if context not in known:
        raise ConfigError(f"must be one of {', '.join(known)}", field="--context", value=context)
    return directory.data / context / "admin.kubeconfig"
