"""`kubeocean drain`: a virtual node, or all nodes of a cluster, emptied."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.clusters import (
    NOT_YET,
    ContextOption,
    DomainOption,
    KubeconfigOption,
    TimeoutOption,
    reach,
)
from kubeocean.cli.looking import complete_place
from kubeocean.cli.output import progress_for
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.installation.draining import Drain, Left

__all__ = ["drain"]

_NAMED = 10


def drain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER|NODE", help="A binding, or a node.", autocompletion=complete_place
        ),
    ],
    grace: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long containers have to end.",
            show_default="as their pods say",
        ),
    ] = None,
    timeout: TimeoutOption = 600.0,
    force: Annotated[
        bool, typer.Option("--force", help="Evict pods that nobody would make again, too.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take pods again.")] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Let nodes take no new pods, and evict those that are there as disruption budgets allow.

    Exit code 3: pods are left after the time-out; the same command goes on.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.installation.draining import Drain
        from kubeocean.runtime.client import Client
        from kubeocean.runtime.retries import RetryPolicy
        from kubeocean.runtime.transport import HttpTransport

        async with AsyncExitStack() as stack:
            # A refusal by a budget is ours to repeat, and not for a transport.
            client = Client(
                HttpTransport(reach(kubeconfig, context)),
                cluster="computing",
                retry=RetryPolicy(attempts=1),
            )
            stack.push_async_callback(client.close)
            going = Drain(name, client, Domain(label_domain), grace, force=force)
            if undo:
                freed = await going.undo()
                typer.echo(f"taking pods again: {', '.join(freed) or 'no node was cordoned by us'}")
                return
            await _empty(going, timeout)

    run(work)


async def _empty(going: Drain, timeout: float) -> None:
    from kubeocean.leasing.report import counted

    undo = command_line("drain", going.name, "--undo")
    try:
        with progress_for().task(f"emptying {going.name}") as task:
            left = await going.run(patience_s=timeout, say=task.say)
    except asyncio.CancelledError:
        typer.echo(_stopped(going, undo), err=True)
        raise
    if not left.done:
        _tell(left)
        raise typer.Exit(NOT_YET)
    typer.echo(
        f"{going.name} is empty; evicted: {counted(going.evicted, 'pod')}."
        f" It takes pods again with: {undo}"
    )


def _stopped(going: Drain, undo: str) -> str:
    """What was done until now, and only that."""
    from kubeocean.leasing.report import counted

    if not going.closed:
        return f"stopped before anything was done to {going.name}"
    done = f"evicted: {counted(going.evicted, 'pod')}, cordoned: {', '.join(sorted(going.closed))}"
    return f"stopped; {done}. What is cordoned takes no new pods until: {undo}"


def _tell(left: Left) -> None:
    typer.echo(f"not empty yet: {left}", err=True)
    for pod in left.pods[:_NAMED]:
        why = "held by a disruption budget" if pod in left.held else "terminating"
        why = "nobody would make it again; --force evicts it" if pod in left.bare else why
        typer.echo(f"  {pod}: {why}", err=True)
