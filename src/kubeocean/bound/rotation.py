"""Rotation: the worker's credentials, kept true to the Secret that the binding names.

One Secret is watched, and no other. What is written into it reaches the next request to the worker;
if the binding comes to name another Secret, that one is watched instead. A Secret that is deleted,
or that makes no sense, changes nothing.

Who may edit a binding need not be one who may read Secrets, and we may read those of all
namespaces. So a binding is not followed into any namespace: only into the one that it named at the
start, the system namespace, and those that a flag names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Final

from kubeocean.api.binding import ClusterBinding, SecretReference
from kubeocean.api.group import Domain
from kubeocean.bound.workers import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics

__all__ = ["ANY_NAMESPACE", "Rotation", "kubeconfig_namespaces"]

ANY_NAMESPACE: Final = "*"

_PATIENCE_S: Final = 5.0

_log = get_logger(__name__)


def kubeconfig_namespaces(
    reference: SecretReference, named: Set[str], domain: Domain
) -> frozenset[str]:
    """Where a binding's Secret may be, if it is `reference` at the start and a flag has `named`
    some namespaces.

    :raises ConfigError: it is in none of those already.
    """
    usual = {domain.system_namespace}
    if not named:
        return frozenset(usual | {reference.namespace})
    allowed = frozenset(usual | named)
    if not allowed & {ANY_NAMESPACE, reference.namespace}:
        said = "names a Secret outside the namespaces of --kubeconfig-namespaces"
        raise ConfigError(said, field="spec.secretRef", value=_shown(reference))
    return allowed


class Rotation:
    """Tells an access of its Secret; `refused` is told when a binding names one that is in none of
    the `namespaces`, `taken` when there is another way to the worker."""

    def __init__(
        self,
        client: Client,
        access: SecretAccess,
        reference: SecretReference,
        *,
        namespaces: Set[str],
        refused: Callable[[ClusterBinding, str], None] | None = None,
        taken: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._access = access
        self._reference = reference
        self._named = reference
        self._namespaces = namespaces
        self._refused = refused
        self._taken = taken
        self._clock = clock or RealClock()
        self._metrics = metrics or Metrics()
        self._informed = asyncio.Event()
        self._moved = asyncio.Event()

    @property
    def reference(self) -> SecretReference:
        """The Secret that is followed."""
        return self._reference

    def follow(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """A handler for the informer of the binding."""
        if new is None or new.spec.secret_ref in (self._named, SecretReference()):
            return
        self._named = new.spec.secret_ref
        if not self._namespaces & {ANY_NAMESPACE, self._named.namespace}:
            self._refuse(new)
            return
        if self._named == self._reference:
            return
        self._reference = self._named
        _log.info("Binding names another Secret", secret=_shown(self._reference))
        self._moved.set()

    def _refuse(self, binding: ClusterBinding) -> None:
        named, used = _shown(self._named), _shown(self._reference)
        _log.warning("Did not follow binding to another namespace", secret=named, used=used)
        if self._refused is not None:
            self._refused(
                binding,
                f"did not take the kubeconfig of Secret {named}, which is in a namespace that "
                f"--kubeconfig-namespaces does not name; still using {used}",
            )

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
        informer.on_change(self._changed)
        return informer

    def _changed(self, old: KubeconfigSecret | None, new: KubeconfigSecret | None) -> None:
        before = self._access.current()
        self._access.follow(old, new)
        if self._access.current() is not before:
            self._taken()

    async def _note(self, informer: Informer[KubeconfigSecret]) -> None:
        await informer.synced()
        self._informed.set()


def _shown(reference: SecretReference) -> str:
    return f"{reference.namespace}/{reference.name}"
