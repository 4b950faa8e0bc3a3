"""Rotation: the worker's credentials, kept true to the Secret that the binding names.

One Secret is watched, and no other. What is written into it reaches the next request to the worker;
if the binding comes to name another Secret, that one is watched instead. A Secret that is deleted,
or that makes no sense, changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kubeocean.api.binding import ClusterBinding, SecretReference
from kubeocean.bound.workers import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics

__all__ = ["Rotation"]

_PATIENCE_S: Final = 5.0

_log = get_logger(__name__)


class Rotation:
    """Tells an access of its Secret."""

    def __init__(
        self,
        client: Client,
        access: SecretAccess,
        reference: SecretReference,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._access = access
        self._reference = reference
        self._clock = clock or RealClock()
        self._metrics = metrics or Metrics()
        self._informed = asyncio.Event()
        self._moved = asyncio.Event()

    def follow(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """A handler for the informer of the binding."""
        if new is None or new.spec.secret_ref in (self._reference, SecretReference()):
            return
        self._reference = new.spec.secret_ref
        _log.info("Binding names another Secret", secret=_shown(self._reference))
        self._moved.set()

    async def run(self) -> None:
        """Watch the Secret until cancelled."""
        while True:
            # No await between these two: a move that comes later must not be forgotten.
            self._moved.clear()
            informer = self._informer()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(informer.run()),
                    group.create_task(self._note(informer)),
                ]
                await self._moved.wait()
                for task in tasks:
                    task.cancel()

    async def informed(self) -> None:
        """Return once the Secret was read, or when that takes too long: who may not watch it can
        still work with what he got."""
        try:
            await within(self._clock, _PATIENCE_S, self._informed.wait)
        except TimeoutError:
            secret = _shown(self._reference)
            _log.warning("Could not watch Secret of worker yet", secret=secret)

    def _informer(self) -> Informer[KubeconfigSecret]:
        informer = Informer(
            self._client,
            KUBECONFIG_SECRETS,
            namespace=self._reference.namespace,
            fields=f"metadata.name={self._reference.name}",
            clock=self._clock,
            metrics=self._metrics,
        )
        informer.on_change(self._access.follow)
        return informer

    async def _note(self, informer: Informer[KubeconfigSecret]) -> None:
        await informer.synced()
        self._informed.set()


def _shown(reference: SecretReference) -> str:
    return f"{reference.namespace}/{reference.name}"
