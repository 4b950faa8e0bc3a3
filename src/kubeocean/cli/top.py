"""`kubeocean top`: resources lent, used and free."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Final

import typer

from kubeocean.cli._clusters import ContextOption, DomainOption, KubeconfigOption
from kubeocean.cli._output import OutputFormat, ViewFormatOption, print_document
from kubeocean.cli._readers import BindingArgument, Where
from kubeocean.cli._run import run
from kubeocean.cli._views import print_lines

__all__ = ["top"]

_NOT_READ: Final = 1


def top(
    name: BindingArgument = "",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Show one row for each virtual node.")
    ] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: ViewFormatOption = OutputFormat.TEXT,
) -> None:
    """Show the resources that are lent, requested by pods and free, per cluster and in total.

    Only the computing cluster is read. Exit code 1: bindings, nodes or pods cannot be read.
    """

    async def work() -> None:
        from kubeocean.inspect.status.pages import top_document, top_page

        installation = Where(
            kubeconfig=kubeconfig, context=context, label_domain=label_domain, ask_workers=False
        )
        async with AsyncExitStack() as stack:
            view = await installation.reader(stack).look(name)
        if output.is_document:
            print_document(top_document(view, nodes=nodes), output)
        else:
            print_lines(top_page(view, nodes=nodes, wide=output is OutputFormat.WIDE))
        if view.why_not_read("nodes", "pods"):
            raise typer.Exit(_NOT_READ)

    run(work)
