"""`kubeocean up`: real clusters on this machine, and Kubeocean at work on them."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli.guides import Guide
from kubeocean.cli.output import (
    DEFAULT_NAME,
    Format,
    FormatOption,
    NameOption,
    named,
    print_document,
    progress_for,
)
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.local.lifecycle import Wish
    from kubeocean.local.ocean import Shape
    from kubeocean.local.product import Product

__all__ = ["up"]

_ADMIN: Final = "admin.kubeconfig"


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
    bare: Annotated[
        bool, typer.Option("--bare", help="Only the clusters: nothing of Kubeocean on them.")
    ] = False,
    show_reclaim: Annotated[
        bool,
        typer.Option("--show-reclaim", help="Let a worker take its nodes back for two minutes."),
    ] = False,
    name: NameOption = DEFAULT_NAME,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start a computing cluster and workers that lend it their nodes, or heal what runs.

    They run in the background until `kubeocean down`; their data stays for the next start.
    """

    async def work() -> None:
        from kubeocean.local.lifecycle import Wish

        wish = Wish(
            workers=workers, nodes=nodes, real_nodes=real_nodes, port=port, bare=bare or None
        )
        _check(wish, show_reclaim)
        if ephemeral:
            await _foreground(wish, output, show_reclaim=show_reclaim)
        else:
            await _background(name, wish, output, show_reclaim=show_reclaim)

    run(work)


def _check(wish: Wish, show_reclaim: bool) -> None:
    from kubeocean.errors import ConfigError

    if show_reclaim and (wish.bare or not wish.shape().workers):
        raise ConfigError("needs a worker that lends its nodes", source="--show-reclaim")


async def _background(name: str, wish: Wish, output: Format, *, show_reclaim: bool) -> None:
    from kubeocean.local.lifecycle import Lifecycle

    lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
    state, found = await lifecycle.bring_up(wish)
    data = lifecycle.directory.data
    kubeconfigs = {each.context: data / each.context / _ADMIN for each in state.clusters}
    if found and state.shape.product:
        await _product(kubeconfigs, state.shape).heal()
    told = await _reclaim(kubeconfigs, state.shape) if show_reclaim else ""
    if output is not Format.TEXT:
        print_document(state, output)
        return
    verb = "was already up" if found else "is up"
    version = state.versions.get("kubernetes", "")
    typer.echo(f"{name} {verb}: {state.shape}, Kubernetes {version}\n")
    guide = Guide(state.shape, state.clusters, Path(state.kubeconfig), state.kubectl)
    await _explain(guide, told, stop=command_line("down", *named(name)))


async def _foreground(wish: Wish, output: Format, *, show_reclaim: bool) -> None:
    from kubeocean.local.lifecycle import ephemeral_ocean
    from kubeocean.local.state import cluster_states

    shape, progress = wish.shape(), progress_for()
    async with ephemeral_ocean(shape, environ=os.environ, progress=progress) as ocean:
        clusters = cluster_states(ocean)
        kubeconfigs = {cluster.name: cluster.kubeconfig for cluster in ocean.clusters}
        told = await _reclaim(kubeconfigs, shape) if show_reclaim else ""
        if output is not Format.TEXT:
            found = {"kubeconfig": str(ocean.kubeconfig), "clusters": clusters}
            print_document(found, output)
        else:
            typer.echo(f"An ephemeral ocean is up: {shape}\n")
            kubectl = str(ocean.assets.path("kubectl"))
            await _explain(Guide(shape, clusters, ocean.kubeconfig, kubectl), told)
            typer.echo("It ends with Ctrl-C and leaves nothing behind.")
        await ocean.watch()


async def _reclaim(kubeconfigs: dict[str, Path], shape: Shape) -> str:
    """Have a lease close and open soon; what to tell of it."""
    from kubeocean.errors import LocalError

    if not shape.product:
        raise LocalError("this ocean is bare: nobody lends anything that could be taken back")
    who, closes, opens = await _product(kubeconfigs, shape).show_reclaim()
    return (
        f"{who} takes its nodes back from {closes:%H:%M} to {opens:%H:%M} UTC. "
        f"See it happen: {command_line('status', '--watch')}"
    )


def _product(kubeconfigs: dict[str, Path], shape: Shape) -> Product:
    from kubeocean.local.product import Product

    computing, *workers = kubeconfigs
    below = {each: kubeconfigs[each] for each in workers}
    return Product(kubeconfigs[computing], below, shape, progress=progress_for())


async def _explain(guide: Guide, told: str, *, stop: str = "") -> None:
    """What there is, and how to use it, ready to be copied into a shell."""
    for line in guide.table():
        typer.echo(f"  {line}")
    typer.echo("")
    if guide.shape.product:
        await _show_status(guide)
        typer.echo(f"{told}\n\nTry:" if told else "Try:")
    for command in guide.commands():
        typer.echo(f"  {command}")
    typer.echo("")
    if stop:
        typer.echo(f"Stop it with: {stop}")


async def _show_status(guide: Guide) -> None:
    """The page of `kubeocean status`."""
    from kubeocean.cli.looking import Where
    from kubeocean.cli.presenting import print_lines
    from kubeocean.view.pages import status_page

    async with AsyncExitStack() as stack:
        where = Where(kubeconfig=str(guide.kubeconfig), context=guide.clusters[0].context)
        view = await where.reader(stack).look("")
    print_lines(status_page(view, wide=False))
    typer.echo("")
