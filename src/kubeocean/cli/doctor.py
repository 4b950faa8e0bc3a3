"""`kubeocean doctor`: checks of the computing cluster and of all workers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Final

import typer

from kubeocean.cli._clusters import (
    ContextOption,
    DomainOption,
    KubeconfigOption,
    ManagementContextOption,
    ManagementOption,
    reach,
)
from kubeocean.cli._output import FormatOption, OutputFormat, print_document, progress_for
from kubeocean.cli._readers import complete_binding
from kubeocean.cli._run import run
from kubeocean.cli._views import print_page

__all__ = ["doctor"]

_ERRORS: Final = 3
_NOT_EXAMINED: Final = 4  # a part, while the others have no errors


def doctor(
    binding: Annotated[
        str,
        typer.Argument(
            metavar="BINDING",
            help="Examine the worker of this binding only.",
            autocompletion=complete_binding,
        ),
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    management_kubeconfig: ManagementOption = "",
    management_context: ManagementContextOption = "",
    label_domain: DomainOption = "kubeocean.io",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Find problems in all clusters, and print a remedy for each. Nothing is changed.

    Exit code 0: every check was made, without errors; 3: there are errors. Warnings count only with
    --strict. 4: parts that a check needs could not be read, and the other checks found no errors;
    1: not even the bindings could be read; 2: wrong arguments.
    """

    async def work() -> None:
        from kubeocean.api.group import Domain
        from kubeocean.inspect.doctor.diagnosis import diagnose, document, page
        from kubeocean.inspect.doctor.reading import DoctorReader
        from kubeocean.worker_access.client import retrying_client

        async with AsyncExitStack() as stack:
            computing = retrying_client(reach(kubeconfig, context), "computing", stack)
            management = None
            if management_kubeconfig:
                access = reach(
                    management_kubeconfig, management_context, option="--management-kubeconfig"
                )
                management = retrying_client(access, "management", stack)
            reader = DoctorReader(computing, management=management, domain=Domain(label_domain))
            stack.push_async_callback(reader.close)
            subject = f"binding {binding}" if binding else "all clusters"
            with progress_for(quiet=output is not OutputFormat.TEXT).task(f"examining {subject}"):
                snapshot = await reader.read(binding)
        diagnosis = diagnose(snapshot)
        if output is OutputFormat.TEXT:
            print_page(page(diagnosis))
        else:
            print_document(document(diagnosis, strict=strict), output)
        healthy = diagnosis.healthy(strict=strict)
        if not healthy:
            raise typer.Exit(_NOT_EXAMINED if healthy is None else _ERRORS)

    run(work)
