"""Rotation of a worker's credentials: watches the Secret that the binding names.

Only this Secret is watched. A change is used from the next request to the worker on; if the binding
names another Secret, that Secret is watched instead. A Secret that is deleted or not valid changes
nothing.

Editors of a binding need not have the right to read Secrets, while this process may read those of
all namespaces. So a binding is followed only into the namespace named at the start, the system
namespace, and those of a flag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Final

from kubeocean.api.bindings import ClusterBinding, SecretReference
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS_WITH_DATA, SecretWithData
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.worker_access.credentials import SecretAccess

__all__ = ["ANY_NAMESPACE", "Rotation", "kubeconfig_namespaces"]

ANY_NAMESPACE: Final = "*"

_FIRST_READ_S: Final = 5.0

_log = get_logger(__name__)


def kubeconfig_namespaces(
    reference: SecretReference, named: Set[str], domain: Domain
) -> frozenset[str]:
    """Return the namespaces in which a binding's Secret may be: those that a flag has `named`, else
    that of `reference`; and the system namespace.

    :raises ConfigError: `reference` is in none of these namespaces.
    """
    always = {domain.system_namespace}
    if not named:
        return frozenset(always | {reference.namespace})
    allowed = frozenset(always | named)
    if not allowed & {ANY_NAMESPACE, reference.namespace}:
        message = "names a Secret outside the namespaces of --kubeconfig-namespaces"
        raise ConfigError(message, field="spec.secretRef", value=_full_name(reference))
    return allowed


class Rotation:
    """Watches the Secret of a binding and passes changes to a `SecretAccess`.

    - `refused`: called with a binding that names a Secret in none of the `namespaces`, and a
      message.
    - `taken`: called when the access has changed.
    """

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
        self._secret_read = asyncio.Event()
        self._reference_changed = asyncio.Event()

    @property
    def reference(self) -> SecretReference:
        """The Secret that is watched."""
        return self._reference

    def follow(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """Watch another Secret if the binding names another one; a handler of the binding's
        informer."""
        if new is None or new.spec.secret_ref in (self._named, SecretReference()):
            return
        self._named = new.spec.secret_ref
        if not self._namespaces & {ANY_NAMESPACE, self._named.namespace}:
            self._refuse(new)
            return
        if self._named == self._reference:
            return
        self._reference = self._named
        _log.info(
            "Switched to another kubeconfig Secret of the binding",
            secret=_full_name(self._reference),
        )
        self._reference_changed.set()

    def _refuse(self, binding: ClusterBinding) -> None:
        named, used = _full_name(self._named), _full_name(self._reference)
        _log.warning(
            "Rejected kubeconfig Secret in a namespace that is not allowed, kept the old one",
            secret=named,
            used=used,
        )
        if self._refused is not None:
            self._refused(
                binding,
                f"ignored the kubeconfig of Secret {named}, which is in a namespace that "
                f"--kubeconfig-namespaces does not name; still using {used}",
            )

    async def run(self) -> None:
        """Watch the Secret that the binding names until cancelled."""
        while True:
            # No await between these two: a later change of the reference must not be lost.
            self._reference_changed.clear()
            informer = self._informer()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(informer.run()),
                    group.create_task(self._report_read(informer)),
                ]
                await self._reference_changed.wait()
                for task in tasks:
                    task.cancel()

    async def informed(self) -> None:
        """Return once the watch has read the Secret, or after some seconds: without the right to
        watch the Secret, the credentials read at the start still work."""
        try:
            await within(self._clock, _FIRST_READ_S, self._secret_read.wait)
        except TimeoutError:
            secret = _full_name(self._reference)
            _log.warning("Could not watch kubeconfig Secret of worker in time", secret=secret)

    def _informer(self) -> Informer[SecretWithData]:
        informer = Informer(
            self._client,
            SECRETS_WITH_DATA,
            namespace=self._reference.namespace,
            fields=f"metadata.name={self._reference.name}",
            clock=self._clock,
            metrics=self._metrics,
        )
        informer.on_change(self._changed)
        return informer

    def _changed(self, old: SecretWithData | None, new: SecretWithData | None) -> None:
        before = self._access.current()
        self._access.follow(old, new)
        if self._access.current() is not before:
            self._taken()

    async def _report_read(self, informer: Informer[SecretWithData]) -> None:
        await informer.synced()
        self._secret_read.set()


def _full_name(reference: SecretReference) -> str:
    return f"{reference.namespace}/{reference.name}"
