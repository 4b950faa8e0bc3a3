"""`kubeocean logs-level`: changes the log level of a binding's running programs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from kubeocean.cli._clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli._readers import complete_binding
from kubeocean.cli._run import run

__all__ = ["logs_level"]

_DEFAULT_LEVEL = "usual"  # the level of the --log-level flag


def logs_level(
    binding: Annotated[
        str,
        typer.Argument(help="Name of the ClusterBinding.", autocompletion=complete_binding),
    ],
    level: Annotated[
        str,
        typer.Argument(
            metavar="[LEVEL]",
            help="New log level: error, warn, info, debug, or usual for the level that the flags "
            "of the programs set. Without LEVEL, the current one is printed.",
        ),
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
) -> None:
    """Change the log level of a binding's syncer and proxier without a restart.

    The level is an annotation of the ClusterBinding, which both programs watch.
    """

    async def work() -> None:
        from kubeocean.api.bindings import CLUSTER_BINDINGS
        from kubeocean.api.group import Domain
        from kubeocean.errors import ConfigError
        from kubeocean.process.log_level import LEVELS_BY_ANNOTATION
        from kubeocean.runtime.client import MergePatch
        from kubeocean.worker_access.client import find_binding, retrying_client

        if level and level not in (*LEVELS_BY_ANNOTATION, _DEFAULT_LEVEL):
            message = f"must be one of {', '.join((*LEVELS_BY_ANNOTATION, _DEFAULT_LEVEL))}"
            raise ConfigError(message, field="LEVEL", value=level)
        key = Domain(label_domain).log_level
        async with AsyncExitStack() as stack:
            client = retrying_client(reach(kubeconfig, context), "computing", stack)
            stored = await find_binding(client, binding, "BINDING")
            if not level:
                typer.echo(stored.annotations.get(key, _DEFAULT_LEVEL))
                return
            value = None if level == _DEFAULT_LEVEL else level
            metadata = {"uid": stored.uid, "annotations": {key: value}}
            await client.patch(CLUSTER_BINDINGS, binding, MergePatch({"metadata": metadata}))
        name = "the level of their flags" if level == _DEFAULT_LEVEL else f"level {level}"
        typer.echo(f"the syncer and the proxier of {binding} now log at {name}")

    run(work)
