"""`kubeocean proxier`: logs, exec and metrics of one binding's virtual nodes."""

from __future__ import annotations

import typer

from kubeocean.cli.processes import run_process

__all__ = ["proxier"]


def proxier(context: typer.Context) -> None:
    """Answer for the virtual nodes of one binding, as their kubelets would."""
    from kubeocean.proxier import process
    from kubeocean.proxier.settings import Settings

    about = "Answers for the virtual nodes of one binding, as their kubelets would."
    run_process("proxier", Settings, process.run, context.args, about=about)
