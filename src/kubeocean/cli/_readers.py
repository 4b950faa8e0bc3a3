"""Options of read-only commands: the clusters to read, names of objects, and their completion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._clusters import reach

if TYPE_CHECKING:
    from kubeocean.inspect.status.reading import StatusReader
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.runtime.objects import Key

__all__ = [
    "AskOption",
    "BindingArgument",
    "PatienceOption",
    "Where",
    "checked_name",
    "complete_binding",
    "complete_node",
    "complete_place",
    "complete_pod",
    "key_of",
]

_ANSWER_S: Final = 10.0  # limit of one request to the computing cluster
_COMPLETION_S: Final = 2.0  # limit of a completion, for which a person waits

PatienceOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        metavar="SECONDS",
        help="Maximum time to wait for the response of a worker's API server.",
    ),
]
AskOption = Annotated[
    bool,
    typer.Option(
        "--workers/--no-workers",
        help="Read the worker clusters as well, or only the computing cluster.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Options of a command that name the installation to read, and how to read it."""

    kubeconfig: str
    context: str
    label_domain: str = "kubeocean.io"
    ask_workers: bool = True
    patience_s: float = 5.0

    def reader(self, stack: AsyncExitStack) -> StatusReader:
        """Return a reader of the status of the clusters, which the stack closes.

        :raises ConfigError: an option is invalid.
        """
        from kubeocean.inspect.status.reading import StatusReader
        from kubeocean.process.flags import domain
        from kubeocean.runtime.client import Client
        from kubeocean.runtime.retries import RetryPolicy
        from kubeocean.runtime.transport import HttpTransport

        known = domain(self.label_domain, "--label-domain")
        computing = Client(
            HttpTransport(self._access()),
            cluster="computing",
            timeout_s=_ANSWER_S,
            retry=RetryPolicy(attempts=2),
        )
        stack.push_async_callback(computing.close)
        reader = StatusReader(
            computing, domain=known, patience_s=self.patience_s, ask_workers=self.ask_workers
        )
        stack.push_async_callback(reader.close)
        return reader

    def _access(self) -> AccessSource:
        from kubeocean.errors import ConfigError

        given = (("--kubeconfig", self.kubeconfig), ("--context", self.context))
        options = " ".join(f"{option} {value}" for option, value in given if value)
        try:
            return reach(self.kubeconfig, self.context)
        except ConfigError as error:
            message = str(error)
            if self.kubeconfig:
                message = message.removeprefix(f"--kubeconfig {self.kubeconfig}: ")
            raise ConfigError(message, source=options) from error


def key_of(
    argument: str,
    option: str,
    *,
    default: str = "default",
    field: str = "pod",
    options: str = "--namespace",
) -> Key:
    """Return the key of the object in the argument `[NAMESPACE/]NAME` and the namespace option.

    :raises ConfigError: they name two namespaces, or no object can have the name.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.objects import Key

    namespace, slash, name = argument.rpartition("/")
    if slash and (not namespace or "/" in namespace):
        raise ConfigError("must be NAME or NAMESPACE/NAME", field=field, value=argument)
    if slash and option not in ("", namespace):
        message = f"is not in {option}, the value of {options}"
        raise ConfigError(message, field=field, value=argument)
    checked_name(name, field)
    if namespace:
        checked_name(namespace, field)
    elif option:
        checked_name(option, options)
    return Key(namespace or option or default, name)


def checked_name(written: str, field: str) -> str:
    """Return a name of an object as a user wrote it, if an object can have it.

    :raises ConfigError: the name is empty, too long, or has other characters.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.selectors import check_subdomain

    if not written:
        raise ConfigError("must not be empty", field=field, value=written)
    try:
        check_subdomain(written)
    except ConfigError:
        message = (
            "is not a valid name of an object, which has lowercase letters, digits, dashes and"
            " dots, at most 253 characters"
        )
        raise ConfigError(message, field=field, value=written) from None
    return written


def complete_binding(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of bindings that begin with `incomplete`; none if they cannot be read in
    time.
    """
    return _complete(ctx, incomplete, lambda reader: reader.names())


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of virtual nodes that begin with `incomplete`."""
    return _complete(ctx, incomplete, lambda reader: reader.node_names())


def complete_pod(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of pods that begin with `incomplete`, in the namespace of `--namespace`."""
    namespace = ctx.params.get("namespace") or "default"
    return _complete(ctx, incomplete, lambda reader: reader.pod_names(namespace))


def complete_place(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of bindings and virtual nodes that begin with `incomplete`."""

    async def names(reader: StatusReader) -> list[str]:
        return [*await reader.names(), *await reader.node_names()]

    return _complete(ctx, incomplete, names)


def _complete(
    ctx: typer.Context, incomplete: str, names: Callable[[StatusReader], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from kubeocean.errors import KubeoceanError

    where = Where(
        kubeconfig=ctx.params.get("kubeconfig") or "", context=ctx.params.get("context") or ""
    )

    async def read() -> list[str]:
        async with AsyncExitStack() as stack, asyncio.timeout(_COMPLETION_S):
            return await names(where.reader(stack))

    try:
        all_names = asyncio.run(read())
    except (KubeoceanError, OSError, TimeoutError):
        return []
    return [name for name in all_names if name.startswith(incomplete)]


BindingArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Show this binding only.", autocompletion=complete_binding),
]
