"""`kubeocean join`: one worker, bound to the computing cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.clusters import (
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
    reach,
    settled,
    tell,
)
from kubeocean.cli.running import command_line, interruptible, run, same_again

if TYPE_CHECKING:
    from kubeocean.api.policy import PolicySpec
    from kubeocean.installation.applying import Applier
    from kubeocean.installation.bindings import Joining
    from kubeocean.installation.values import WorkerValues
    from kubeocean.runtime.access import Access
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.runtime.objects import Json

__all__ = ["join"]

_MINTED = "(made when the worker joins)"


_File = Annotated[
    str, typer.Option(metavar="FILE", help="How an administrator reaches the worker.")
]
_Server = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The worker's API server, as the computing cluster reaches it.",
        show_default="as in FILE",
    ),
]
_ClusterId = Annotated[
    str, typer.Option(metavar="ID", help="Part of the names of nodes.", show_default="NAME")
]
_Lease = Annotated[
    str | None,
    typer.Option(metavar="LIMITS", help='What is lent, as "cpu=50%,memory=8Gi", or "all".'),
]
_Between = Annotated[
    list[str] | None,
    typer.Option(metavar="SPAN", help='When, as "20:00-06:00 Mon-Fri"; repeatable.'),
]
_Zone = Annotated[str, typer.Option(metavar="ZONE", help="The time zone of that.")]
_Force = Annotated[bool, typer.Option("--force-reclaim", help="Evict pods when time is over.")]
_Grace = Annotated[
    int, typer.Option(min=0, metavar="SECONDS", help="How long before the first eviction.")
]
_AddOns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Further rights: volumes, node-labels, metrics, priority-classes, log-configs; "
        "all, or none. Repeatable.",
        show_default="volumes, node-labels, metrics",
    ),
]
_Quota = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNTS",
        help='What pods may use together, as "pods=500,requests.cpu=100".',
        show_default="no node ports, no load balancers",
    ),
]
_Isolated = Annotated[
    bool, typer.Option("--isolated", help="Let nobody from other namespaces reach the pods.")
]
_Services = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Mirror Services of this namespace; repeatable."),
]
_Direct = Annotated[
    bool, typer.Option("--direct-scheduling", help="Do not ask the worker's scheduler.")
]
_Renew = Annotated[
    bool, typer.Option("--renew", help="Mint a new token even if the old one still holds.")
]


def join(
    name: Annotated[str, typer.Argument(help="What the binding is called.")],
    kubeconfig: _File = "",
    context: ContextOption = "",
    server: _Server = "",
    cluster_id: _ClusterId = "",
    lease: _Lease = None,
    between: _Between = None,
    zone: _Zone = "",
    force_reclaim: _Force = False,
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
    """Bind a worker cluster: a role and a credential there, a binding here.

    Repeat it to change something or to renew the credential. Exit code 3: bound, not Ready yet.
    """

    async def work() -> None:
        from kubeocean.installation.bindings import Joining

        joining = Joining(
            name=name,
            cluster_id=cluster_id,
            worker=_worker(label_domain, mount_namespace, add_on, quota, isolated),
            lease=_lease(name, lease, between, zone, force_reclaim, grace),
            service_namespaces=tuple(service_namespace or ()),
            direct_scheduling=direct_scheduling,
        )
        _check_server(server)
        if dry_run:
            print_objects(_objects(joining), output)
            return
        async with AsyncExitStack() as stack:
            below = reach(_required(kubeconfig), context)
            above = reach(computing, computing_context)
            pair = _connect(joining, above, below, stack, force=force_conflicts)
            with interruptible(lambda: f"{name} is bound in part, if at all"):
                await _bind(joining, *pair, _way(below.current(), server), renew=renew)
            see = ("--kubeconfig", computing) if computing else ()
            with interruptible(lambda: f"{name} is bound; it becomes Ready by itself"):
                if wait:
                    await _wait(joining, *pair, timeout, command_line("doctor", name, *see))

    run(work)


# What was said


def _required(kubeconfig: str) -> str:
    from kubeocean.errors import ConfigError

    if not kubeconfig:
        raise ConfigError("must name the kubeconfig of the worker", source="--kubeconfig")
    return kubeconfig


def _check_server(server: str) -> None:
    """Said before anything is written; of the one in FILE it is said when a token is made."""
    from kubeocean.errors import ConfigError

    if server and not server.startswith("https://"):
        said = "must be a URL such as https://worker.example.com:6443"
        raise ConfigError(said, source="--server", value=server)


def _worker(
    label_domain: str,
    mount_namespace: str,
    add_on: list[str] | None,
    quota: str | None,
    isolated: bool,
) -> WorkerValues:
    from kubeocean.api.group import Domain
    from kubeocean.installation.roles import DEFAULT_ADD_ONS
    from kubeocean.installation.values import WorkerValues, add_ons, amounts

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
    from kubeocean.api.policy import PolicySpec
    from kubeocean.errors import ConfigError
    from kubeocean.installation.policies import limits, windows

    if lease is None and not between:
        for flag, given in (
            ("--zone", zone),
            ("--force-reclaim", force_reclaim),
            ("--grace", grace),
        ):
            if given:
                raise ConfigError("needs --lease or --between", source=flag, value=given)
        return None
    return PolicySpec(
        name,
        time_windows=windows(between or ()) or None,
        resource_limits=limits(lease or "") or None,
        force_reclaim=force_reclaim,
        graceful_reclaim_period_seconds=grace,
        time_zone=zone,
    )


def _way(access: Access, server: str) -> Access:
    """The way that the computing cluster takes."""
    from dataclasses import replace

    return replace(access, server=server.rstrip("/")) if server else access


# What is done


def _connect(
    joining: Joining,
    above: AccessSource,
    below: AccessSource,
    stack: AsyncExitStack,
    *,
    force: bool,
) -> tuple[Applier, Applier]:
    domain = joining.worker.domain
    return (
        applier(above, stack, cluster="computing", domain=domain, force=force),
        applier(below, stack, cluster="worker", domain=domain, force=force),
    )


def _objects(joining: Joining) -> dict[str, list[Json]]:
    """By the cluster where they are made."""
    from kubeocean.installation.credentials import kubeconfig_secret
    from kubeocean.installation.workerside import credential_secret, worker_objects

    name, values = joining.name, joining.worker
    lease = joining.policy()
    secret = kubeconfig_secret(name, "", ends=_MINTED, domain=values.domain)
    secret["data"] = {}
    below = [
        *worker_objects(values),
        *([lease] if lease is not None else []),
        credential_secret(values, name, "00000000"),
    ]
    return {"worker": below, "computing cluster": [secret, joining.binding()]}


async def _bind(
    joining: Joining, above: Applier, worker: Applier, way: Access, *, renew: bool
) -> None:
    from kubeocean.api.binding import CLUSTER_BINDINGS
    from kubeocean.installation.applying import Fate
    from kubeocean.installation.credentials import secret_name
    from kubeocean.installation.joining import Join

    ours = {joining.name: CLUSTER_BINDINGS.kind, secret_name(joining.name): "Secret"}

    def told(body: Json, fate: Fate) -> None:
        here = ours.get(body["metadata"]["name"]) == body["kind"]
        tell("computing" if here else "worker", body, fate)

    joined = await Join(joining, above, worker, way).run(told, renew=renew)
    verb = "was made" if joined.renewed else "is kept"
    ends = f"{joined.ends:%Y-%m-%d %H:%M} UTC"
    typer.echo(f"The credential {verb}; it ends {ends}. A new one: {same_again('--renew')}")


async def _wait(
    joining: Joining, above: Applier, worker: Applier, timeout: float, see: str
) -> None:
    from kubeocean.installation.settling import manager_trouble, worker_state

    look = partial(
        worker_state,
        joining.name,
        above,
        worker,
        domain=joining.worker.domain,
        lends=joining.lease is not None,
    )
    state = await settled(look, f"waiting for {joining.name}", timeout)
    if not state.done:
        trouble = await manager_trouble(above, joining.worker.domain)
        why = f"the manager does not run: {trouble}" if trouble else ""
        give_up(joining.name, state.said, timeout, why=why, see=f"More is told by: {see}")
    typer.echo(f"{joining.name}: {state.said}")
