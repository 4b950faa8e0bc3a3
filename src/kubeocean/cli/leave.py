"""`kubeocean leave`: unbinds one worker cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    NOT_YET,
    ComputingOption,
    ContextOption,
    DomainOption,
    MountOption,
    TimeoutOption,
    applier,
    print_result,
    reach,
)
from kubeocean.cli._output import progress_for
from kubeocean.cli._run import command_line, interruptible, run

if TYPE_CHECKING:
    from kubeocean.install.leave import Leave
    from kubeocean.install.values import WorkerValues

__all__ = ["leave"]


def leave(
    name: Annotated[str, typer.Argument(help="Name of the ClusterBinding.")],
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Path of an administrator's kubeconfig of the worker cluster; with it, "
            "Kubeocean's objects there are deleted, too.",
        ),
    ] = "",
    context: ContextOption = "",
    mount_namespace: MountOption = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="After the time-out, remove the binding even if objects remain in the worker.",
        ),
    ] = False,
    computing: ComputingOption = "",
    computing_context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    timeout: TimeoutOption = 600.0,
) -> None:
    """Unbind a worker: delete its virtual nodes and pods, then the objects of its binding.

    Exit code 3: the deletion is not finished; run the same command again to wait longer.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.install.leave import Leave
        from kubeocean.install.values import WorkerValues

        domain = Domain(label_domain)
        async with AsyncExitStack() as stack:
            connect = partial(applier, stack=stack, domain=domain, force=False)
            worker_source = reach(kubeconfig, context) if kubeconfig else None
            worker = connect(worker_source, cluster="worker") if worker_source is not None else None
            computing_source = reach(computing, computing_context, option="--computing-kubeconfig")
            computing_applier = connect(computing_source, cluster="computing")
            departure = Leave(name, computing_applier, domain=domain)
            # Read before the binding is deleted.
            namespace = mount_namespace or await departure.mount_namespace()
            values = WorkerValues(domain=domain, namespace=namespace)
            if worker is not None and worker_source is not None:
                await departure.check_worker(worker, worker_source.current())
            await departure.check(worker, values)
            with interruptible(lambda: f"{name} is being unbound; the manager continues"):
                await _unbind(name, departure, timeout, force=force)
            with interruptible(lambda: f"{name} is unbound; some of its objects remain"):
                await departure.forget(partial(print_result, "computing"))
                if worker is None:
                    _print_remains(name, values)
                    return
                report = partial(print_result, "worker")
                kept = await departure.clean(worker, values, report, force=force)
            typer.echo(f"{name} has left. Objects that remain in the worker: {', '.join(kept)}")

    run(work)


async def _unbind(name: str, departure: Leave, timeout: float, *, force: bool) -> None:
    with progress_for().task(f"unbinding {name}") as task:
        progress = await departure.unbind(patience_s=timeout, force=force, say=task.say)
        if not progress.gone:
            task.give_up()
    if not progress.gone:
        message = f"{name}: not unbound after {timeout:g} s: it waits for {progress.waits_for}"
        typer.echo(
            f"{message}. The manager continues; to wait longer, run the same command again",
            err=True,
        )
        raise typer.Exit(NOT_YET)


def _print_remains(name: str, values: WorkerValues) -> None:
    """Print the command that deletes the objects in the worker, after its binding was deleted."""
    is_default = values.mount_namespace == values.domain.worker_namespace
    options = () if is_default else ("--mount-namespace", values.mount_namespace)
    command = command_line("leave", name, *options, "--kubeconfig", "FILE")
    typer.echo(f"{name} is unbound. To delete its objects in the worker, run: {command}")
