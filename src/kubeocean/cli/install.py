"""`kubeocean install`: installs Kubeocean into the computing cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    ContextOption,
    DomainOption,
    DryRunOption,
    ForceOption,
    KubeconfigOption,
    ManagementContextOption,
    ManagementOption,
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
from kubeocean.cli._run import command_line, run

if TYPE_CHECKING:
    from kubeocean.install.apply import Applier
    from kubeocean.install.values import Size, Values
    from kubeocean.runtime.objects import Json

__all__ = ["install"]

_PRODUCTION = "production"


_Image = Annotated[
    str,
    typer.Option(
        metavar="IMAGE",
        help="Container image of the manager, syncers and proxiers.",
        show_default="the image of this version",
    ),
]
_PullSecrets = Annotated[
    list[str] | None,
    typer.Option(metavar="SECRET", help="Secret with which to pull the image (repeatable)."),
]
_Tolerations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TAINT",
        help="Taint that Kubeocean's pods tolerate, as key=value:effect (repeatable).",
    ),
]
_Replicas = Annotated[
    int, typer.Option(help="Number of replicas of the manager and of each syncer and proxier.")
]
_ManagerReplicas = Annotated[
    int | None,
    typer.Option(
        help="Number of replicas of the manager.",
        show_default="--replicas, or 3 with --preset production",
    ),
]
_SyncerReplicas = Annotated[
    int | None,
    typer.Option(help="Number of replicas of each syncer.", show_default="--replicas"),
]
_ProxierReplicas = Annotated[
    int | None,
    typer.Option(help="Number of replicas of each proxier.", show_default="--replicas"),
]
_ShardSyncers = Annotated[
    bool,
    typer.Option(
        "--shard-syncers", help="Share the nodes and pods of a binding among all of its syncers."
    ),
]
_MaxSyncers = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Scale the syncers of each binding up to this number by their CPU use (needs "
        "--shard-syncers and a metrics-server).",
        show_default="not scaled",
    ),
]
_MaxProxiers = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Scale the proxiers of each binding up to this number by their CPU use (needs a "
        "metrics-server).",
        show_default="not scaled",
    ),
]
_ScaleCpu = Annotated[
    int,
    typer.Option(
        metavar="PERCENT", help="CPU use of autoscaled programs, in percent of their CPU requests."
    ),
]
_Preset = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Set of values: default, or production, where the manager has 3 replicas and prefers "
        "nodes of the control plane.",
    ),
]
_Size = Annotated[
    str,
    typer.Option(
        help="Size of the largest worker cluster, which sets requests and limits: small (up to 100 "
        "nodes), medium (up to 1000) or large."
    ),
]
_Server = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="URL",
        help="URL at which the management cluster reaches the computing cluster's API server.",
        show_default="that of --kubeconfig",
    ),
]
_Zone = Annotated[
    str,
    typer.Option(metavar="ZONE", help="Time zone of policies that name none.", show_default="UTC"),
]
_Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMESPACE",
        help="Further namespace in which kubeconfig Secrets of workers may be, or * for all "
        "(repeatable).",
    ),
]
_Level = Annotated[
    str, typer.Option(help="Log level of Kubeocean's programs: debug, info, warn or error.")
]
_Monitoring = Annotated[
    bool,
    typer.Option(
        "--monitoring", help="Also create a ServiceMonitor, alerts and a Grafana dashboard."
    ),
]
_Network = Annotated[
    bool, typer.Option(help="Create NetworkPolicies that admit only the necessary connections.")
]


def install(
    image: _Image = "",
    pull_secret: _PullSecrets = None,
    toleration: _Tolerations = None,
    preset: _Preset = "default",
    replicas: _Replicas = 2,
    manager_replicas: _ManagerReplicas = None,
    syncer_replicas: _SyncerReplicas = None,
    proxier_replicas: _ProxierReplicas = None,
    shard_syncers: _ShardSyncers = False,
    max_syncers: _MaxSyncers = None,
    max_proxiers: _MaxProxiers = None,
    scale_cpu: _ScaleCpu = 80,
    size: _Size = "small",
    time_zone: _Zone = "",
    kubeconfig_namespace: _Namespaces = None,
    log_level: _Level = "info",
    monitoring: _Monitoring = False,
    network_policies: _Network = True,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    management_kubeconfig: ManagementOption = "",
    management_context: ManagementContextOption = "",
    server: _Server = "",
    label_domain: DomainOption = "kubeocean.io",
    dry_run: DryRunOption = False,
    output: NotationOption = Notation.YAML,
    force_conflicts: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 180.0,
) -> None:
    """Install Kubeocean into a computing cluster: CRDs, roles and the manager.

    Run the command again to change options. Exit code 3: installed, but the manager is not ready.
    """

    async def work() -> None:
        from dataclasses import replace

        from kubeocean.api.group import Domain
        from kubeocean.install.computing_objects import computing_objects
        from kubeocean.install.join import identity
        from kubeocean.install.management import Credentials, management_objects
        from kubeocean.install.values import IMAGE, Values

        values = Values(
            domain=Domain(label_domain),
            image=image or IMAGE,
            pull_secrets=tuple(pull_secret or ()),
            tolerations=tuple(toleration or ()),
            replicas=replicas,
            component_replicas=_replicas(
                preset, manager=manager_replicas, syncer=syncer_replicas, proxier=proxier_replicas
            ),
            near_control_plane=preset == _PRODUCTION,
            shard_syncers=shard_syncers,
            max_replicas=_given(syncer=max_syncers, proxier=max_proxiers),
            target_cpu_percent=scale_cpu,
            size=_size(size),
            log_level=log_level,
            time_zone=time_zone,
            kubeconfig_namespaces=tuple(kubeconfig_namespace or ()),
            monitoring=monitoring,
            network_policies=network_policies,
        )
        _check_options(management_kubeconfig, management_context, server)
        async with AsyncExitStack() as stack:
            connect = partial(applier, stack=stack, domain=values.domain, force=force_conflicts)
            management: Applier | None = None
            if management_kubeconfig:
                management = connect(
                    reach(
                        management_kubeconfig, management_context, option="--management-kubeconfig"
                    ),
                    cluster="management",
                )
                values = replace(values, management=await identity(management))
            if dry_run:
                print_objects(_objects(values), output)
                return
            source = reach(kubeconfig, context)
            computing = connect(source, cluster="computing")
            await _check(computing, values)
            values = await _with_admission(computing, values)
            access = source.current()
            access = replace(access, server=server.rstrip("/") or access.server)
            credentials = management and Credentials(values, computing, management, access)
            report = partial(print_result, "computing")
            await computing.apply_all(computing_objects(values), report)
            if management and credentials:
                report = partial(print_result, "management")
                namespace, *others = management_objects(values)
                await management.apply_all([namespace], report)
                await credentials.put(print_result)
                await management.apply_all(others, report)
            await _withdraw(computing, management, values)
            if wait:
                see = ("--kubeconfig", kubeconfig) if kubeconfig else ()
                await _wait(management or computing, values, timeout, command_line("doctor", *see))
        typer.echo("To bind a worker, run: " + command_line("join", "NAME", "--kubeconfig", "FILE"))

    run(work)


def _replicas(preset: str, **given: int | None) -> dict[str, int]:
    """Return the replicas of components that differ from `--replicas`.

    :raises ConfigError: there is no such preset.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.install.values import PRODUCTION_MANAGERS

    if preset not in ("default", _PRODUCTION):
        message = f"must be default or {_PRODUCTION}"
        raise ConfigError(message, source="--preset", value=preset)
    numbers = {"manager": PRODUCTION_MANAGERS} if preset == _PRODUCTION else {}
    return numbers | _given(**given)


