"""`kubeocean fleet clusters`, `cordon`, `uncordon`: show members, and keep new placements off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._fleet import (
    MemberArgument,
    OnlyHubContextOption,
    OnlyHubOption,
    get_member,
    hub_client,
    list_members,
)
from kubeocean.cli._output import FormatOption, OutputFormat, print_document
from kubeocean.cli._run import run

if TYPE_CHECKING:
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.objects import Json

__all__ = ["clusters", "cordon", "cordoned", "uncordon", "uncordoned"]

_TRIES: Final = 10  # the hub writes the status of a MemberCluster at each heartbeat


def cordon(
    name: MemberArgument, hub_kubeconfig: OnlyHubOption = "", hub_context: OnlyHubContextOption = ""
) -> None:
    """Taint a member, so that no further placement picks it; objects that are placed on it stay."""
    run(lambda: _taint(name, hub_kubeconfig, hub_context, cordon=True))


def uncordon(
    name: MemberArgument, hub_kubeconfig: OnlyHubOption = "", hub_context: OnlyHubContextOption = ""
) -> None:
    """Remove the taint of `fleet cordon` from a member; other taints stay."""
    run(lambda: _taint(name, hub_kubeconfig, hub_context, cordon=False))


async def _taint(name: str, kubeconfig: str, context: str, *, cordon: bool) -> None:
    word = "cordoned" if cordon else "uncordoned"
    async with hub_client(kubeconfig, context) as hub:
        changed = await _write_taints(hub, name, cordon=cordon)
    typer.echo(f"{name} {word}" if changed else f"{name} was {word} already")


async def _write_taints(hub: Client, name: str, *, cordon: bool) -> bool:
    """Add or remove the taint of a cordon; return False if the member needs no change.

    A list can be replaced only as a whole, so the MemberCluster is read again after a conflict.

    :raises Conflict: others wrote the MemberCluster between each read and write.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.errors import Conflict
    from kubeocean.runtime.client import MergePatch

    for tries_left in reversed(range(_TRIES)):
        member = await get_member(hub, name)
        taints = cordoned(member) if cordon else uncordoned(member)
        if taints is None:
            return False
        metadata = {"resourceVersion": member.resource_version, "uid": member.uid}
        patch = MergePatch({"metadata": metadata, "spec": {"taints": taints}})
        try:
            await hub.patch(MEMBER_CLUSTERS, name, patch)
        except Conflict:
            if not tries_left:
                raise
        else:
            return True
    raise AssertionError("the last attempt returns or raises")


def cordoned(member: MemberCluster) -> list[Json] | None:
    """Return the member's taints with the taint of a cordon; None if the member has that taint."""
    taints = _taints(member)
    cordon = _cordon()
    return None if cordon in taints else [*taints, cordon]


def uncordoned(member: MemberCluster) -> list[Json] | None:
    """Return the member's taints without the taint of a cordon; None if the member lacks that."""
    taints = _taints(member)
    kept = [taint for taint in taints if taint != _cordon()]
    return None if kept == taints else kept


def _taints(member: MemberCluster) -> list[Json]:
    from kubeocean.api.fleet.schema import document

    return [document(taint) for taint in member.spec.taints]


def _cordon() -> Json:
    from kubeocean.api.fleet.clusters import ClusterTaint, TaintEffect
    from kubeocean.api.fleet.names import CORDON_TAINT_KEY, CORDON_TAINT_VALUE
    from kubeocean.api.fleet.schema import document

    return document(ClusterTaint(CORDON_TAINT_KEY, CORDON_TAINT_VALUE, TaintEffect.NO_SCHEDULE))


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(help="Show only the MemberCluster of this name.", show_default="all"),
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
    hub_kubeconfig: OnlyHubOption = "",
    hub_context: OnlyHubContextOption = "",
) -> None:
    """Show health, version, capacity and taints of members; with JSON also their properties."""

    async def work() -> None:
        from kubeocean.cli._views import print_lines
        from kubeocean.inspect.fleet import cluster_lines, cluster_views
        from kubeocean.runtime.clock import RealClock

        async with hub_client(hub_kubeconfig, hub_context) as hub:
            if name is None:
                members = await list_members(hub)
            else:
                members = [await get_member(hub, name)]
        now = RealClock().now()
        views = cluster_views(members, now)
        if output.is_document:
            print_document({"clusters": views}, output)
        else:
            print_lines(cluster_lines(views, now))

    run(work)
