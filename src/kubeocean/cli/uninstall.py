"""`kubeocean uninstall`: the computing cluster's side, taken out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli.clusters import (
    ContextOption,
    DomainOption,
    KubeconfigOption,
    applier,
    reach,
    tell,
)
from kubeocean.cli.running import command_line, run

if TYPE_CHECKING:
    from kubeocean.installation.applying import Applier
    from kubeocean.installation.values import Values

__all__ = ["uninstall"]

_STAY: Final = frozenset({"CustomResourceDefinition", "Namespace"})


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also our definition of bindings and our namespaces.")
    ] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Remove what `install` has made. Workers have to leave first."""

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.errors import NotFound
        from kubeocean.installation.applying import Fate
        from kubeocean.installation.computing import computing_objects
        from kubeocean.installation.values import Values

        domain = Domain(label_domain)
        async with AsyncExitStack() as stack:
            computing = applier(
                reach(kubeconfig, context), stack, cluster="computing", domain=domain, force=False
            )
            await _check(computing)
            values = Values(domain=domain, monitoring=True)
            fates = set()
            for body in reversed(computing_objects(values)):
                if purge or body["kind"] not in _STAY:
                    try:
                        fate = await computing.remove(body)
                    except NotFound:
                        continue  # a kind that this cluster does not have
                    fates.add(fate)
                    if fate is not Fate.ABSENT:
                        tell("computing", body, fate)
        typer.echo(_ended(values, purge) if fates != {Fate.ABSENT} else _nothing(purge))

    run(work)


def _nothing(purge: bool) -> str:
    said = "There was nothing to remove"
    return said if purge else f"{said}; a definition or namespaces that are left go with --purge"


def _ended(values: Values, purge: bool) -> str:
    from kubeocean.installation.computing import computing_objects
    from kubeocean.installation.parts import title

    if purge:
        return "Kubeocean is removed. Namespaces take a moment to go; nothing of it stays."
    stay = [title(body) for body in computing_objects(values) if body["kind"] in _STAY]
    return f"Kubeocean is removed. What stays goes with --purge: {', '.join(stay)}"


async def _check(computing: Applier) -> None:
    """:raises ConfigError: somebody would be left behind."""
    from kubeocean.api.binding import CLUSTER_BINDINGS
    from kubeocean.errors import ConfigError, NotFound

    try:
        bindings = (await computing.client.list(CLUSTER_BINDINGS)).items
    except NotFound:
        return
    if bindings:
        names = ", ".join(each.name for each in bindings)
        first = command_line("leave", bindings[0].name)
        raise ConfigError(f"workers are bound: {names}; let them go first: {first}")
