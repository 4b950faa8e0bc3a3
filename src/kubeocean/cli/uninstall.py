"""`kubeocean uninstall`: removes Kubeocean from the computing cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._clusters import (
    ContextOption,
    DomainOption,
    KubeconfigOption,
    ManagementContextOption,
    ManagementOption,
    applier,
    print_result,
    reach,
)
from kubeocean.cli._run import command_line, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeocean.api.group import Domain
    from kubeocean.install.apply import Applier, ApplyResult
    from kubeocean.install.values import Values
    from kubeocean.runtime.objects import Json

__all__ = ["uninstall"]

_KEPT_KINDS: Final = frozenset({"CustomResourceDefinition", "Namespace"})


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete Kubeocean's CRDs and namespaces.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that no worker is bound; delete nothing.")
    ] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    management_kubeconfig: ManagementOption = "",
    management_context: ManagementContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Delete the objects that `install` created. All workers must have left first."""

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.install.apply import ApplyResult
        from kubeocean.install.computing_objects import computing_objects, withdrawn_objects
        from kubeocean.install.management import (
            anchors,
            credential_secrets,
            management_objects,
            recorded_management,
        )
        from kubeocean.install.values import Values

        domain = Domain(label_domain)
        async with AsyncExitStack() as stack:
            connect = partial(applier, stack=stack, domain=domain, force=False)
            computing = connect(reach(kubeconfig, context), cluster="computing")
            await _check(computing, domain)
            if check:
                typer.echo("No worker is bound.")
                return
            values = Values(domain=domain, monitoring=True)
            recorded = await recorded_management(computing.client, domain)
            computed = [*computing_objects(values), *withdrawn_objects(values)]
            results = set()
            if recorded:
                management = await _management(
                    connect, management_kubeconfig, management_context, recorded
                )
                programs = [*credential_secrets(values), *management_objects(values)]
                results |= await _remove(management, programs, purge=purge)
                computed += anchors(values)
            results |= await _remove(computing, computed, purge=purge)
        typer.echo(_removed(values, purge) if results != {ApplyResult.ABSENT} else _nothing(purge))

    run(work)


async def _remove(cluster: Applier, objects: list[Json], *, purge: bool) -> set[ApplyResult]:
    """Delete the objects of a cluster in the opposite order of creation; return all results."""
    from kubeocean.errors import NotFound
    from kubeocean.install.apply import ApplyResult

    results = set()
    for body in reversed(objects):
        if purge or body["kind"] not in _KEPT_KINDS:
            try:
                result = await cluster.remove(body)
            except NotFound:
                continue  # the cluster does not serve this kind
            results.add(result)
            if result is not ApplyResult.ABSENT:
                print_result(cluster.client.cluster, body, result)
    return results


async def _management(
    connect: Callable[..., Applier], kubeconfig: str, context: str, recorded: str
) -> Applier:
    """Connect to the management cluster that the installation records.

    :raises ConfigError: the kubeconfig is not given, or points to another cluster.
    """
    from kubeocean.install.join import identity
    from kubeocean.install.management import other_management

    if not kubeconfig:
        raise other_management(recorded)
    source = reach(kubeconfig, context, option="--management-kubeconfig")
    management = connect(source, cluster="management")
    if await identity(management) != recorded:
        raise other_management(recorded, given=kubeconfig)
    return management


def _nothing(purge: bool) -> str:
    message = "There was nothing to remove"
    return message if purge else f"{message}; --purge deletes remaining CRDs and namespaces"


def _removed(values: Values, purge: bool) -> str:
    from kubeocean.install.computing_objects import computing_objects
    from kubeocean.install.object_parts import title

    if purge:
        return "Kubeocean is removed. The deletion of its namespaces takes a moment."
    kept = [title(body) for body in computing_objects(values) if body["kind"] in _KEPT_KINDS]
    return f"Kubeocean is removed. To delete also {', '.join(kept)}, add --purge"


async def _check(computing: Applier, domain: Domain) -> None:
    """Check that no worker is bound.

    :raises ConfigError: workers are still bound.
    """
    from kubeocean.api.bindings import CLUSTER_BINDINGS
    from kubeocean.api.group import DEFAULT
    from kubeocean.errors import ConfigError, NotFound

    try:
        bindings = (await computing.client.list(CLUSTER_BINDINGS)).items
    except NotFound:
        return
    if bindings:
        names = ", ".join(binding.name for binding in bindings)
        own = ("--label-domain", domain.name) if domain != DEFAULT else ()
        first = command_line("leave", bindings[0].name, *own)
        raise ConfigError(f"workers are bound: {names}; unbind them first: {first}")