def _given(**numbers: int | None) -> dict[str, int]:
    return {component: number for component, number in numbers.items() if number is not None}


def _size(text: str) -> Size:
    from kubeocean.errors import ConfigError
    from kubeocean.install.values import Size

    try:
        return Size(text)
    except ValueError:
        message = f"must be one of {', '.join(Size)}"
        raise ConfigError(message, source="--size", value=text) from None


def _check_options(management_kubeconfig: str, management_context: str, server: str) -> None:
    """Check `--server`, and that no option for a management cluster is given without one.

    :raises ConfigError: an option has no effect, or is no URL.
    """
    from kubeocean.errors import ConfigError

    if server and not server.startswith("https://"):
        message = "must be a URL such as https://computing.example.com:6443"
        raise ConfigError(message, source="--server", value=server)
    if management_kubeconfig:
        return
    for option, given in (("--management-context", management_context), ("--server", server)):
        if given:
            message = "has no effect without --management-kubeconfig"
            raise ConfigError(message, source=option, value=given)


async def _check(computing: Applier, values: Values) -> None:
    """Refuse an installation that would break the existing installation of the cluster.

    :raises ConfigError: the cluster is of `kubeocean up`, or a bound worker's Secret would become
        unreadable.
    """
    from kubeocean.errors import ConfigError, NotFound
    from kubeocean.install.join import identity
    from kubeocean.install.management import check_management
    from kubeocean.runtime.kinds import NAMESPACES

    await _check_bindings(computing, values)
    await check_management(computing, values, computing_id=await identity(computing))
    try:
        namespace = await computing.client.get(NAMESPACES, values.namespace)
    except NotFound:
        return
    if values.domain.local_ocean in namespace.annotations:
        message = (
            "this computing cluster was created by kubeocean up, which has installed Kubeocean"
        )
        raise ConfigError(f"{message}; to restore its objects, run: {command_line('up')}")


