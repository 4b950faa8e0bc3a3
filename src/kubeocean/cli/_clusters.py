"""Options and functions of the commands that connect to clusters, apply objects and wait."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from kubeocean.cli._output import ManifestFormatOption, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kubeocean.api.group import Domain
    from kubeocean.install.apply import Applier, ApplyResult
    from kubeocean.install.wait import State
    from kubeocean.runtime.credentials import AccessSource
    from kubeocean.runtime.objects import Json

__all__ = [
    "NOT_YET",
    "ComputingOption",
    "ContextOption",
    "DomainOption",
    "DryRunOption",
    "ForceOption",
    "KubeconfigOption",
    "ManagementContextOption",
    "ManagementOption",
    "MountOption",
    "Notation",
    "NotationOption",
    "TimeoutOption",
    "WaitOption",
    "applier",
    "give_up",
    "print_objects",
    "print_result",
    "reach",
    "wait_until_done",
]

NOT_YET: Final = 3  # exit code: all objects were written, and they are not ready yet


Notation = OutputFormat
NotationOption = ManifestFormatOption
KubeconfigOption = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="Path of the computing cluster's kubeconfig.",
        show_default="$KUBECONFIG",
    ),
]
ComputingOption = Annotated[
    str,
    typer.Option(
        "--computing-kubeconfig",
        metavar="FILE",
        help="Path of the computing cluster's kubeconfig.",
        show_default="$KUBECONFIG",
    ),
]
MountOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Namespace of the worker cluster in which pods run.",
        show_default="kubeocean-worker",
    ),
]
ContextOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Name of the kubeconfig context to use.",
        show_default="its current context",
    ),
]
ManagementOption = Annotated[
    str,
    typer.Option(
        "--management-kubeconfig",
        metavar="FILE",
        help="Path of the kubeconfig of the management cluster, in which Kubeocean's programs run.",
        show_default="they run in the computing cluster",
    ),
]
ManagementContextOption = Annotated[
    str,
    typer.Option(
        "--management-context",
        metavar="NAME",
        help="Name of the context of --management-kubeconfig to use.",
        show_default="its current context",
    ),
]
DomainOption = Annotated[
    str, typer.Option(metavar="DOMAIN", help="Domain of Kubeocean's labels and annotations.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the objects without connecting to a cluster.")
]
ForceOption = Annotated[
    bool,
    typer.Option("--force-conflicts", help="Overwrite fields that another field manager owns."),
]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Wait until the change has taken effect, or return once all objects are written.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0.0, metavar="SECONDS", help="Maximum time to wait for the change to take effect."
    ),
]


def reach(kubeconfig: str, context: str = "", *, option: str = "--kubeconfig") -> AccessSource:
    """Return the access of the named kubeconfig context; credential plugins run, as in kubectl.

    `option` is the command-line option that names the kubeconfig.

    :raises ConfigError: the kubeconfig or the context does not exist or is invalid; the error names
        the option.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.credentials import default_access

    try:
        return default_access(
            kubeconfig or None, context or None, environ=os.environ, allow_exec=True
        )
    except ConfigError as error:
        if not kubeconfig:
            raise
        message = str(error).removeprefix(f"{kubeconfig}: ")
        raise ConfigError(message, source=f"{option} {kubeconfig}") from None


def applier(
    source: AccessSource, stack: AsyncExitStack, *, cluster: str, domain: Domain, force: bool
) -> Applier:
    """Return an applier for the cluster; leaving `stack` closes its client."""
    from kubeocean.install.apply import FIELD_MANAGER, Applier
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport

    client = Client(HttpTransport(source), cluster=cluster, field_manager=FIELD_MANAGER)
    stack.push_async_callback(client.close)
    return Applier(client, domain=domain, force=force)


def print_objects(objects: Mapping[str, Sequence[Json]], notation: OutputFormat) -> None:
    """Print objects for `kubectl apply`; in YAML a comment names the cluster of each object."""
    if notation is OutputFormat.JSON:
        from kubeocean.cli._output import print_json

        print_json({"apiVersion": "v1", "kind": "List", "items": list(chain(*objects.values()))})
        return
    from kubeocean.install.templates import text

    pages = (f"# {cluster}\n{text(body)}" for cluster in objects for body in objects[cluster])
    typer.echo("---\n".join(pages), nl=False)


def print_result(cluster: str, body: Json, result: ApplyResult) -> None:
    """Print on stderr whether one object was created, changed, unchanged or deleted."""
    from kubeocean.install.object_parts import title

    typer.echo(f"{cluster}: {title(body)} {result}", err=True)


async def wait_until_done(
    read: Callable[[], Awaitable[State]], label: str, timeout_s: float
) -> State:
    """Show the progress of a wait; return the last state, which is done unless time ran out."""
    from kubeocean.cli._output import progress_for
    from kubeocean.inspect.format import clean
    from kubeocean.install.wait import settle
    from kubeocean.runtime.clock import RealClock

    with progress_for().task(label) as task:
        clock = RealClock()
        # Programs of other clusters wrote parts of the message.
        state = await settle(
            read, patience_s=timeout_s, clock=clock, say=lambda message: task.say(clean(message))
        )
        if not state.done:
            task.give_up()
        return state


def give_up(subject: str, state: str, after_s: float, *, why: str = "", see: str) -> NoReturn:
    """Print that `subject` was not ready in time, with the cause; exit with the code NOT_YET.

    `see` is a command that shows details.
    """
    from kubeocean.errors import printable

    cause = printable("; ".join(filter(None, dict.fromkeys((state, why)))))
    typer.echo(f"{subject}: not ready after {after_s:g} s: {cause}", err=True)
    typer.echo(
        "All objects were written; to wait longer, run the same command again. "
        f"For details run: {see}",
        err=True,
    )
    raise typer.Exit(NOT_YET)
