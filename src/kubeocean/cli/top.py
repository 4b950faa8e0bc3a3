"""`kubeocean top`: what is lent, used and free."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from kubeocean.cli.clusters import ContextOption, DomainOption, KubeconfigOption
from kubeocean.cli.looking import BindingArgument, Where
from kubeocean.cli.presenting import Style, StyleOption, present, print_lines
from kubeocean.cli.running import run

__all__ = ["top"]


def top(
    name: BindingArgument = "",
    nodes: Annotated[bool, typer.Option("--nodes", help="One row for each virtual node.")] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: StyleOption = Style.TEXT,
) -> None:
    """Show what is lent, what pods request of it, and what is free, per cluster and in all.

    Only the computing cluster is asked. Exit code 1: that cannot be seen.
    """

    async def work() -> None:
        from kubeocean.view.documents import top_document
        from kubeocean.view.tops import top_page

        where = Where(
            kubeconfig=kubeconfig, context=context, label_domain=label_domain, ask_workers=False
        )
        async with AsyncExitStack() as stack:
            view = await where.reader(stack).look(name)
        if output.is_document:
            present(top_document(view, nodes=nodes), output)
        else:
            print_lines(top_page(view, nodes=nodes, wide=output is Style.WIDE))

    run(work)
