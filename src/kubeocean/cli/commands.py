"""The table of commands: the Typer application of `kubeocean`, to which each command is added.

A new command is a function in a module of its own, and a line here. Commands import their
dependencies when they run, so that `kubeocean --help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kubeocean import __version__
from kubeocean.cli.assets import assets
from kubeocean.cli.doctor import doctor
from kubeocean.cli.drain import drain
from kubeocean.cli.explain import explain
from kubeocean.cli.fleet import fleet
from kubeocean.cli.install import install
from kubeocean.cli.join import join
from kubeocean.cli.kubeconfig import kubeconfig
from kubeocean.cli.leave import leave
from kubeocean.cli.logs_level import logs_level
from kubeocean.cli.processes import GO_FLAGS, manager, proxier, syncer
from kubeocean.cli.repair import repair
from kubeocean.cli.shards import shards
from kubeocean.cli.status import status
from kubeocean.cli.top import top
from kubeocean.cli.uninstall import uninstall
from kubeocean.cli.up import down, up

__all__ = ["app"]

app = typer.Typer(
    name="kubeocean",
    help="Lend the idle capacity of many Kubernetes clusters to one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"kubeocean {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command()(up)
app.command()(down)
app.command()(kubeconfig)
app.command()(assets)
app.command()(install)
app.command()(join)
app.command()(leave)
app.command()(uninstall)
app.command()(status)
app.command()(top)
app.add_typer(explain)
app.command()(doctor)
app.command()(drain)
app.command()(logs_level)
app.command(context_settings=GO_FLAGS)(manager)
app.command(context_settings=GO_FLAGS)(syncer)
app.command(context_settings=GO_FLAGS)(proxier)
app.add_typer(shards)
app.add_typer(fleet)
app.command()(repair)
