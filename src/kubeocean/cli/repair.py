"""`kubeocean repair`: find what is left over of a binding, and remove it."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli.output import Format, FormatOption, print_document, progress_for
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.runtime.transport import Transport
    from kubeocean.syncer.repair import Repair, Report, Verdict

__all__ = ["repair"]

_LEFT: Final = 3  # something is wrong still


def repair(
    cluster_binding_name: Annotated[
        str, typer.Option("--cluster-binding-name", metavar="NAME", help="Which ClusterBinding.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    pause: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long between the two looks.")
    ] = 10.0,
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="How to reach the computing cluster.", show_default="$KUBECONFIG"
        ),
    ] = "",
    label_domain: Annotated[
        str, typer.Option(metavar="DOMAIN", help="The domain of all labels and annotations.")
    ] = "kubeocean.io",
    output: FormatOption = Format.TEXT,
) -> None:
    """Compare both clusters of a binding, and remove what is provably left over.

    It may be run beside a syncer. Exit code 0: all is well now; 3: something is left, see there.
    """

    async def work() -> None:
        async with AsyncExitStack() as stack:
            progress = progress_for(quiet=output is not Format.TEXT)
            with progress.task(f"comparing both clusters of {cluster_binding_name}") as task:
                task.say("connecting")
                mender = await _connect(
                    cluster_binding_name,
                    stack,
                    kubeconfig=kubeconfig,
                    label_domain=label_domain,
                    pause_s=pause,
                )
                report = await mender.run(dry_run=dry_run, say=task.say)
        if output is not Format.TEXT:
            print_document(_document(cluster_binding_name, report, dry_run=dry_run), output)
        else:
            _explain(cluster_binding_name, report, dry_run=dry_run)
        if not report.clean:
            raise typer.Exit(_LEFT)

    run(work)


async def _connect(
    name: str, stack: AsyncExitStack, *, kubeconfig: str, label_domain: str, pause_s: float
) -> Repair:
    """Everything that is needed, closed with the stack.

    :raises KubeoceanError: it cannot be had.
    """
    from kubeocean.api.group import Domain
    from kubeocean.api.ownership import Ids
    from kubeocean.bound.constancy import Constancy, ConstantTransport, recorded_worker
    from kubeocean.bound.identities import identity_of
    from kubeocean.bound.sides import find_binding
    from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.credentials import default_access
    from kubeocean.runtime.transport import HttpTransport
    from kubeocean.syncer.inventory import Inventory
    from kubeocean.syncer.removal import Remover
    from kubeocean.syncer.repair import Repair

    def reach(transport: Transport, cluster: str) -> Client:
        client = Client(transport, cluster=cluster)
        stack.push_async_callback(client.close)
        return client

    domain = Domain(label_domain)
    source = default_access(kubeconfig or None, environ=os.environ)
    computing = reach(HttpTransport(source), "computing")
    binding = await find_binding(computing, name, "--cluster-binding-name")
    spec = binding.spec
    where = spec.secret_ref
    secret = await computing.get(KUBECONFIG_SECRETS, where.name, where.namespace)
    access = SecretAccess(secret)
    constancy = Constancy(access, lambda: recorded_worker(binding, access, domain))
    worker = reach(ConstantTransport(HttpTransport(constancy), constancy), "worker")
    ids = Ids(name, spec.cluster_id, await identity_of(computing))
    mount = spec.mount_namespace or domain.worker_namespace
    inventory = Inventory(computing, worker, ids=ids, mount_namespace=mount, domain=domain)
    return Repair(inventory, Remover(computing, worker, ids, domain), pause_s=pause_s)


def _document(binding: str, report: Report, *, dry_run: bool) -> dict[str, object]:
    return {
        "clusterBinding": binding,
        "dryRun": dry_run,
        "clean": report.clean,
        "skippedKinds": list(report.skipped),
        "findings": [_finding(verdict) for verdict in report.verdicts],
    }


def _finding(verdict: Verdict) -> dict[str, object]:
    finding = verdict.finding
    subject = finding.subject
    return {
        "problem": finding.problem,
        "cluster": "computing" if subject.above else "worker",
        "kind": subject.kind,
        "namespace": subject.key.namespace,
        "name": subject.key.name,
        "uid": subject.uid,
        "message": finding.message,
        "fate": verdict.fate,
    }


def _explain(binding: str, report: Report, *, dry_run: bool) -> None:
    for kind in report.skipped:
        typer.echo(f"{binding}: not allowed to list {kind}s; they were not compared", err=True)
    if not report.verdicts:
        typer.echo(f"{binding}: both clusters agree")
        return
    for verdict in report.verdicts:
        typer.echo(f"{verdict.finding.problem:<9} {verdict.finding.message} -- {verdict.fate}")
    removable = sum(verdict.finding.removable for verdict in report.verdicts)
    if dry_run and removable:
        again = command_line("repair", "--cluster-binding-name", binding)
        typer.echo(f"\n{removable} would be removed by: {again}")
    elif not report.clean:
        left = sum(not verdict.mended for verdict in report.verdicts)
        typer.echo(f"\n{left} left for a person to look at")
