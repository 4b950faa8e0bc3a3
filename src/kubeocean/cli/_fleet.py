"""Options and functions of the commands for a fleet's hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.runtime.client import Client

__all__ = [
    "HubContextOption",
    "HubOption",
    "MemberArgument",
    "get_member",
    "hub_client",
    "list_members",
]

HubOption = Annotated[
    str,
    typer.Option(
        "--hub-kubeconfig",
        metavar="FILE",
        help="Path of the hub's kubeconfig.",
        show_default="$KUBECONFIG",
    ),
]
HubContextOption = Annotated[
    str,
    typer.Option(
        "--hub-context",
        metavar="NAME",
        help="Name of the kubeconfig context of the hub.",
        show_default="its current context",
    ),
]
MemberArgument = Annotated[str, typer.Argument(help="Name of the MemberCluster.")]


@asynccontextmanager
async def hub_client(kubeconfig: str, context: str) -> AsyncIterator[Client]:
    """Yield a client of the hub, which is closed at the end of the block."""
    from kubeocean.cli._clusters import reach
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport

    client = Client(HttpTransport(reach(kubeconfig, context)), cluster="hub")
    try:
        yield client
    finally:
        await client.close()


async def list_members(hub: Client) -> list[MemberCluster]:
    """Return all MemberClusters.

    :raises ConfigError: the cluster is no hub.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.errors import ConfigError, NotFound

    try:
        return (await hub.list(MEMBER_CLUSTERS)).items
    except NotFound:
        message = (
            "the cluster is no hub of a fleet: it has no MemberClusters; name the hub with"
            " --hub-kubeconfig, or install it with the chart kubeocean-fleet-hub"
        )
        raise ConfigError(message) from None


async def get_member(hub: Client, name: str) -> MemberCluster:
    """Return a MemberCluster.

    :raises ConfigError: there is none of that name, or the cluster is no hub.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.errors import ConfigError, NotFound

    try:
        return await hub.get(MEMBER_CLUSTERS, name)
    except NotFound:
        await list_members(hub)
        message = "is no member of the fleet; kubeocean fleet clusters lists them"
        raise ConfigError(message, value=name, field="NAME") from None
