"""`kubeocean explain`: why a node, a pod or a binding is as it is, on one page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli.looking import complete_binding, complete_node, complete_pod
from kubeocean.cli.output import Format, FormatOption, print_document
from kubeocean.cli.running import run

if TYPE_CHECKING:
    from kubeocean.explaining.reading import Reader
    from kubeocean.explaining.story import Story
    from kubeocean.runtime.objects import Key

__all__ = ["binding", "explain", "node", "pod", "print_page"]

_NOT_FOUND = 1
_UNUSUAL_S = 2.0


ZoneOption = Annotated[
    str,
    typer.Option(
        "--time-zone", metavar="ZONE", help="Of policies that name none, as for the syncer."
    ),
]

explain = typer.Typer(
    name="explain",
    help="Say why a node, a pod or a binding is as it is: which rule decided, by which figures.",
    no_args_is_help=True,
)


@explain.command()
def node(
    name: Annotated[
        str,
        typer.Argument(help="A virtual node, or a node of a worker.", autocompletion=complete_node),
    ],
    binding: Annotated[
        str, typer.Option(metavar="NAME", help="Whose worker's node is meant.")
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = Format.TEXT,
) -> None:
    """Why a node is lent or not, offers this much, and takes pods or not."""

    async def story(reader: Reader) -> Story:
        from kubeocean.explaining.nodereads import read_node
        from kubeocean.explaining.nodes import explain_node

        return explain_node(await read_node(reader, name, binding))

    _tell(story, kubeconfig, context, label_domain, time_zone, output)


@explain.command()
def pod(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]NAME",
            help="A pod of the computing cluster.",
            autocompletion=complete_pod,
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where it is; else default.")
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = Format.TEXT,
) -> None:
    """Why a pod waits, where it runs, or what became of it."""

    async def story(reader: Reader) -> Story:
        from kubeocean.explaining.podreads import read_pod
        from kubeocean.explaining.pods import explain_pod

        return explain_pod(await read_pod(reader, _key_of(name, namespace)))

    _tell(story, kubeconfig, context, label_domain, time_zone, output)


@explain.command()
def binding(
    name: Annotated[str, typer.Argument(help="A ClusterBinding.", autocompletion=complete_binding)],
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = Format.TEXT,
) -> None:
    """Whether a binding works, and if not, what stands in its way."""

    async def story(reader: Reader) -> Story:
        from kubeocean.explaining.bindingreads import read_binding
        from kubeocean.explaining.bindings import explain_binding

        return explain_binding(await read_binding(reader, name))

    _tell(story, kubeconfig, context, label_domain, time_zone, output)


def _key_of(named: str, namespace: str) -> Key:
    """The pod that is meant by a name, which may say the namespace, too.

    :raises ConfigError: there are two namespaces.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.objects import Key

    said, slash, name = named.rpartition("/")
    if slash and namespace not in ("", said):
        message = f"is not in {namespace}, which --namespace says"
        raise ConfigError(message, field="pod", value=named)
    return Key(said or namespace or "default", name)


def _tell(
    story: Callable[[Reader], Awaitable[Story]],
    kubeconfig: str,
    context: str,
    label_domain: str,
    time_zone: str,
    output: Format,
) -> None:
    """Read, decide and print; exit code 1 if there is no such thing."""

    async def work() -> None:
        from datetime import UTC

        from kubeocean.api.group import Domain
        from kubeocean.bound.sides import patient_client
        from kubeocean.explaining.reading import Reader
        from kubeocean.explaining.story import Rule, document, page
        from kubeocean.leasing.windows import zone_of

        async with AsyncExitStack() as stack:
            computing = patient_client(reach(kubeconfig, context), "computing", stack)
            zone = UTC if time_zone == "UTC" else zone_of(time_zone, local=UTC, field="--time-zone")
            reader = Reader(computing, stack, Domain(label_domain), zone)
            with _patience(quiet=output is not Format.TEXT):
                told = await story(reader)
        if output is Format.TEXT:
            print_page(page(told))
        else:
            print_document(document(told), output)
        if told.rule is Rule.NOT_FOUND:
            raise typer.Exit(_NOT_FOUND)

    run(work)


@contextmanager
def _patience(*, quiet: bool) -> Iterator[None]:
    """Who waits longer than usual is told for what."""
    import asyncio

    said = "waiting for the answers of the clusters …"
    loop = asyncio.get_running_loop()
    timer = loop.call_later(_UNUSUAL_S, lambda: None if quiet else typer.echo(said, err=True))
    try:
        yield
    finally:
        timer.cancel()


def print_page(lines: Iterable[str]) -> None:
    """A result for people. Much of it was said by clusters: a terminal is not to obey it."""
    from kubeocean.view.tables import clean

    for line in lines:
        typer.echo(clean(line))
