"""`kubeocean join`: binds one worker cluster to the computing cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

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
    from kubeocean.api.group import Domain
    from kubeocean.install.apply import Applier
    from kubeocean.install.join import JoinRequest
    from kubeocean.install.join_options import JoinOptions
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
_Zone = Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone of the windows.")]
_ForceReclaim = Annotated[
    bool | None,
    typer.Option(
        "--force-reclaim/--no-force-reclaim",
        help="Evict pods when a time window ends.",
        show_default="yes with --between",
    ),
]
_Grace = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Time between the end of a window and the first eviction.",
        show_default="300",
    ),
]
_Guests = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="PodSecurity level of pods in the worker: privileged, baseline or restricted.",
        show_default="baseline",
    ),
]
_Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        help='Label selector of nodes that may be lent, as "pool=batch", or "all".',
        show_default="all but the control plane",
    ),
]
_PriorityClass = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="PriorityClass of pods in the worker.",
        show_default="kubeocean-default",
    ),
]
_MaxGrace = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Longest grace period of a pod that the worker admits.",
        show_default="3600",
    ),
]
_Egress = Annotated[
    bool | None,
    typer.Option(
        "--egress-policy/--no-egress-policy",
        help="Create a NetworkPolicy that keeps pods from metadata addresses and from the "
        "worker's API server.",
        show_default="yes",
    ),
]
_Shared = Annotated[
    bool,
    typer.Option("--shared", help="Accept a mount namespace that another computing cluster uses."),
]
_Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Accept a kubeconfig that does not verify certificates."),
]
_Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Make changes to a bound worker without asking.")
]
_AddOns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Further permissions in the worker: volumes, node-labels, metrics, renewal, "
        "priority-classes, log-configs, all or none (repeatable).",
        show_default="volumes, node-labels, metrics, renewal",
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
    bool | None,
    typer.Option(
        "--isolated/--no-isolated",
        help="Create a NetworkPolicy that admits no traffic from other namespaces.",
        show_default="no",
    ),
]
_Services = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Namespace with Services to copy to the worker (repeatable)."
    ),
]
_Direct = Annotated[
    bool | None,
    typer.Option(
        "--direct-scheduling/--no-direct-scheduling",
        help="Assign pods to nodes without the worker's scheduler.",
        show_default="no",
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
    zone: _Zone = None,
    force_reclaim: _ForceReclaim = None,
    grace: _Grace = None,
    guests: _Guests = None,
    nodes: _Nodes = None,
    priority_class: _PriorityClass = None,
    max_grace: _MaxGrace = None,
    mount_namespace: MountOption = "",
    shared: _Shared = False,
    add_on: _AddOns = None,
    quota: _Quota = None,
    isolated: _Isolated = None,
    egress_policy: _Egress = None,
    service_namespace: _Services = None,
    direct_scheduling: _Direct = None,
    renew: _Renew = False,
    insecure: _Insecure = False,
    yes: _Yes = False,
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

    Run the command again to change options or to renew the credential: options that are not given
    keep their values, and changes are shown and have to be confirmed. Exit code 3: the worker is
    bound, but not ready.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.install.join_options import JoinOptions, Present, requested
        from kubeocean.install.lease_options import limits, windows

        options = JoinOptions(
            name=name,
            domain=Domain(label_domain),
            cluster_id=cluster_id or None,
            mount_namespace=mount_namespace or None,
            limits=limits(lease) if lease is not None else None,
            windows=windows(between) if between else None,
            time_zone=zone,
            force_reclaim=force_reclaim,
            grace_s=grace,
            isolated=isolated,
            egress=egress_policy,
            priority_class=priority_class,
            max_grace_s=max_grace,
            service_namespaces=tuple(service_namespace) if service_namespace else None,
            direct_scheduling=direct_scheduling,
            server=server.rstrip("/") or None,
            shared=shared,
            insecure=insecure,
            **_worker_options(add_on, quota, guests, nodes),
        )
        _check_server(server)
        if dry_run:
            print_objects(_objects(requested(options, Present())), output)
            return
        async with AsyncExitStack() as stack:
            worker_source = reach(_required(kubeconfig), context)
            computing_source = reach(computing, computing_context, option="--computing-kubeconfig")
            appliers = _connect(
                options.domain, computing_source, worker_source, stack, force=force_conflicts
            )
            request = await _confirmed(options, *appliers, yes=yes)
            with interruptible(lambda: f"{name} may be bound in part"):
                await _bind(request, *appliers, worker_source.current(), renew=renew)
            see_options = ("--kubeconfig", computing) if computing else ()
            with interruptible(lambda: f"{name} is bound; the manager continues"):
                if wait:
                    see = command_line("doctor", name, *see_options)
                    await _wait(request, *appliers, timeout, see)

    run(work)


async def _confirmed(
    options: JoinOptions, computing: Applier, worker: Applier, *, yes: bool
) -> JoinRequest:
    """Return the request of the join; show its changes to a bound worker and ask for consent.

    :raises ConfigError: there are changes, and neither `yes` nor a terminal to ask on.
    """
    import sys

    from kubeocean.errors import ConfigError
    from kubeocean.install.join_options import changes, read_present, requested

    present = await read_present(options, computing, worker)
    request = requested(options, present)
    lines = changes(present, request)
    if not lines:
        return request
    names = ", ".join(present.neighbours)
    also = f" The mount namespace is shared with {names}." if names else ""
    typer.echo(f"Changes to {options.name}:{also}", err=True)
    for line in lines:
        typer.echo(f"  {line}", err=True)
    if yes:
        return request
    if not sys.stdin.isatty():
        message = f"would change {len(lines)} of its values; --yes makes these changes"
        raise ConfigError(message, source="NAME", value=options.name)
    typer.confirm("Make these changes?", abort=True, err=True)
    return request


def _required(kubeconfig: str) -> str:
    from kubeocean.errors import ConfigError

    if not kubeconfig:
        raise ConfigError("must name the kubeconfig of the worker cluster", source="--kubeconfig")
    return kubeconfig


def _check_server(server: str) -> None:
    """Check the URL of `--server`; `Join` checks the server of the kubeconfig if the option is
    absent.
    """
    from kubeocean.errors import ConfigError

    if server and not server.startswith("https://"):
        message = "must be a URL such as https://worker.example.com:6443"
        raise ConfigError(message, source="--server", value=server)


def _worker_options(
    add_on: list[str] | None, quota: str | None, guests: str | None, nodes: str | None
) -> dict[str, Any]:
    """Parse the options that limit pods; options that were not given are left out."""
    from kubeocean.install.values import add_ons, amounts, node_selector, pod_security

    parsed: dict[str, Any] = {}
    if add_on is not None:
        parsed["add_ons"] = add_ons(add_on, source="--add-on")
    if quota is not None:
        parsed["quota"] = amounts(quota, source="--quota")
    if guests is not None:
        parsed["pod_security"] = pod_security(guests)
    if nodes is not None:
        parsed["nodes"] = node_selector(nodes)
    return parsed


def _connect(
    domain: Domain,
    computing: AccessSource,
    worker: AccessSource,
    stack: AsyncExitStack,
    *,
    force: bool,
) -> tuple[Applier, Applier]:
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
    for note in joined.notes:
        typer.echo(f"note: {note}", err=True)
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
        why = f"the manager is not running: {trouble}" if trouble else ""
        give_up(request.name, state.message, timeout, why=why, see=see)
    typer.echo(f"{request.name}: {state.message}")
