"""`kubeocean drain`: drains a virtual node, or all virtual nodes of a worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    NOT_YET,
    ContextOption,
    DomainOption,
    KubeconfigOption,
    TimeoutOption,
    reach,
)
from kubeocean.cli._output import progress_for
from kubeocean.cli._readers import complete_place
from kubeocean.cli._run import command_line, run

if TYPE_CHECKING:
    from kubeocean.install.drain import Drain, Left

__all__ = ["drain"]

_MAX_PRINTED_PODS = 10


def drain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER|NODE",
            help="Name of a ClusterBinding, or of a virtual node.",
            autocompletion=complete_place,
        ),
    ],
    grace: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time that containers have to terminate.",
            show_default="the pod's own",
        ),
    ] = None,
    timeout: TimeoutOption = 600.0,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also evict pods that no controller would create again."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Uncordon the nodes that drain has cordoned.")
    ] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Cordon virtual nodes and evict their pods, as disruption budgets allow.

    Exit code 3: pods are left after the time-out; run the same command again to continue.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.install.drain import Drain
        from kubeocean.runtime.client import Client
        from kubeocean.runtime.transport import HttpTransport

        async with AsyncExitStack() as stack:
            client = Client(HttpTransport(reach(kubeconfig, context)), cluster="computing")
            stack.push_async_callback(client.close)
            operation = Drain(name, client, Domain(label_domain), grace, force=force)
            if undo:
                nodes = await operation.undo()
                typer.echo(f"uncordoned: {', '.join(nodes) or 'no node was cordoned by drain'}")
                return
            await _drain(operation, timeout)

    run(work)


async def _drain(operation: Drain, timeout: float) -> None:
    from kubeocean.leasing.report import counted

    undo = command_line("drain", operation.name, "--undo")
    try:
        with progress_for().task(f"draining {operation.name}") as task:
            left = await operation.run(patience_s=timeout, say=task.say)
    except asyncio.CancelledError:
        typer.echo(_interrupted(operation, undo), err=True)
        raise
    if not left.done:
        _print_left(left)
        raise typer.Exit(NOT_YET)
    typer.echo(
        f"{operation.name} is drained; evicted: {counted(operation.evicted, 'pod')}."
        f" To uncordon it, run: {undo}"
    )


def _interrupted(operation: Drain, undo: str) -> str:
    """Return a sentence about the nodes and pods that were changed before an interruption."""
    from kubeocean.leasing.report import counted

    if not operation.closed:
        return f"stopped before any node of {operation.name} was cordoned"
    evicted, cordoned = counted(operation.evicted, "pod"), ", ".join(sorted(operation.closed))
    return f"stopped; evicted: {evicted}, cordoned: {cordoned}. To uncordon, run: {undo}"


def _print_left(left: Left) -> None:
    typer.echo(f"not drained yet: {left}", err=True)
    for pod in left.pods[:_MAX_PRINTED_PODS]:
        why = "blocked by a PodDisruptionBudget" if pod in left.blocked else "terminating"
        why = "was bound after the cordon, which it tolerates" if pod in left.returned else why
        why = f"not evicted: {left.failed[pod]}" if pod in left.failed else why
        why = "no controller would create it again; --force evicts it" if pod in left.bare else why
        typer.echo(f"  {pod}: {why}", err=True)
