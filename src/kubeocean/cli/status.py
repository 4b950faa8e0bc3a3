"""`kubeocean status`: clusters, nodes, policies, pods, and the health of the installation."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli._clusters import ContextOption, DomainOption, KubeconfigOption
from kubeocean.cli._output import OutputFormat, ViewFormatOption, print_document
from kubeocean.cli._readers import AskOption, BindingArgument, PatienceOption, Where
from kubeocean.cli._run import run
from kubeocean.cli._views import print_lines

if TYPE_CHECKING:
    from kubeocean.inspect.status.model import InstallationView

__all__ = ["status"]

_NOT_READ: Final = 1
_UNHEALTHY: Final = 3


def status(
    name: BindingArgument = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running, and show each change.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Time between two reads of the clusters."),
    ] = 2.0,
    workers: AskOption = True,
    timeout: PatienceOption = 5.0,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: ViewFormatOption = OutputFormat.TEXT,
) -> None:
    """Show which nodes are lent, by which policies, until when, and whether all of it works.

    Exit code 0: no problems; 1: bindings, nodes or pods cannot be read, and the parts that were
    read have no problems; 2: wrong arguments; 3: there are problems.
    """

    async def work() -> None:
        installation = Where(
            kubeconfig=kubeconfig,
            context=context,
            label_domain=label_domain,
            ask_workers=workers,
            patience_s=timeout,
        )
        async with AsyncExitStack() as stack:
            reader = installation.reader(stack)
            if watch:
                from kubeocean.cli._live_view import keep_showing

                await keep_showing(lambda: reader.look(name), output, interval_s=interval)
            view = await reader.look(name)
        _show(view, output)
        if not view.health.healthy:
            raise typer.Exit(_NOT_READ if view.health.healthy is None else _UNHEALTHY)

    run(work)


def _show(view: InstallationView, output: OutputFormat) -> None:
    from kubeocean.inspect.status.pages import document, status_page

    if output.is_document:
        print_document(document(view), output)
    else:
        print_lines(status_page(view, wide=output is OutputFormat.WIDE))
