"""`kubeocean up`: real clusters on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.output import (
    DEFAULT_NAME,
    Format,
    FormatOption,
    NameOption,
    named,
    print_json,
    progress_for,
)
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.local.lifecycle import Wish
    from kubeocean.local.state import ClusterState

__all__ = ["up"]


def up(
    workers: Annotated[
        int | None, typer.Option(min=0, help="How many worker clusters.", show_default="2")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=0, help="How many nodes in each.", show_default="3, or 1 real one"),
    ] = None,
    real_nodes: Annotated[
        bool | None,
        typer.Option("--real-nodes/--simulated-nodes", help="Real kubelets and containers (root)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the computing API server."),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Stay in the foreground and leave nothing behind.")
    ] = False,
    name: NameOption = DEFAULT_NAME,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start a computing cluster and workers, or say what runs.

    They run in the background until `kubeocean down`; their data stays for the next start.
    """

    async def work() -> None:
        from kubeocean.local.lifecycle import Wish

        wish = Wish(workers=workers, nodes=nodes, real_nodes=real_nodes, port=port)
        await (_foreground(wish, output) if ephemeral else _background(name, wish, output))

    run(work)


async def _background(name: str, wish: Wish, output: Format) -> None:
    from kubeocean.local.lifecycle import Lifecycle

    lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
    state, found = await lifecycle.bring_up(wish)
    if output is Format.JSON:
        print_json(state)
        return
    verb = "was already up" if found else "is up"
    version = state.versions.get("kubernetes", "")
    typer.echo(f"{name} {verb}: {state.shape}, Kubernetes {version}\n")
    _explain(state.clusters, state.kubeconfig, state.kubectl)
    typer.echo(f"Stop it with: {command_line('down', *named(name))}")


async def _foreground(wish: Wish, output: Format) -> None:
    from kubeocean.local.lifecycle import ephemeral_ocean
    from kubeocean.local.state import ClusterState

    shape, progress = wish.shape(), progress_for()
    async with ephemeral_ocean(shape, environ=os.environ, progress=progress) as ocean:
        clusters = tuple(
            ClusterState(cluster.name, cluster.server, shape.nodes if number else 0)
            for number, cluster in enumerate(ocean.clusters)
        )
        if output is Format.JSON:
            print_json({"kubeconfig": str(ocean.kubeconfig), "clusters": clusters})
        else:
            typer.echo(f"An ephemeral ocean is up: {shape}\n")
            _explain(clusters, str(ocean.kubeconfig), str(ocean.assets.path("kubectl")))
            typer.echo("It ends with Ctrl-C and leaves nothing behind.")
        await ocean.watch()


def _explain(clusters: tuple[ClusterState, ...], kubeconfig: str, kubectl: str) -> None:
    """How to use it, ready to be copied into a shell."""
    from shlex import quote
    from shutil import which

    rows = [("CONTEXT", "SERVER", "NODES")]
    rows += [(cluster.context, cluster.server, str(cluster.nodes)) for cluster in clusters]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo(f"  {line.rstrip()}")
    program = "kubectl" if which("kubectl") else quote(kubectl)
    typer.echo(f"\n  export KUBECONFIG={quote(kubeconfig)}")
    typer.echo(f"  {program} --context {clusters[-1].context} get nodes\n")
