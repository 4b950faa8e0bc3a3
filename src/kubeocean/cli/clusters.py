"""Clusters: how commands reach them, and how they print what they would put there."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kubeocean.api.group import Domain
    from kubeocean.installation.applying import Applier, Fate
    from kubeocean.installation.settling import State
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
    "MountOption",
    "Notation",
    "NotationOption",
    "TimeoutOption",
    "WaitOption",
    "applier",
    "give_up",
    "print_objects",
    "reach",
    "settled",
    "tell",
]

NOT_YET: Final = 3  # all was done, and it is not yet what it should be


class Notation(StrEnum):
    """How objects are printed."""

    YAML = "yaml"
    JSON = "json"


KubeconfigOption = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="How to reach the computing cluster.", show_default="$KUBECONFIG"
    ),
]
ComputingOption = Annotated[
    str,
    typer.Option(
        "--computing-kubeconfig",
        metavar="FILE",
        help="How to reach the computing cluster.",
        show_default="$KUBECONFIG",
    ),
]
MountOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Where pods run in the worker.", show_default="kubeocean-worker"
    ),
]
ContextOption = Annotated[
    str, typer.Option(metavar="NAME", help="Which context of it.", show_default="the current one")
]
DomainOption = Annotated[
    str, typer.Option(metavar="DOMAIN", help="The domain of all labels and annotations.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the objects, and ask no cluster anything.")
]
NotationOption = Annotated[
    Notation, typer.Option("--output", "-o", help="How --dry-run prints them.")
]
ForceOption = Annotated[
    bool,
    typer.Option("--force-conflicts", help="Take over fields that somebody else has set."),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Stay until all of it works, and show how far.")
]
TimeoutOption = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait at most.")
]


def reach(kubeconfig: str, context: str = "") -> AccessSource:
    """The way to a cluster that a user has named; credential plugins run, as in kubectl.

    :raises ConfigError: there is none.
    """
    from kubeocean.runtime.credentials import default_access

    return default_access(kubeconfig or None, context or None, environ=os.environ, allow_exec=True)


def applier(
    source: AccessSource, stack: AsyncExitStack, *, cluster: str, domain: Domain, force: bool
) -> Applier:
    """Who puts objects there; closed with the stack."""
    from kubeocean.installation.applying import FIELD_MANAGER, Applier
    from kubeocean.runtime.client import Client
    from kubeocean.runtime.transport import HttpTransport

    client = Client(HttpTransport(source), cluster=cluster, field_manager=FIELD_MANAGER)
    stack.push_async_callback(client.close)
    return Applier(client, domain=domain, force=force)


def print_objects(objects: Mapping[str, Sequence[Json]], notation: Notation) -> None:
    """All of them, for kubectl to read; YAML says of each in which cluster it is made."""
    if notation is Notation.JSON:
        from kubeocean.cli.output import print_json

        print_json({"apiVersion": "v1", "kind": "List", "items": list(chain(*objects.values()))})
        return
    from kubeocean.installation.templates import text

    pages = (f"# {cluster}\n{text(body)}" for cluster in objects for body in objects[cluster])
    typer.echo("---\n".join(pages), nl=False)


def tell(cluster: str, body: Json, fate: Fate) -> None:
    """One line of what was done, on stderr."""
    from kubeocean.installation.parts import title

    typer.echo(f"{cluster}: {title(body)} {fate}", err=True)


async def settled(look: Callable[[], Awaitable[State]], label: str, timeout_s: float) -> State:
    """The last that was seen, once it is as it should be or time is over; shown meanwhile."""
    from kubeocean.cli.output import progress_for
    from kubeocean.installation.settling import settle
    from kubeocean.runtime.clock import RealClock

    with progress_for().task(label) as task:
        state = await settle(look, patience_s=timeout_s, clock=RealClock(), say=task.say)
        if not state.done:
            task.give_up()
        return state


def give_up(what: str, said: str, after_s: float, *, why: str = "", see: str) -> NoReturn:
    """Say that waiting was too long, for what, why, and what shows more; end."""
    told = "; ".join(filter(None, dict.fromkeys((said, why))))
    typer.echo(f"{what}: gave up after {after_s:g} s: {told}", err=True)
    typer.echo(f"All that was asked for is done; to wait on, say the same again. {see}", err=True)
    raise typer.Exit(NOT_YET)
