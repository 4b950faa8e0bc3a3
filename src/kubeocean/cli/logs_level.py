"""`kubeocean logs-level`: how much the programs of a binding log, while they run."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from kubeocean.cli.clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli.looking import complete_binding
from kubeocean.cli.running import run

__all__ = ["logs_level"]

_USUAL = "usual"


def logs_level(
    binding: Annotated[
        str,
        typer.Argument(help="Whose syncer and proxier are meant.", autocompletion=complete_binding),
    ],
    level: Annotated[
        str,
        typer.Argument(
            metavar="[LEVEL]",
            help="error, warn, info or debug; usual: as they were started. Without it, tell.",
        ),
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Make the syncer and the proxier of a binding log more, or less, at once.

    It is an annotation of the binding, which they follow; no restart, and no port.
    """

    async def work() -> None:
        from kubeocean.api.binding import CLUSTER_BINDINGS
        from kubeocean.api.group import Domain
        from kubeocean.bound.sides import find_binding, patient_client
        from kubeocean.bound.verbosity import ASKED
        from kubeocean.errors import ConfigError
        from kubeocean.runtime.patches import MergePatch

        if level and level not in (*ASKED, _USUAL):
            said = f"must be one of {', '.join((*ASKED, _USUAL))}"
            raise ConfigError(said, field="LEVEL", value=level)
        key = Domain(label_domain).log_level
        async with AsyncExitStack() as stack:
            client = patient_client(reach(kubeconfig, context), "computing", stack)
            found = await find_binding(client, binding, "BINDING")
            if not level:
                typer.echo(found.annotations.get(key, _USUAL))
                return
            wanted = None if level == _USUAL else level
            metadata = {"uid": found.uid, "annotations": {key: wanted}}
            await client.patch(CLUSTER_BINDINGS, binding, MergePatch({"metadata": metadata}))
        how = "as they were started to" if level == _USUAL else f"at level {level}"
        typer.echo(f"the syncer and the proxier of {binding} log {how} from now on")

    run(work)
