"""`kubeocean join`: binds one worker cluster to the computing cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    ComputingOption,
    ContextOption,
    DomainOption,
    DryRunOption,
    ForceOption,
    MountOption,
    Notation,
    NotationOption,
    TimeoutOption,
    WaitOption,
    applier,
    give_up,
    print_objects,
    print_result,
    reach,
    wait_until_done,
)
from kubeocean.cli._run import command_line, interruptible, run, same_again

if TYPE_CHECKING:
    from kubeocean.api.policies import PolicySpec
    from kubeocean.install.apply import Applier
    from kubeocean.install.join import JoinRequest
    from kubeocean.install.values import WorkerValues
    from kubeocean.runtime.access import Access
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.runtime.objects import Json

__all__ = ["join"]

_EXPIRY_PLACEHOLDER = "(made when the worker joins)"


_File = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Path of an administrator's kubeconfig of the worker cluster."
    ),
]
_Server = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="URL at which the computing cluster reaches the worker's API server.",
        show_default="the server in FILE",
    ),
]
_ClusterId = Annotated[
    str,
    typer.Option(
        metavar="ID",
        help="Identifier of the worker, which is part of its virtual nodes' names.",
        show_default="NAME",
    ),
]
_Lease = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help='Share of each node that is lent, as "cpu=50%,memory=8Gi", or "all".',
    ),
]
_Between = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPAN", help='Time window of the lending, as "20:00-06:00 Mon-Fri" (repeatable).'
    ),
]
_Zone = Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the windows.")]
_ForceReclaim = Annotated[
    bool, typer.Option("--force-reclaim", help="Evict pods when a time window ends.")
]
_Grace = Annotated[
    int,
    typer.Option(
        min=0, metavar="SECONDS", help="Time between the end of a window and the first eviction."
    ),
]
_AddOns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Further permissions in the worker: volumes, node-labels, metrics, priority-classes, "
        "log-configs, all or none (repeatable).",
        show_default="volumes, node-labels, metrics",
    ),
]
_Quota = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNTS",
        help='ResourceQuota of all pods together, as "pods=500,requests.cpu=100".',
        show_default="no node ports, no load balancers",
    ),
]
_Isolated = Annotated[
    bool,
    typer.Option(
        "--isolated", help="Create a NetworkPolicy that admits no traffic from other namespaces."
    ),
]
_Services = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Namespace with Services to copy to the worker (repeatable)."
    ),
]
_Direct = Annotated[
    bool,
    typer.Option(
        "--direct-scheduling", help="Assign pods to nodes without the worker's scheduler."
    ),
]
_Renew = Annotated[
    bool, typer.Option("--renew", help="Create a new token even if the old one is still valid.")
]


def join(
    name: Annotated[str, typer.Argument(help="Name of the ClusterBinding.")],
    kubeconfig: _File = "",
    context: ContextOption = "",
    server: _Server = "",
    cluster_id: _ClusterId = "",
    lease: _Lease = None,
    between: _Between = None,
    zone: _Zone = "",
    force_reclaim: _ForceReclaim = False,
    grace: _Grace = 0,
    mount_namespace: MountOption = "",
    add_on: _AddOns = None,
    quota: _Quota = None,
    isolated: _Isolated = False,
    service_namespace: _Services = None,
    direct_scheduling: _Direct = False,
    renew: _Renew = False,
    computing: ComputingOption = "",
    computing_context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    dry_run: DryRunOption = False,
    output: NotationOption = Notation.YAML,
    force_conflicts: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 180.0,
) -> None:
    """Bind a worker: create its role and credential, and a ClusterBinding in the computing cluster.

    Run the command again to change options or to renew the credential. Exit code 3: the worker is
    bound, but not ready.
    """

    async def work() -> None:
        from kubeocean.install.join import JoinRequest

        request = JoinRequest(
            name=name,
            cluster_id=cluster_id,
            worker=_worker(label_domain, mount_namespace, add_on, quota, isolated),
            lease=_lease(name, lease, between, zone, force_reclaim, grace),
            service_namespaces=tuple(service_namespace or ()),
            direct_scheduling=direct_scheduling,
        )
        _check_server(server)
        if dry_run:
            print_objects(_objects(request), output)
            return
        async with AsyncExitStack() as stack:
            worker_source = reach(_required(kubeconfig), context)
            computing_source = reach(computing, computing_context)
            appliers = _connect(
                request, computing_source, worker_source, stack, force=force_conflicts
            )
            with interruptible(lambda: f"{name} may be bound in part"):
                access = _access(worker_source.current(), server)
                await _bind(request, *appliers, access, renew=renew)
            options = ("--kubeconfig", computing) if computing else ()
            with interruptible(lambda: f"{name} is bound; the manager continues"):
                if wait:
                    see = command_line("doctor", name, *options)
                    await _wait(request, *appliers, timeout, see)

    run(work)


def _required(kubeconfig: str) -> str:
    from kubeocean.errors import ConfigError

    if not kubeconfig:
        raise ConfigError("must name the kubeconfig of the worker cluster", source="--kubeconfig")
    return kubeconfig


def _check_server(server: str) -> None:
    """Check the URL before the first write; `Join` checks the server in FILE."""
    from kubeocean.errors import ConfigError

    if server and not server.startswith("https://"):
        message = "must be a URL such as https://worker.example.com:6443"
        raise ConfigError(message, source="--server", value=server)


def _worker(
    label_domain: str,
    mount_namespace: str,
    add_on: list[str] | None,
    quota: str | None,
    isolated: bool,
) -> WorkerValues:
    from kubeocean.api.group import Domain
    from kubeocean.install.roles import DEFAULT_ADD_ONS
    from kubeocean.install.values import WorkerValues, add_ons, amounts

    granted = DEFAULT_ADD_ONS if add_on is None else add_ons(add_on, source="--add-on")
    values = WorkerValues(
        domain=Domain(label_domain), namespace=mount_namespace, add_ons=granted, isolated=isolated
    )
    if quota is None:
        return values
    from dataclasses import replace

    return replace(values, quota=amounts(quota, source="--quota"))


def _lease(
    name: str,
    lease: str | None,
    between: list[str] | None,
    zone: str,
    force_reclaim: bool,
    grace: int,
) -> PolicySpec | None:
    from kubeocean.api.policies import PolicySpec
    from kubeocean.errors import ConfigError
    from kubeocean.install.lease_options import limits, windows

    if lease is None and not between:
        for flag, value in (
            ("--zone", zone),
            ("--force-reclaim", force_reclaim),
            ("--grace", grace),
        ):
            if value:
                raise ConfigError("needs --lease or --between", source=flag, value=value)
        return None
    return PolicySpec(
        name,
        time_windows=windows(between or ()) or None,
        resource_limits=limits(lease or "") or None,
        force_reclaim=force_reclaim,
        graceful_reclaim_period_seconds=grace,
        time_zone=zone,
    )


def _access(access: Access, server: str) -> Access:
    """Return the access with the server at which the computing cluster reaches the worker."""
    from dataclasses import replace

    return replace(access, server=server.rstrip("/")) if server else access


def _connect(
    request: JoinRequest,
    computing: AccessSource,
    worker: AccessSource,
    stack: AsyncExitStack,
    *,
    force: bool,
) -> tuple[Applier, Applier]:
    domain = request.worker.domain
    return (
        applier(computing, stack, cluster="computing", domain=domain, force=force),
        applier(worker, stack, cluster="worker", domain=domain, force=force),
    )


def _objects(request: JoinRequest) -> dict[str, list[Json]]:
    """Return the objects that `join` creates, by cluster."""
    from kubeocean.install.credentials import kubeconfig_secret
    from kubeocean.install.worker_objects import credential_secret, worker_objects

    name, values = request.name, request.worker
    policy = request.policy()
    secret = kubeconfig_secret(name, "", ends=_EXPIRY_PLACEHOLDER, domain=values.domain)
    secret["data"] = {}
    in_worker = [
        *worker_objects(values),
        *([policy] if policy is not None else []),
        credential_secret(values, name, "00000000"),
    ]
    return {"worker": in_worker, "computing cluster": [secret, request.binding()]}


async def _bind(
    request: JoinRequest, computing: Applier, worker: Applier, access: Access, *, renew: bool
) -> None:
    from kubeocean.api.bindings import CLUSTER_BINDINGS
    from kubeocean.install.apply import ApplyResult
    from kubeocean.install.credentials import secret_name
    from kubeocean.install.join import Join

    in_computing = {request.name: CLUSTER_BINDINGS.kind, secret_name(request.name): "Secret"}

    def report(body: Json, result: ApplyResult) -> None:
        is_computing = in_computing.get(body["metadata"]["name"]) == body["kind"]
        print_result("computing" if is_computing else "worker", body, result)

    joined = await Join(request, computing, worker, access).run(report, renew=renew)
    verb = "was created" if joined.renewed else "is kept"
    ends = f"{joined.ends:%Y-%m-%d %H:%M} UTC"
    typer.echo(
        f"The credential {verb}; it expires {ends}. To renew it, run: {same_again('--renew')}"
    )


async def _wait(
    request: JoinRequest, computing: Applier, worker: Applier, timeout: float, see: str
) -> None:
    from kubeocean.install.wait import manager_trouble, worker_state

    read = partial(
        worker_state,
        request.name,
        computing,
        worker,
        domain=request.worker.domain,
        lends=request.lease is not None,
    )
    state = await wait_until_done(read, f"waiting for {request.name}", timeout)
    if not state.done:
        trouble = await manager_trouble(computing, request.worker.domain)
        why = f"the manager does not run: {trouble}" if trouble else ""
        give_up(request.name, state.message, timeout, why=why, see=see)
    typer.echo(f"{request.name}: {state.message}")
