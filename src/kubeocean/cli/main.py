"""The `kubeocean` command.

Exit codes: 0 done, 1 it could not be done, 2 it was asked for wrongly, 130 and 143 interrupted.
Results go to stdout, everything else to stderr. Commands import what they need when they run, so
that `kubeocean --help` is instant.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kubeocean import __version__
from kubeocean.cli.assets import assets
from kubeocean.cli.down import down
from kubeocean.cli.kubeconfig import kubeconfig
from kubeocean.cli.up import up

__all__ = ["app", "main"]

app = typer.Typer(
    name="kubeocean",
    help="Lends the idle capacity of many Kubernetes clusters to one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kubeocean {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


app.command()(up)
app.command()(down)
app.command()(kubeconfig)
app.command()(assets)


def main() -> None:
    """Entry point of the console script and of `python -m kubeocean`."""
    app(prog_name="kubeocean")
