"""Leftovers: what a binding that is deleted still has in the clusters, besides its nodes."""

from __future__ import annotations

from kubeocean.leasing.report import counted
from kubeocean.syncer.topdown.dependents import Dependents
from kubeocean.syncer.topdown.logconfigs import LogConfigs
from kubeocean.syncer.topdown.pods import Pods
from kubeocean.syncer.topdown.services import Services

__all__ = ["Leftovers"]


class Leftovers:
    """Pods, copies and mirrors of one binding."""

    def __init__(
        self, pods: Pods, dependents: Dependents, services: Services, logconfigs: LogConfigs
    ) -> None:
        self._pods = pods
        self._dependents = dependents
        self._services = services
        self._logconfigs = logconfigs

    def drain(self, *, confirmed: bool) -> None:
        """Have everything removed; above only, if the worker is not waited for any more."""
        self._dependents.drain(confirmed=confirmed)

    @property
    def marks(self) -> int:
        """How many objects still bear something of ours on account of a copy."""
        return self._dependents.remaining()

    def describe(self) -> str:
        """What is there, as far as we know; empty if nothing is."""
        there = (
            (len(self._pods.remaining()), "pod"),
            (self._dependents.remaining(), "copied object"),
            (self._services.remaining(), "mirrored Service"),
            (self._logconfigs.remaining(), "copied LogConfig"),
        )
        return ", ".join(
            f"{counted(number, what)} in the worker" for number, what in there if number
        )
