"""`kubeocean explain`: why a node, a pod, a binding or a fleet's object is in its state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli._fleet import OnlyHubContextOption, OnlyHubOption
from kubeocean.cli._output import FormatOption, OutputFormat, print_document
from kubeocean.cli._readers import (
    checked_name,
    complete_binding,
    complete_node,
    complete_pod,
    key_of,
)
from kubeocean.cli._run import run
from kubeocean.cli._views import print_page

if TYPE_CHECKING:
    from kubeocean.inspect.explain.reading import ExplainReader
    from kubeocean.inspect.explain.report import Explanation

__all__ = ["binding", "explain", "member", "node", "placement", "pod", "work"]

_NOT_EXPLAINED: Final = 1
_LONG_S: Final = 2.0  # after which a line names the reason of the delay


ZoneOption = Annotated[
    str,
    typer.Option(
        "--time-zone",
        metavar="ZONE",
        help="Time zone of policies that set none: the value of the syncer's --time-zone.",
    ),
]

explain = typer.Typer(
    name="explain",
    help="Explain which rule decided the state of a node, a pod, a binding or a fleet's object.",
    no_args_is_help=True,
)


@explain.command()
def node(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a virtual node, or of a node of a worker.", autocompletion=complete_node
        ),
    ],
    binding: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name of the ClusterBinding of the worker that has the node."
        ),
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain why a node is lent or not, how much it offers, and whether it takes pods."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.inspect.explain.node import explain_node

        return explain_node(await reader.node(name, binding))

    _explain(explained, kubeconfig, context, label_domain, time_zone, output)


@explain.command()
def pod(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]NAME",
            help="Name of a pod of the computing cluster.",
            autocompletion=complete_pod,
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace of the pod (default: default)."
        ),
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain why a pod waits, where it runs, or why it is gone."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.inspect.explain.pod import explain_pod

        return explain_pod(await reader.pod(key_of(name, namespace)))

    _explain(explained, kubeconfig, context, label_domain, time_zone, output)


@explain.command()
def binding(
    name: Annotated[
        str, typer.Argument(help="Name of a ClusterBinding.", autocompletion=complete_binding)
    ],
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    time_zone: ZoneOption = "UTC",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain whether a binding works, and if not, the first reason."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.inspect.explain.binding import explain_binding

        return explain_binding(await reader.binding_details(name))

    _explain(explained, kubeconfig, context, label_domain, time_zone, output)


@explain.command()
def placement(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]NAME",
            help="Name of a ClusterResourcePlacement or, with --namespace, of a ResourcePlacement.",
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace of the ResourcePlacement."
        ),
    ] = "",
    kubeconfig: OnlyHubOption = "",
    context: OnlyHubContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain whether a placement is complete, and why each cluster is picked or not."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.inspect.explain.fleet_reading import read_placement
        from kubeocean.inspect.explain.placement import explain_placement

        key = key_of(name, namespace, default="", field="placement")
        return explain_placement(await read_placement(reader.computing, key))

    _explain(explained, kubeconfig, context, label_domain, "UTC", output, option="--hub-kubeconfig")


@explain.command()
def work(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]NAME",
            help="Name of a Work; without a namespace it is looked for in all members' namespaces.",
        ),
    ],
    member: Annotated[
        str,
        typer.Option("--member", metavar="NAME", help="Name of the member that the Work is for."),
    ] = "",
    kubeconfig: OnlyHubOption = "",
    context: OnlyHubContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain whether a member has applied a Work, and the state of each object in it."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.api.fleet.names import member_namespace
        from kubeocean.inspect.explain.fleet_reading import find_work, read_work
        from kubeocean.inspect.explain.work import explain_work

        if member:
            checked_name(member, "--member")
        namespace = member_namespace(member) if member else ""
        key = key_of(name, namespace, default="", field="work", options="--member")
        if not key.namespace:
            key = await find_work(reader.computing, key.name)
        return explain_work(await read_work(reader.computing, key))

    _explain(explained, kubeconfig, context, label_domain, "UTC", output, option="--hub-kubeconfig")


@explain.command()
def member(
    name: Annotated[str, typer.Argument(help="Name of a MemberCluster.")],
    kubeconfig: OnlyHubOption = "",
    context: OnlyHubContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Explain whether a member of a fleet has joined and is healthy, and if not, why."""

    async def explained(reader: ExplainReader) -> Explanation:
        from kubeocean.inspect.explain.fleet_reading import read_member
        from kubeocean.inspect.explain.member import explain_member

        checked_name(name, "NAME")
        return explain_member(await read_member(reader.computing, name))

    _explain(explained, kubeconfig, context, label_domain, "UTC", output, option="--hub-kubeconfig")


def _explain(
    explained: Callable[[ExplainReader], Awaitable[Explanation]],
    kubeconfig: str,
    context: str,
    label_domain: str,
    time_zone: str,
    output: OutputFormat,
    *,
    option: str = "--kubeconfig",
) -> None:
    """Read, explain and print; exit code 1 if the object does not exist or was not read.

    `option` is the command-line option that names the kubeconfig.
    """

    async def work() -> None:
        from datetime import UTC

        from kubeocean.inspect.explain.reading import ExplainReader
        from kubeocean.inspect.explain.report import ExplanationRule, document, page
        from kubeocean.leasing.windows import zone_of
        from kubeocean.process.flags import domain
        from kubeocean.worker_access.client import retrying_client

        async with AsyncExitStack() as stack:
            source = reach(kubeconfig, context, option=option)
            computing = retrying_client(source, "computing", stack)
            zone = UTC if time_zone == "UTC" else zone_of(time_zone, local=UTC, field="--time-zone")
            known = domain(label_domain, "--label-domain")
            reader = ExplainReader(computing, zone=zone, domain=known)
            stack.push_async_callback(reader.close)
            with _waiting(quiet=output is not OutputFormat.TEXT):
                explanation = await explained(reader)
        if output is OutputFormat.TEXT:
            print_page(page(explanation))
        else:
            print_document(document(explanation), output)
        if explanation.rule in (ExplanationRule.NOT_FOUND, ExplanationRule.NOT_READ):
            raise typer.Exit(_NOT_EXPLAINED)

    run(work)


@contextmanager
def _waiting(*, quiet: bool) -> Iterator[None]:
    """Print, after two seconds, that the command waits for answers of API servers."""
    import asyncio

    message = "waiting for the answers of the clusters …"
    loop = asyncio.get_running_loop()
    timer = loop.call_later(_LONG_S, lambda: None if quiet else typer.echo(message, err=True))
    try:
        yield
    finally:
        timer.cancel()
