"""`kubeocean fleet clusters`: shows the members of a fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from kubeocean.cli._fleet import (
    HubContextOption,
    HubOption,
    get_member,
    hub_client,
    list_members,
)
from kubeocean.cli._output import Format, FormatOption, print_document
from kubeocean.cli._run import run

__all__ = ["clusters"]


def clusters(
    name: Annotated[
        str, typer.Argument(help="Name of one MemberCluster.", show_default="all")
    ] = "",
    output: FormatOption = Format.TEXT,
    hub_kubeconfig: HubOption = "",
    hub_context: HubContextOption = "",
) -> None:
    """Show health, version, capacity and taints of members; with JSON also their properties."""

    async def work() -> None:
        from kubeocean.cli._views import print_lines
        from kubeocean.inspect.fleet import cluster_lines, cluster_views
        from kubeocean.runtime.clock import RealClock

        async with hub_client(hub_kubeconfig, hub_context) as hub:
            if name:
                members = [await get_member(hub, name)]
            else:
                members = await list_members(hub)
        now = RealClock().now()
        views = cluster_views(members, now)
        if output.is_document:
            print_document({"clusters": views}, output)
        else:
            print_lines(cluster_lines(views, now))

    run(work)
