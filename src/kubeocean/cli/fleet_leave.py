"""`kubeocean fleet leave`: removes a member from a fleet."""

from __future__ import annotations

import typer

from kubeocean.cli._clusters import NOT_YET, TimeoutOption, WaitOption, wait_until_done
from kubeocean.cli._fleet import (
    HubContextOption,
    HubOption,
    MemberArgument,
    get_member,
    hub_client,
)
from kubeocean.cli._run import interruptible, run

__all__ = ["leave"]


def leave(
    name: MemberArgument,
    hub_kubeconfig: HubOption = "",
    hub_context: HubContextOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = 1200.0,
) -> None:
    """Remove a member from the fleet; objects that were placed on it stay.

    Exit code 3: the member has not left yet; run the same command again to wait longer.
    """

    async def work() -> None:
        from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
        from kubeocean.errors import NotFound
        from kubeocean.inspect.fleet import cluster_view
        from kubeocean.install.wait import State
        from kubeocean.runtime.clock import RealClock

        async with hub_client(hub_kubeconfig, hub_context) as hub:
            member = await get_member(hub, name)
            if not member.deleting:
                await hub.delete(MEMBER_CLUSTERS, name, uid=member.uid)
            if not wait:
                typer.echo(f"{name} is leaving")
                return

            async def read() -> State:
                try:
                    present = await hub.get(MEMBER_CLUSTERS, name)
                except NotFound:
                    return State("left", done=True)
                if present.uid != member.uid:
                    return State("left, and joined anew", done=True)
                view = cluster_view(present, RealClock().now())
                return State("; ".join((view.state, view.health_message)))

            with interruptible(lambda: f"{name} is leaving; the hub continues"):
                state = await wait_until_done(read, f"{name} leaves", timeout)
        if not state.done:
            typer.echo(f"{name}: has not left after {timeout:g} s: {state.message}", err=True)
            raise typer.Exit(NOT_YET)
        typer.echo(f"{name} has left")

    run(work)
