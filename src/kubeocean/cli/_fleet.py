"""Options and functions of the commands for a fleet's hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.credentials import AccessSource

__all__ = [
    "HubContextOption",
    "HubOption",
    "MemberArgument",
    "OnlyHubContextOption",
    "OnlyHubOption",
    "get_member",
    "hub_client",
    "hub_words",
    "list_members",
    "reach_hub",
    "reach_member",
]

# Of commands that connect to a member, too
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
# Of commands that connect to the hub alone, to which users of other commands write --kubeconfig
OnlyHubOption = Annotated[
    str,
    typer.Option(
        "--hub-kubeconfig",
        "--kubeconfig",
        metavar="FILE",
        help="Path of the hub's kubeconfig.",
        show_default="$KUBECONFIG",
    ),
]
OnlyHubContextOption = Annotated[
    str,
    typer.Option(
        "--hub-context",
        "--context",
        metavar="NAME",
        help="Name of the kubeconfig context of the hub.",
        show_default="its current context",
    ),
]
MemberArgument = Annotated[str, typer.Argument(help="Name of the MemberCluster.")]


def reach_hub(kubeconfig: str, context: str) -> AccessSource:
    """Return the access to the hub; without a kubeconfig, the access that kubectl uses.

    :raises ConfigError: there is no kubeconfig, or the kubeconfig or the context is invalid.
    """
    from kubeocean.cli._clusters import reach
    from kubeocean.cli._run import command_line
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.kubeconfig import default_paths

    try:
        return reach(kubeconfig, context, option="--hub-kubeconfig")
    except ConfigError as error:
        if kubeconfig or any(path.exists() for path in default_paths()):
            raise
        local = command_line("kubeconfig")
        message = f"{error}; name the hub with --hub-kubeconfig, or local clusters with"
        raise ConfigError(f"{message} export KUBECONFIG=$({local})") from None


def hub_words(kubeconfig: str, context: str) -> list[str]:
    """Return the command-line arguments that select the same hub in another command."""
    given = (("--hub-kubeconfig", kubeconfig), ("--hub-context", context))
    return [word for option, value in given if value for word in (option, value)]


def reach_member(kubeconfig: str, context: str) -> AccessSource:
    """Return the access to a member cluster, without regard to KUBECONFIG.

    :raises ConfigError: the kubeconfig is not named, or the kubeconfig or the context is invalid.
    """
    from kubeocean.cli._clusters import reach
    from kubeocean.errors import ConfigError

    if not kubeconfig:
        raise ConfigError("must name the kubeconfig of the member cluster", source="--kubeconfig")
    return reach(kubeconfig, context)


@asynccontextmanager
async def hub_client(kubeconfig: str, context: str) -> AsyncIterator[Client]:
    """Yield a client of the hub, which is closed at the end of the block."""
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport

    client = Client(HttpTransport(reach_hub(kubeconfig, context)), cluster="hub")
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
            "the cluster is not the hub of a fleet: it does not serve MemberClusters; name the"
            " hub with --hub-kubeconfig, or install it with the chart kubeocean-fleet-hub"
        )
        raise ConfigError(message) from None


async def get_member(hub: Client, name: str) -> MemberCluster:
    """Return a MemberCluster.

    :raises ConfigError: there is none of that name, there cannot be one, or the cluster is no hub.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.cli._readers import checked_name
    from kubeocean.errors import ConfigError, NotFound

    checked_name(name, "NAME")
    try:
        return await hub.get(MEMBER_CLUSTERS, name)
    except NotFound:
        await list_members(hub)
        message = "is not a member of the fleet; list the members with: kubeocean fleet clusters"
        raise ConfigError(message, value=name, field="NAME") from None
