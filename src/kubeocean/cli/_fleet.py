"""Options and functions of the commands for a fleet's hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.runtime.client import Client

__all__ = ["HubContextOption", "HubOption", "MemberArgument", "get_member", "hub_client"]

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
    """A client of the hub until the block ends."""
    from kubeocean.cli._clusters import reach
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport

    client = Client(HttpTransport(reach(kubeconfig, context)), cluster="hub")
    try:
        yield client
    finally:
        await client.close()


async def get_member(hub: Client, name: str) -> MemberCluster:
    """Return a MemberCluster.

    :raises ConfigError: there is none of that name.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.errors import ConfigError, NotFound

    try:
        return await hub.get(MEMBER_CLUSTERS, name)
    except NotFound:
        message = "is no member of the fleet; kubeocean fleet clusters lists them"
        raise ConfigError(message, value=name, field="NAME") from None
