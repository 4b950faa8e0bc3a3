"""`kubeocean repair`: finds orphaned objects of a binding, and deletes them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli._output import Format, FormatOption, print_document, progress_for
from kubeocean.cli._run import command_line, run

if TYPE_CHECKING:
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.runtime.transport import Transport
    from kubeocean.syncer.cleanup.repair import Repair, RepairReport, RepairResult

__all__ = ["repair"]

_NOT_CLEAN: Final = 3


def repair(
    cluster_binding_name: Annotated[
        str,
        typer.Option(
            "--cluster-binding-name", metavar="NAME", help="Name of the ClusterBinding to compare."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print orphaned objects without deleting them.")
    ] = False,
    pause: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Time between the two comparisons; only an object that both report is deleted.",
        ),
    ] = 10.0,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = Format.TEXT,
) -> None:
    """Compare both clusters of a binding, and delete objects that are provably orphaned.

    The syncer may run meanwhile. Exit code 0: no orphan is left; 3: some are left.
    """

    async def work() -> None:
        async with AsyncExitStack() as stack:
            progress = progress_for(quiet=output is not Format.TEXT)
            with progress.task(f"comparing both clusters of {cluster_binding_name}") as task:
                task.say("connecting")
                operation = await _connect(
                    cluster_binding_name,
                    stack,
                    source=reach(kubeconfig, context),
                    label_domain=label_domain,
                    pause_s=pause,
                )
                report = await operation.run(dry_run=dry_run, say=task.say)
        if output is not Format.TEXT:
            print_document(_document(cluster_binding_name, report, dry_run=dry_run), output)
        else:
            _print_report(cluster_binding_name, report, dry_run=dry_run)
        if not report.clean:
            raise typer.Exit(_NOT_CLEAN)

    run(work)


async def _connect(
    name: str, stack: AsyncExitStack, *, source: AccessSource, label_domain: str, pause_s: float
) -> Repair:
    """Connect to both clusters of the binding; leaving `stack` closes the connections.

    :raises KubeoceanError: the binding or its Secret cannot be read.
    """
    from kubeocean.api.group import Domain
    from kubeocean.api.ownership import Ids
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport
    from kubeocean.syncer.cleanup.orphan_removal import Remover
    from kubeocean.syncer.cleanup.repair import Repair
    from kubeocean.syncer.cleanup.snapshot import ClusterSnapshot
    from kubeocean.worker_access.client import find_binding
    from kubeocean.worker_access.credentials import KUBECONFIG_SECRETS, SecretAccess
    from kubeocean.worker_access.identity import (
        IdentityCheckedTransport,
        WorkerIdentity,
        identity_of,
        recorded_worker,
    )

    def connect(transport: Transport, cluster: str) -> Client:
        client = Client(transport, cluster=cluster)
        stack.push_async_callback(client.close)
        return client

    domain = Domain(label_domain)
    computing = connect(HttpTransport(source), "computing")
    binding = await find_binding(computing, name, "--cluster-binding-name")
    spec = binding.spec
    reference = spec.secret_ref
    secret = await computing.get(KUBECONFIG_SECRETS, reference.name, reference.namespace)
    access = SecretAccess(secret)
    identity = WorkerIdentity(access, lambda: recorded_worker(binding, access, domain))
    worker = connect(IdentityCheckedTransport(HttpTransport(identity), identity), "worker")
    ids = Ids(name, spec.cluster_id, await identity_of(computing))
    mount = spec.mount_namespace or domain.worker_namespace
    snapshot = ClusterSnapshot(computing, worker, ids=ids, mount_namespace=mount, domain=domain)
    return Repair(snapshot, Remover(computing, worker, ids, domain), pause_s=pause_s)


def _document(binding: str, report: RepairReport, *, dry_run: bool) -> dict[str, object]:
    return {
        "clusterBinding": binding,
        "dryRun": dry_run,
        "clean": report.clean,
        "skippedKinds": list(report.skipped),
        "findings": [_finding(verdict) for verdict in report.verdicts],
    }


def _finding(verdict: RepairResult) -> dict[str, object]:
    finding = verdict.finding
    subject = finding.subject
    return {
        "problem": finding.problem,
        "cluster": "computing" if subject.in_computing_cluster else "worker",
        "kind": subject.kind,
        "namespace": subject.key.namespace,
        "name": subject.key.name,
        "uid": subject.uid,
        "message": finding.message,
        "fate": verdict.fate,
    }


def _print_report(binding: str, report: RepairReport, *, dry_run: bool) -> None:
    from kubeocean.inspect.format import clean

    for kind in report.skipped:
        typer.echo(f"{binding}: not allowed to list {kind}s; these were not compared", err=True)
    if not report.verdicts:
        typer.echo(f"{binding}: both clusters agree")
        return
    for verdict in report.verdicts:
        line = f"{verdict.finding.problem:<9} {verdict.finding.message} -- {verdict.fate}"
        typer.echo(clean(line))
    removable = sum(verdict.finding.repairable for verdict in report.verdicts)
    if dry_run and removable:
        command = command_line("repair", "--cluster-binding-name", binding)
        typer.echo(f"\nTo delete {removable} of them, run: {command}")
    elif not report.clean:
        left = sum(not verdict.mended for verdict in report.verdicts)
        typer.echo(f"\n{left} of them need an administrator: they were not deleted")
