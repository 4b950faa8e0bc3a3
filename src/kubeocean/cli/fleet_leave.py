"""`kubeocean fleet leave`: removes a member from a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    NOT_YET,
    ContextOption,
    DomainOption,
    TimeoutOption,
    WaitOption,
    wait_until_done,
)
from kubeocean.cli._fleet import (
    HubContextOption,
    HubOption,
    MemberArgument,
    get_member,
    hub_client,
)
from kubeocean.cli._run import interruptible, run

if TYPE_CHECKING:
    from kubeocean.api.bindings import ClusterBinding
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.api.group import Domain
    from kubeocean.runtime.client import Client

__all__ = ["leave"]


def leave(
    name: MemberArgument,
    hub_kubeconfig: HubOption = "",
    hub_context: HubContextOption = "",
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Path of an administrator's kubeconfig of a member without an agent, to withdraw "
            "the right to apply objects there; the binding stays.",
        ),
    ] = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    wait: WaitOption = True,
    timeout: TimeoutOption = 1200.0,
) -> None:
    """Remove a member from the fleet; objects that were placed on it stay.

    A member without an agent stays bound as a worker, and its binding is marked as left.
    Exit code 3: the member has not left yet; run the same command again to wait longer.
    """

    async def work() -> None:
        from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
        from kubeocean.errors import NotFound, printable
        from kubeocean.inspect.fleet import cluster_view
        from kubeocean.install.wait import State
        from kubeocean.process.flags import domain as parse_domain
        from kubeocean.runtime.clock import RealClock

        domain = parse_domain(label_domain, "--label-domain")
        async with hub_client(hub_kubeconfig, hub_context) as hub:
            member = await get_member(hub, name)
            binding = await _binding(hub, member) if kubeconfig else None
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
        if state.done and binding is not None:
            await _revoke(binding, kubeconfig, context, domain)
        if not state.done:
            message = printable(state.message)
            typer.echo(f"{name}: has not left after {timeout:g} s: {message}", err=True)
            raise typer.Exit(NOT_YET)
        typer.echo(f"{name} has left")

    run(work)


async def _binding(hub: Client, member: MemberCluster) -> ClusterBinding:
    """Return the binding that a member without an agent belongs to.

    :raises ConfigError: the member has an agent of its own.
    """
    from kubeocean.api.bindings import CLUSTER_BINDINGS
    from kubeocean.errors import ConfigError
    from kubeocean.fleet.agentless.plan import is_member_of
    from kubeocean.runtime.objects import controller_of

    owner = controller_of(member)
    if owner is not None and owner.kind == CLUSTER_BINDINGS.kind:
        binding = await hub.get(CLUSTER_BINDINGS, owner.name)
        if is_member_of(member, binding):
            return binding
    message = f"has no effect here: {member.name} runs an agent of its own; uninstall it there"
    raise ConfigError(message, source="--kubeconfig")


async def _revoke(binding: ClusterBinding, kubeconfig: str, context: str, domain: Domain) -> None:
    from contextlib import AsyncExitStack

    from kubeocean.cli._clusters import applier, print_result
    from kubeocean.cli._fleet import reach_member
    from kubeocean.install.agentless import revoke

    async with AsyncExitStack() as stack:
        source = reach_member(kubeconfig, context)
        worker = applier(source, cluster="worker", stack=stack, domain=domain, force=False)
        await revoke(binding, worker, print_result, domain=domain)
