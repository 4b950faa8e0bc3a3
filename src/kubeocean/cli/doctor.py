"""`kubeocean doctor`: is everything as it should be, on both sides?"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Final

import typer

from kubeocean.cli.clusters import ContextOption, DomainOption, KubeconfigOption, reach
from kubeocean.cli.explain import print_page
from kubeocean.cli.looking import complete_binding
from kubeocean.cli.output import Format, FormatOption, print_document, progress_for
from kubeocean.cli.running import run

__all__ = ["doctor"]

_FOUND: Final = 3


def doctor(
    binding: Annotated[
        str,
        typer.Argument(
            metavar="BINDING",
            help="Of the bindings, only this one.",
            autocompletion=complete_binding,
        ),
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count, too.")] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = Format.TEXT,
) -> None:
    """Look for what is wrong, and say what to do about it. Nothing is changed.

    Exit code 0: nothing is wrong; 3: something is. Warnings count only with --strict.
    1: it could not look; 2: asked for wrongly.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.bound.sides import patient_client
        from kubeocean.doctoring.diagnosing import diagnose
        from kubeocean.doctoring.examining import Examiner
        from kubeocean.doctoring.findings import document, page

        async with AsyncExitStack() as stack:
            computing = patient_client(reach(kubeconfig, context), "computing", stack)
            examiner = Examiner(computing, stack, Domain(label_domain))
            what = f"binding {binding}" if binding else "all clusters"
            with progress_for(quiet=output is not Format.TEXT).task(f"examining {what}"):
                above, below = await examiner.examine(binding)
        diagnosis = diagnose(above, below, examiner.notes.unread)
        if output is Format.TEXT:
            print_page(page(diagnosis))
        else:
            print_document(document(diagnosis, strict=strict), output)
        if not diagnosis.healthy(strict=strict):
            raise typer.Exit(_FOUND)

    run(work)
