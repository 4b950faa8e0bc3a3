"""`kubeocean proxier`: the process that serves logs, exec and metrics of virtual nodes."""

from __future__ import annotations

import typer

from kubeocean.cli._processes import run_process

__all__ = ["proxier"]


def proxier(context: typer.Context) -> None:
    """Run the proxier of one ClusterBinding: serve the kubelet API of its virtual nodes."""
    from kubeocean.proxier import process
    from kubeocean.proxier.settings import ProxierSettings

    about = "Runs the proxier of one ClusterBinding: serves the kubelet API of its virtual nodes."
    run_process("proxier", ProxierSettings, process.run, context.args, about=about)
