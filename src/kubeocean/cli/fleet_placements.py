"""`kubeocean fleet placements`, `tree`: show placements, and all objects of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._fleet import OnlyHubContextOption, OnlyHubOption, hub_client
from kubeocean.cli._output import FormatOption, OutputFormat, print_document
from kubeocean.cli._run import run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeocean.inspect.snapshot import NotRead

__all__ = ["placements", "tree"]

_NOT_READ: Final = 1


def placements(
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Show only the ResourcePlacements of this namespace.",
            show_default="placements of the cluster and of all namespaces",
        ),
    ] = "",
    output: FormatOption = OutputFormat.TEXT,
    hub_kubeconfig: OnlyHubOption = "",
    hub_context: OnlyHubContextOption = "",
) -> None:
    """Show placements: their clusters, how far they are, and the first reason if not complete.

    Exit code 1: placements of a scope could not be read, which is shown; 2: wrong arguments.
    """

    async def work() -> None:
        from kubeocean.cli._readers import checked_name
        from kubeocean.cli._views import print_lines
        from kubeocean.inspect.fleet import placement_lines, placement_views, read_placements
        from kubeocean.inspect.snapshot import failures, known
        from kubeocean.runtime.clock import RealClock

        if namespace:
            checked_name(namespace, "--namespace")
        async with hub_client(hub_kubeconfig, hub_context) as hub:
            parts = await read_placements(hub, namespace)
        views = placement_views(each for part in parts for each in known(part, ()))
        unread = failures(*parts)
        if output.is_document:
            document = {"placements": views, "notRead": list(map(str, unread))}
            print_document(document, output)
        elif views or not unread:
            print_lines(placement_lines(views, RealClock().now()))
        _end(unread)

    run(work)


def tree(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]NAME",
            help="Name of a ClusterResourcePlacement or, with a namespace, of a ResourcePlacement.",
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace of the ResourcePlacement."
        ),
    ] = "",
    output: FormatOption = OutputFormat.TEXT,
    hub_kubeconfig: OnlyHubOption = "",
    hub_context: OnlyHubContextOption = "",
) -> None:
    """Show a placement with its snapshots, bindings, Works and objects, and the state of each.

    Exit code 1: a part could not be read, which is shown; 2: there is no such placement.
    """

    async def work() -> None:
        from kubeocean.cli._readers import key_of
        from kubeocean.cli._views import print_lines
        from kubeocean.inspect.fleet import placement_tree, read_tree, tree_lines

        key = key_of(name, namespace, default="", field="NAME")
        async with hub_client(hub_kubeconfig, hub_context) as hub:
            objects = await read_tree(hub, key)
        root, unread = placement_tree(objects), objects.unread
        if output.is_document:
            print_document({"tree": root, "notRead": list(map(str, unread))}, output)
        else:
            print_lines(tree_lines(root))
        _end(unread)

    run(work)


def _end(unread: Iterable[NotRead]) -> None:
    """Print the parts that could not be read, and remedies; if there are any, exit with code 1."""
    from kubeocean.errors import printable

    parts = list(unread)
    for part in parts:
        typer.echo(printable(f"not read {part}"), err=True)
    for remedy in dict.fromkeys(part.remedy for part in parts if part.remedy):
        typer.echo(remedy, err=True)
    if parts:
        raise typer.Exit(_NOT_READ)
