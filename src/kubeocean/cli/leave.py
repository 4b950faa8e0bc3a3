"""`kubeocean leave`: one worker, let go of."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated

import typer

from kubeocean.cli.clusters import (
    NOT_YET,
    ComputingOption,
    ContextOption,
    DomainOption,
    MountOption,
    TimeoutOption,
    applier,
    reach,
    tell,
)
from kubeocean.cli.output import progress_for
from kubeocean.cli.running import command_line, run

__all__ = ["leave"]


def leave(
    name: Annotated[str, typer.Argument(help="The binding.")],
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="How an administrator reaches the worker, to clean up there as well.",
        ),
    ] = "",
    context: ContextOption = "",
    mount_namespace: MountOption = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="After the time-out, let go whatever is left in the worker."),
    ] = False,
    computing: ComputingOption = "",
    computing_context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    timeout: TimeoutOption = 600.0,
) -> None:
    """Unbind a worker: its nodes and pods go, then what the binding needed.

    Exit code 3: it is still going; the same command waits again.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.installation.leaving import Leave
        from kubeocean.installation.values import WorkerValues

        domain = Domain(label_domain)
        async with AsyncExitStack() as stack:
            connect = partial(applier, stack=stack, domain=domain, force=False)
            worker = connect(reach(kubeconfig, context), cluster="worker") if kubeconfig else None
            above = connect(reach(computing, computing_context), cluster="computing")
            going = Leave(name, above, domain=domain)
            # Asked now: who is gone cannot say it.
            where = mount_namespace or await going.mount_namespace()
            with progress_for().task(f"unbinding {name}") as task:
                departure = await going.unbind(patience_s=timeout, force=force, say=task.say)
            if not departure.gone:
                typer.echo(f"{name} is not gone yet: {departure.waits_for}", err=True)
                raise typer.Exit(NOT_YET)
            await going.forget(partial(tell, "computing"))
            if worker is None:
                again = command_line("leave", name, "--kubeconfig", "FILE")
                typer.echo(f"{name} is unbound. Its role in the worker goes with: {again}")
                return
            values = WorkerValues(domain=domain, namespace=where)
            left = await going.clean(worker, values, partial(tell, "worker"), force=force)
            typer.echo(f"{name} has left. In the worker remain: {', '.join(left)}")

    run(work)
