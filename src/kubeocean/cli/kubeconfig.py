"""`kubeocean kubeconfig`: prints the kubeconfig of local clusters."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._output import DEFAULT_NAME, NameOption, named, print_json
from kubeocean.cli._run import command_line, run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["kubeconfig"]


class _KubeconfigFormat(StrEnum):
    PATH = "path"
    YAML = "yaml"
    JSON = "json"


def kubeconfig(
    context: Annotated[
        str | None,
        typer.Option(
            metavar="CONTEXT",
            help="Name of one cluster's context: print only the kubeconfig of this cluster.",
            show_default="all clusters",
        ),
    ] = None,
    output: Annotated[
        _KubeconfigFormat,
        typer.Option("--output", "-o", help="Print the path of the file, or its content."),
    ] = _KubeconfigFormat.PATH,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Print the kubeconfig of the clusters that `up` started.

    export KUBECONFIG=$(kubeocean kubeconfig)
    """

    async def work() -> None:
        path = _find(name, context)
        if output is _KubeconfigFormat.PATH:
            typer.echo(path)
        elif output is _KubeconfigFormat.YAML:
            typer.echo(path.read_text(), nl=False)
        else:
            import yaml

            print_json(yaml.safe_load(path.read_text()))

    run(work)


def _find(name: str, context: str | None) -> Path:
    """Return the path of the kubeconfig of all clusters, or of one.

    :raises LocalError: the clusters do not run.
    :raises ConfigError: no cluster has that context.
    """
    from kubeocean.errors import ConfigError, LocalError
    from kubeocean.local.state import StateDirectory, state_home

    directory = StateDirectory(name, state_home(os.environ))
    state = directory.read()
    if state is None or not state.alive or state.phase != "running":
        raise LocalError(f"{name} is not up; to start it, run: {command_line('up', *named(name))}")
    if context is None:
        return directory.kubeconfig
    known = [cluster.context for cluster in state.clusters]
    if context not in known:
        raise ConfigError(f"must be one of {', '.join(known)}", field="--context", value=context)
    return directory.data / context / "admin.kubeconfig"
