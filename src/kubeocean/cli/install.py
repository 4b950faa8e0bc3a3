"""`kubeocean install`: the computing cluster's side."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.clusters import (
    ContextOption,
    DomainOption,
    DryRunOption,
    ForceOption,
    KubeconfigOption,
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
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.installation.applying import Applier
    from kubeocean.installation.values import Size, Values

__all__ = ["install"]


_Image = Annotated[
    str, typer.Option(metavar="IMAGE", help="Our image.", show_default="of this version")
]
_PullSecrets = Annotated[
    list[str] | None, typer.Option(metavar="SECRET", help="To pull it with; repeatable.")
]
_Tolerations = Annotated[
    list[str] | None,
    typer.Option(metavar="TAINT", help="That our pods tolerate, as key=value:effect; repeatable."),
]
_Replicas = Annotated[int, typer.Option(help="Of manager, and of each syncer and proxier.")]
_Size = Annotated[
    str, typer.Option(help="small: up to 100 nodes a worker; medium: up to 1000; large: more.")
]
_Zone = Annotated[
    str, typer.Option(metavar="ZONE", help="Of policies that name none.", show_default="UTC")
]
_Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMESPACE",
        help="Where kubeconfigs of workers may be, beside our own namespace; repeatable; *: all.",
    ),
]
_Level = Annotated[str, typer.Option(help="debug, info, warn or error.")]
_Monitoring = Annotated[
    bool, typer.Option("--monitoring", help="ServiceMonitor, alerts, Grafana dashboard.")
]
_Network = Annotated[bool, typer.Option(help="Let nobody in without need.")]


def install(
    image: _Image = "",
    pull_secret: _PullSecrets = None,
    toleration: _Tolerations = None,
    replicas: _Replicas = 2,
    size: _Size = "small",
    time_zone: _Zone = "",
    kubeconfig_namespace: _Namespaces = None,
    log_level: _Level = "info",
    monitoring: _Monitoring = False,
    network_policies: _Network = True,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    dry_run: DryRunOption = False,
    output: NotationOption = Notation.YAML,
    force_conflicts: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 180.0,
) -> None:
    """Install into a computing cluster: definitions, roles, the manager.

    It may be repeated, also with other options. Exit code 3: installed, and not running yet.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.installation.computing import computing_objects
        from kubeocean.installation.values import IMAGE, Values

        values = Values(
            domain=Domain(label_domain),
            image=image or IMAGE,
            pull_secrets=tuple(pull_secret or ()),
            tolerations=tuple(toleration or ()),
            replicas=replicas,
            size=_size(size),
            log_level=log_level,
            time_zone=time_zone,
            kubeconfig_namespaces=tuple(kubeconfig_namespace or ()),
            monitoring=monitoring,
            network_policies=network_policies,
        )
        objects = computing_objects(values)
        if dry_run:
            print_objects({"computing cluster": objects}, output)
            return
        async with AsyncExitStack() as stack:
            source = reach(kubeconfig, context)
            computing = applier(
                source, stack, cluster="computing", domain=values.domain, force=force_conflicts
            )
            await _check(computing, values)
            await computing.apply_all(objects, partial(tell, "computing"))
            if wait:
                see = ("--kubeconfig", kubeconfig) if kubeconfig else ()
                await _wait(computing, values, timeout, command_line("doctor", *see))
        typer.echo("Bind a worker with: " + command_line("join", "NAME", "--kubeconfig", "FILE"))

    run(work)


def _size(written: str) -> Size:
    from kubeocean.errors import ConfigError
    from kubeocean.installation.values import Size

    try:
        return Size(written)
    except ValueError:
        said = f"must be one of {', '.join(Size)}"
        raise ConfigError(said, source="--size", value=written) from None


async def _check(computing: Applier, values: Values) -> None:
    """:raises ConfigError: our programs run there already, in a way of their own, or for workers
    that this would leave behind."""
    from kubeocean.errors import ConfigError, NotFound
    from kubeocean.runtime.kinds import NAMESPACES

    await _check_bindings(computing, values)
    try:
        there = await computing.client.get(NAMESPACES, values.namespace)
    except NotFound:
        return
    if values.domain.local_ocean in there.annotations:
        mends = command_line("up")
        said = "this is a local ocean, made by kubeocean up: it is installed already"
        raise ConfigError(f"{said}, and {mends} sets back what was changed of it")


async def _check_bindings(computing: Applier, values: Values) -> None:
    """:raises ConfigError: syncers of a worker that is bound would not take its kubeconfig."""
    from kubeocean.api.binding import CLUSTER_BINDINGS
    from kubeocean.bound.rotation import ANY_NAMESPACE
    from kubeocean.errors import ConfigError, NotFound

    allowed = set(values.secret_namespaces)
    try:
        bindings = (await computing.client.list(CLUSTER_BINDINGS)).items
    except NotFound:
        return  # nobody knows what that is yet
    for each in bindings:
        where = each.spec.secret_ref.namespace
        if where and not allowed & {where, ANY_NAMESPACE}:
            said = f"must be named too: the kubeconfig of binding {each.name} is there"
            raise ConfigError(said, source="--kubeconfig-namespace", value=where)


async def _wait(computing: Applier, values: Values, timeout: float, see: str) -> None:
    from kubeocean.installation.computing import manager_deployment
    from kubeocean.installation.settling import manager_state, manager_trouble

    look = partial(manager_state, computing, manager_deployment(values))
    state = await settled(look, "waiting for the manager", timeout)
    if not state.done:
        why = await manager_trouble(computing, values.domain)
        give_up("the manager", state.said, timeout, why=why, see=f"More is told by: {see}")
