"""`kubeocean leave`: one worker, let go of."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

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
from kubeocean.cli.running import command_line, interruptible, run

if TYPE_CHECKING:
    from kubeocean.installation.leaving import Leave
    from kubeocean.installation.values import WorkerValues

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
            below = reach(kubeconfig, context) if kubeconfig else None
            worker = connect(below, cluster="worker") if below is not None else None
            above = connect(reach(computing, computing_context), cluster="computing")
            going = Leave(name, above, domain=domain)
            # Asked now: who is gone cannot say it.
            where = mount_namespace or await going.mount_namespace()
            values = WorkerValues(domain=domain, namespace=where)
            if worker is not None and below is not None:
                await going.check_worker(worker, below.current())
            await going.check(worker, values)
            with interruptible(lambda: f"{name} is being unbound, and that goes on by itself"):
                await _unbind(name, going, timeout, force=force)
            with interruptible(lambda: f"{name} is unbound; what it needed is still there in part"):
                await going.forget(partial(tell, "computing"))
                if worker is None:
                    _tell_rest(name, values)
                    return
                left = await going.clean(worker, values, partial(tell, "worker"), force=force)
            typer.echo(f"{name} has left. In the worker remain: {', '.join(left)}")

    run(work)


async def _unbind(name: str, going: Leave, timeout: float, *, force: bool) -> None:
    with progress_for().task(f"unbinding {name}") as task:
        departure = await going.unbind(patience_s=timeout, force=force, say=task.say)
        if not departure.gone:
            task.give_up()
    if not departure.gone:
        said = f"{name}: gave up after {timeout:g} s: it waits for {departure.waits_for}"
        typer.echo(f"{said}. It goes on by itself; to wait on, say the same again", err=True)
        raise typer.Exit(NOT_YET)


def _tell_rest(name: str, values: WorkerValues) -> None:
    """Who is gone does not know any more where it was."""
    usual = values.mount_namespace == values.domain.worker_namespace
    where = () if usual else ("--mount-namespace", values.mount_namespace)
    again = command_line("leave", name, *where, "--kubeconfig", "FILE")
    typer.echo(f"{name} is unbound. Its role in the worker goes with: {again}")
