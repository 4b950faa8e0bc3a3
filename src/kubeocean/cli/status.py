"""`kubeocean status`: clusters, nodes, leases and pods, and whether all is well."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kubeocean.cli.clusters import ContextOption, DomainOption, KubeconfigOption
from kubeocean.cli.looking import AskOption, BindingArgument, PatienceOption, Where
from kubeocean.cli.presenting import Style, StyleOption, present, print_lines
from kubeocean.cli.running import run

if TYPE_CHECKING:
    from kubeocean.view.model import OceanView

__all__ = ["status"]

_UNHEALTHY: Final = 3


def status(
    name: BindingArgument = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay, and show what changes.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long between two looks.")
    ] = 2.0,
    workers: AskOption = True,
    timeout: PatienceOption = 5.0,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: StyleOption = Style.TEXT,
) -> None:
    """Show what is lent, to whom, until when, and whether all is well.

    Exit code 0: it is; 1: that cannot be seen; 2: asked for wrongly; 3: something is not well.
    """

    async def work() -> None:
        where = Where(
            kubeconfig=kubeconfig,
            context=context,
            label_domain=label_domain,
            ask_workers=workers,
            patience_s=timeout,
        )
        async with AsyncExitStack() as stack:
            reader = where.reader(stack)
            if watch:
                from kubeocean.cli.watching import keep_showing

                await keep_showing(lambda: reader.look(name), output, interval_s=interval)
            view = await reader.look(name)
        _show(view, output)
        if not view.health.healthy:
            raise typer.Exit(_UNHEALTHY)

    run(work)


def _show(view: OceanView, style: Style) -> None:
    from kubeocean.view.documents import document
    from kubeocean.view.pages import status_page

    if style.is_document:
        present(document(view), style)
    else:
        print_lines(status_page(view, wide=style is Style.WIDE))
