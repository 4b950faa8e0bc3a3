"""`kubeocean up` and `kubeocean down`: start and stop clusters with Kubeocean on this machine."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._next_steps import Guide
from kubeocean.cli._output import (
    DEFAULT_NAME,
    FormatOption,
    NameOption,
    OutputFormat,
    named,
    print_document,
    progress_for,
)
from kubeocean.cli._run import command_line, interruptible, run

if TYPE_CHECKING:
    from kubeocean.local.demo import Demo
    from kubeocean.local.lifecycle import Wish
    from kubeocean.local.ocean import Shape

__all__ = ["down", "up"]

_ADMIN: Final = "admin.kubeconfig"


def up(
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of worker clusters.", show_default="2")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of nodes in each worker cluster.",
            show_default="3, or 1 with --real-nodes",
        ),
    ] = None,
    real_nodes: Annotated[
        bool | None,
        typer.Option(
            "--real-nodes/--simulated-nodes",
            help="Run kubelets and containers (needs root), or simulate nodes.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the computing cluster's API server."),
    ] = None,
    ephemeral: Annotated[
        bool,
        typer.Option("--ephemeral", help="Run in the foreground and remove all data at the end."),
    ] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Start the clusters without installing Kubeocean.")
    ] = False,
    fleet: Annotated[
        bool | None,
        typer.Option(
            "--fleet/--no-fleet",
            help="Make the workers members of a fleet whose hub is the computing cluster.",
            show_default="--fleet",
        ),
    ] = None,
    show_reclaim: Annotated[
        bool,
        typer.Option("--show-reclaim", help="Have one worker reclaim its nodes for two minutes."),
    ] = False,
    label_domain: Annotated[
        str | None,
        typer.Option(
            metavar="DOMAIN",
            help="Domain of Kubeocean's labels, annotations and names.",
            show_default="kubeocean.io",
        ),
    ] = None,
    name: NameOption = DEFAULT_NAME,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Start a computing cluster and workers that lend it their nodes, or repair running ones.

    The workers are members of a fleet, too, whose hub is the computing cluster. The clusters run
    in the background until `kubeocean down`; their data is kept.
    """

    async def work() -> None:
        from kubeocean.local.lifecycle import Wish

        wish = Wish(
            workers=workers,
            nodes=nodes,
            real_nodes=real_nodes,
            port=port,
            bare=bare or None,
            label_domain=label_domain,
            fleet=fleet,
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
        raise ConfigError(
            "needs a worker that lends its nodes: at least one --workers, and no --bare",
            source="--show-reclaim",
        )
    if wish.bare and wish.fleet:
        raise ConfigError("needs Kubeocean in the clusters: leave out --bare", source="--fleet")


async def _background(name: str, wish: Wish, output: OutputFormat, *, show_reclaim: bool) -> None:
    from kubeocean.local.lifecycle import Lifecycle

    lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
    state, was_running = await lifecycle.bring_up(wish)
    data = lifecycle.directory.data
    kubeconfigs = {each.context: data / each.context / _ADMIN for each in state.clusters}
    if was_running and state.shape.product:
        await _product(kubeconfigs, state.shape).heal()
    if was_running and state.shape.fleet:
        await _heal_fleet(kubeconfigs, data)
    reclaim = await _reclaim(kubeconfigs, state.shape) if show_reclaim else ""
    if output is not OutputFormat.TEXT:
        print_document(state, output)
        return
    verb = "was already up" if was_running else "is up"
    version = state.versions.get("kubernetes", "")
    typer.echo(f"{name} {verb}: {state.shape}, Kubernetes {version}\n")
    guide = Guide(state.shape, state.clusters, Path(state.kubeconfig), state.kubectl)
    await _print_guide(guide, reclaim, stop=command_line("down", *named(name)))


async def _foreground(wish: Wish, output: OutputFormat, *, show_reclaim: bool) -> None:
    from kubeocean.local.lifecycle import ephemeral_ocean
    from kubeocean.local.state import cluster_states

    shape, progress = wish.shape(), progress_for()
    async with ephemeral_ocean(shape, environ=os.environ, progress=progress) as ocean:
        clusters = cluster_states(ocean)
        kubeconfigs = {cluster.name: cluster.kubeconfig for cluster in ocean.clusters}
        reclaim = await _reclaim(kubeconfigs, shape) if show_reclaim else ""
        if output is not OutputFormat.TEXT:
            print_document({"kubeconfig": str(ocean.kubeconfig), "clusters": clusters}, output)
        else:
            typer.echo(f"Temporary local clusters are running: {shape}\n")
            kubectl = str(ocean.assets.path("kubectl"))
            await _print_guide(Guide(shape, clusters, ocean.kubeconfig, kubectl), reclaim)
            typer.echo("Press Ctrl-C to stop them and remove all of their data.")
        await ocean.watch()


async def _reclaim(kubeconfigs: dict[str, Path], shape: Shape) -> str:
    """Have one worker reclaim its nodes soon; return a sentence about the times."""
    from kubeocean.errors import LocalError

    if not shape.product:
        raise LocalError(
            "cannot show a reclaim: these clusters were started with --bare,"
            " so no worker lends nodes"
        )
    worker, closes, opens = await _product(kubeconfigs, shape).show_reclaim()
    return (
        f"{worker} reclaims its nodes from {closes:%H:%M} to {opens:%H:%M} UTC. "
        f"To watch, run: {command_line('status', '--watch')}"
    )


def _product(kubeconfigs: dict[str, Path], shape: Shape) -> Demo:
    from kubeocean.local.demo import Demo

    computing, *names = kubeconfigs
    workers = {name: kubeconfigs[name] for name in names}
    return Demo(kubeconfigs[computing], workers, shape, progress=progress_for())


async def _heal_fleet(kubeconfigs: dict[str, Path], data: Path) -> None:
    """Restore changed objects of the fleet, and wait until all workers are members."""
    from kubeocean.local.fleet import LOGS, install_fleet, until_joined
    from kubeocean.runtime.clock import RealClock

    computing, *names = kubeconfigs
    workers = {name: kubeconfigs[name] for name in names}
    with progress_for().task("checking the fleet") as task:
        await install_fleet(kubeconfigs[computing], workers)
        await until_joined(kubeconfigs[computing], workers, RealClock(), task.say, data / LOGS)


async def _print_guide(guide: Guide, reclaim: str, *, stop: str = "") -> None:
    """Print the clusters, their status, and commands to copy into a shell."""
    for line in guide.table():
        typer.echo(f"  {line}")
    typer.echo("")
    if guide.shape.product:
        await _show_status(guide)
        typer.echo(f"{reclaim}\n\nTry:" if reclaim else "Try:")
    for command in guide.commands():
        typer.echo(f"  {command}")
    typer.echo("")
    if stop:
        typer.echo(f"To stop it, run: {stop}")


async def _show_status(guide: Guide) -> None:
    """Print the page of `kubeocean status`."""
    from kubeocean.cli._readers import Where
    from kubeocean.cli._views import print_lines
    from kubeocean.inspect.status.pages import status_page

    async with AsyncExitStack() as stack:
        where = Where(
            kubeconfig=str(guide.kubeconfig),
            context=guide.clusters[0].context,
            label_domain=guide.shape.label_domain,
        )
        view = await where.reader(stack).look("")
    print_lines(status_page(view, wide=False))
    typer.echo("")


def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the data of the clusters.")
    ] = False,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Stop the clusters that `up` started. Their data is kept for the next start."""

    async def work() -> None:
        from kubeocean.local.lifecycle import Lifecycle

        lifecycle = Lifecycle(name, environ=os.environ, progress=progress_for())
        again = command_line("down", *named(name), *(["--purge"] if purge else []))

        def left() -> str:
            clusters = lifecycle.clusters_left()
            if not clusters:
                return f"the clusters of {name} have ended"
            return f"not stopped yet: {', '.join(clusters)} of {name}"

        with interruptible(left, f"run: {again}"):
            was_up = await lifecycle.take_down(purge=purge)
        if not was_up:
            typer.echo(f"{name} was not up")
        elif purge:
            typer.echo(f"{name} is down and its data is removed")
        else:
            start = command_line("up", *named(name))
            typer.echo(f"{name} is down; its data is kept. To start it again, run: {start}")

    run(work)
