"""Looking: how commands that only show something reach the clusters, once or again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli.clusters import reach

if TYPE_CHECKING:
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.view.reading import Reader

__all__ = [
    "AskOption",
    "BindingArgument",
    "PatienceOption",
    "Where",
    "complete_binding",
    "complete_node",
    "complete_place",
    "complete_pod",
]

_ANSWER_S: Final = 10.0  # what the computing cluster may take for one answer
_COMPLETION_S: Final = 2.0  # somebody waits with a finger on the tab key

PatienceOption = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How long a worker may take to answer.")
]
AskOption = Annotated[
    bool,
    typer.Option(
        "--workers/--no-workers", help="Ask the workers, too; else only the computing cluster."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The ocean that a command is about."""

    kubeconfig: str
    context: str
    label_domain: str = "kubeocean.io"
    ask_workers: bool = True
    patience_s: float = 5.0

    def reader(self, stack: AsyncExitStack) -> Reader:
        """Who looks at it; closed with the stack.

        :raises ConfigError: what was said makes no sense.
        """
        from kubeocean.bound.flags import domain
        from kubeocean.runtime.client import Client
        from kubeocean.runtime.retries import RetryPolicy
        from kubeocean.runtime.transport import HttpTransport
        from kubeocean.view.reading import Reader

        known = domain(self.label_domain, "--label-domain")
        computing = Client(
            HttpTransport(self._way()),
            cluster="computing",
            timeout_s=_ANSWER_S,
            retry=RetryPolicy(attempts=2),
        )
        stack.push_async_callback(computing.close)
        reader = Reader(
            computing, domain=known, patience_s=self.patience_s, ask_workers=self.ask_workers
        )
        stack.push_async_callback(reader.close)
        return reader

    def _way(self) -> AccessSource:
        from kubeocean.errors import ConfigError

        said = (("--kubeconfig", self.kubeconfig), ("--context", self.context))
        options = " ".join(f"{option} {value}" for option, value in said if value)
        try:
            return reach(self.kubeconfig, self.context)
        except ConfigError as error:
            told = str(error)
            if self.kubeconfig:
                told = told.removeprefix(f"{self.kubeconfig}: ")
            raise ConfigError(told, source=options) from error


def complete_binding(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of bindings that begin so; none, if nobody can say in time."""
    return _complete(ctx, incomplete, lambda reader: reader.names())


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of virtual nodes."""
    return _complete(ctx, incomplete, lambda reader: reader.node_names())


def complete_pod(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of pods in the namespace that was named before."""
    namespace = ctx.params.get("namespace") or "default"
    return _complete(ctx, incomplete, lambda reader: reader.pod_names(namespace))


def complete_place(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of bindings and of virtual nodes."""

    async def names(reader: Reader) -> list[str]:
        return [*await reader.names(), *await reader.node_names()]

    return _complete(ctx, incomplete, names)


def _complete(
    ctx: typer.Context, incomplete: str, names: Callable[[Reader], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from kubeocean.errors import KubeoceanError

    where = Where(
        kubeconfig=ctx.params.get("kubeconfig") or "", context=ctx.params.get("context") or ""
    )

    async def known() -> list[str]:
        async with AsyncExitStack() as stack, asyncio.timeout(_COMPLETION_S):
            return await names(where.reader(stack))

    try:
        found = asyncio.run(known())
    except (KubeoceanError, OSError, TimeoutError):
        return []
    return [name for name in found if name.startswith(incomplete)]


BindingArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Only this binding.", autocompletion=complete_binding),
]