async def _check_bindings(computing: Applier, values: Values) -> None:
    """Check that syncers may read the Secrets of all existing bindings.

    :raises ConfigError: the Secret of a binding is in a namespace that is not allowed.
    """
    from kubeocean.api.bindings import CLUSTER_BINDINGS
    from kubeocean.errors import ConfigError, NotFound
    from kubeocean.worker_access.rotation import ANY_NAMESPACE

    allowed = set(values.secret_namespaces)
    try:
        bindings = (await computing.client.list(CLUSTER_BINDINGS)).items
    except NotFound:
        return  # the CRD is not installed yet
    for binding in bindings:
        namespace = binding.spec.secret_ref.namespace
        if namespace and not allowed & {namespace, ANY_NAMESPACE}:
            message = (
                f"must also name namespace {namespace}, which holds the kubeconfig of binding"
                f" {binding.name}"
            )
            raise ConfigError(message, source="--kubeconfig-namespace")


async def _with_admission(computing: Applier, values: Values) -> Values:
    """Return the values without admission policies if the API server has none."""
    from dataclasses import replace

    if await computing.has_admission_policies():
        return values
    typer.echo(
        "note: the API server has no ValidatingAdmissionPolicies (Kubernetes 1.30): the tokens "
        "that syncers request are not limited",
        err=True,
    )
    return replace(values, admission=False)


def _objects(values: Values) -> dict[str, list[Json]]:
    """Return the objects of each cluster; Secrets with credentials are not among them."""
    from kubeocean.install.computing_objects import computing_objects
    from kubeocean.install.management import management_objects

    objects = {"computing cluster": computing_objects(values)}
    if values.management:
        objects["management cluster"] = management_objects(values)
    return objects


async def _withdraw(computing: Applier, management: Applier | None, values: Values) -> None:
    """Delete objects that only options that are not given now, or earlier versions, would have
    created."""
    from kubeocean.errors import NotFound
    from kubeocean.install.apply import ApplyResult
    from kubeocean.install.computing_objects import withdrawn_objects
    from kubeocean.install.management import withdrawn_management_objects

    clusters = {computing: withdrawn_objects(values)}
    if management is not None:
        clusters[management] = withdrawn_management_objects(values)
    for cluster, withdrawn in clusters.items():
        for body in reversed(withdrawn):
            try:
                result = await cluster.remove(body)
            except NotFound:
                continue  # the cluster does not serve this kind
            if result is not ApplyResult.ABSENT:
                print_result(cluster.client.cluster, body, result)


async def _wait(computing: Applier, values: Values, timeout: float, see: str) -> None:
    from kubeocean.install.computing_objects import manager_deployment
    from kubeocean.install.wait import manager_state, manager_trouble

    read = partial(manager_state, computing, manager_deployment(values))
    state = await wait_until_done(read, "waiting for the manager", timeout)
    if not state.done:
        why = await manager_trouble(computing, values.domain)
        give_up("the manager", state.message, timeout, why=why, see=see)
