"""The summary that `kubeocean up` prints: the clusters, and commands to try."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING

from kubeocean.cli._run import command_line

if TYPE_CHECKING:
    from pathlib import Path

    from kubeocean.local.ocean import Shape
    from kubeocean.local.state import ClusterState

__all__ = ["Guide"]


@dataclass(frozen=True, slots=True)
class Guide:
    """Text that `kubeocean up` prints at its end: the local clusters, and commands to copy."""

    shape: Shape
    clusters: tuple[ClusterState, ...]
    kubeconfig: Path
    kubectl: str

    def table(self) -> list[str]:
        """Return a header and one line for each cluster."""
        rows = [("CONTEXT", "SERVER", "NODES")]
        for number, cluster in enumerate(self.clusters):
            virtual = " (virtual)" if number == 0 and cluster.nodes else ""
            rows.append((cluster.context, cluster.server, f"{cluster.nodes}{virtual}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]

    def commands(self) -> list[str]:
        """Return shell commands that show the clusters, in the order in which to try them."""
        commands = [f"export KUBECONFIG={quote(str(self.kubeconfig))}"]
        if not self.shape.product:
            return [
                *commands,
                self._kubectl("--context", self.clusters[-1].context, "get", "nodes"),
            ]
        commands.append(self._kubectl("get", "nodes"))
        if self._lends:
            commands += self._sample_commands()
        domain, own = self.shape.domain, self._domain_option()
        manager = ("-n", domain.system_namespace, "logs", f"deploy/{domain.manager}", "--tail", "3")
        commands += [self._kubectl(*manager), command_line("status", *own)]
        if self._lends:
            commands.append(command_line("explain", "node", self._first_node(), *own))
        if self.shape.fleet and self.shape.workers:
            commands.append(command_line("fleet", "clusters"))
        return [*commands, command_line("doctor", *own)]

    def _domain_option(self) -> tuple[str, ...]:
        """Return the option by which commands find labels of another domain than the default."""
        from kubeocean.api.group import DEFAULT

        domain = self.shape.domain
        return ("--label-domain", domain.name) if domain != DEFAULT else ()

    @property
    def _lends(self) -> bool:
        return bool(self.shape.workers and self.shape.nodes)

    def _sample_commands(self) -> list[str]:
        first = self.clusters[1].context
        commands = [
            self._kubectl("get", "pods", "-o", "wide"),
            self._kubectl("--context", first, "get", "pods", "-n", self._mount_namespace()),
        ]
        if self.shape.real_nodes:  # simulated nodes run no containers
            commands.append(self._kubectl("logs", "deploy/sample", "--tail", "3"))
            commands.append(self._kubectl("exec", "deploy/sample", "--", "hostname"))
        return commands

    def _mount_namespace(self) -> str:
        return self.shape.domain.worker_namespace

    def _first_node(self) -> str:
        from kubeocean.api.naming import virtual_node

        kind = "real" if self.shape.real_nodes else "sim"
        return virtual_node(self.clusters[1].context, f"{kind}-0")

    def _kubectl(self, *words: str) -> str:
        program = "kubectl" if which("kubectl") else quote(self.kubectl)
        return " ".join((program, *words))
