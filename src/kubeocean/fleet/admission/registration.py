"""Registration of a hub's admission: certificates, webhook configurations, admission policies.

Only the leader registers. A reconcile compares the stored objects with the settings and writes the
difference; it follows each change of one of these objects, and runs when a certificate is due.
Objects that the settings do not ask for are deleted, also if KubeFleet's hub agent registered them:
API servers would refuse requests because of webhooks that no process serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from kubeocean.api.fleet.names import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    GUARD_RAIL_WEBHOOKS,
    HUB_ACCOUNT,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.fleet.admission.certificates import CertificateSet, renew
from kubeocean.fleet.admission.configurations import configurations
from kubeocean.fleet.admission.policies import POLICY_LABELS, policy_objects
from kubeocean.fleet.admission.settings import AdmissionSettings, WebhookSettings
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, SECRETS_WITH_DATA, SecretWithData
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped

__all__ = ["Registration"]

_GROUP: Final = "admissionregistration.k8s.io"
_MUTATING: Final = Resource(
    _GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, Untyped
)
_VALIDATING: Final = Resource(
    _GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    Untyped,
)
_POLICIES: Final = Resource(
    _GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, Untyped
)
_BINDINGS: Final = Resource(
    _GROUP,
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
    Untyped,
)
_CLUSTER_ROLES: Final = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Object
)
_NAMES: Final = {
    _MUTATING: frozenset({MUTATING_WEBHOOKS}),
    _VALIDATING: frozenset({VALIDATING_WEBHOOKS, GUARD_RAIL_WEBHOOKS}),
    _POLICIES: frozenset(ADMISSION_POLICIES),
    _BINDINGS: frozenset(ADMISSION_POLICY_BINDINGS),
}
_KEY: Final = "admission"
_SERVING_S: Final = 0.1  # between two checks whether this replica's webhook server is ready
_LONGEST_S: Final = 3600.0  # between two reconciles; clocks of machines are set now and then

_log = get_logger(__name__)


class Registration:
    """Reconciles a hub's webhook configurations, certificates and admission policies.

    `serves` returns whether this replica's webhook server is ready: webhooks are registered only
    after that.
    """

    def __init__(
        self,
        client: Client,
        settings: AdmissionSettings,
        *,
        serves: Callable[[], bool],
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._serves = serves
        self._clock = clock or RealClock()
        metrics = metrics or Metrics()
        self._is_registered = False
        self._stored: dict[Resource[Untyped], Informer[Untyped]] = {
            resource: Informer(
                client,
                resource,
                keep=_is_named(names),
                keep_raw=True,
                clock=self._clock,
                metrics=metrics,
            )
            for resource, names in _NAMES.items()
            if resource in _used(settings)
        }
        self._secrets: Informer[SecretWithData] | None = None
        webhooks = settings.webhooks
        if webhooks is not None and not webhooks.certificate_directory:
            self._secrets = Informer(
                client,
                SECRETS_WITH_DATA,
                namespace=webhooks.secret.namespace,
                fields=f"metadata.name={webhooks.secret.name}",
                clock=self._clock,
                metrics=metrics,
            )
        self._controller: Controller[str] = Controller(
            "fleet-admission",
            self.reconcile,
            gate=self._caught_up,
            clock=self._clock,
            metrics=metrics,
        )
        for informer in self._informers:
            informer.on_change(lambda old, new: self._controller.enqueue(_KEY))

    @property
    def ready(self) -> bool:
        """Whether all admission objects have been registered once."""
        return self._is_registered

    @property
    def _informers(self) -> Iterable[Informer[Any]]:
        yield from self._stored.values()
        if self._secrets is not None:
            yield self._secrets

    async def run(self) -> None:
        """Reconcile the admission objects of the hub until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            for informer in self._informers:
                await informer.synced()
            self._controller.enqueue(_KEY)
            group.create_task(self._controller.run())

    async def _caught_up(self, key: str) -> bool:
        """Return whether the caches show all writes of this program."""
        for resource, informer in self._stored.items():
            for name in _NAMES[resource]:
                if not await informer.caught_up(Key("", name)):
                    return False
        webhooks = self._settings.webhooks
        if self._secrets is None or webhooks is None:
            return True
        return await self._secrets.caught_up(webhooks.secret)

    async def reconcile(self, key: str) -> Outcome:
        """Create, update and delete admission objects so that they match the settings."""
        desired = self._policies()
        wait_s = None
        webhooks = self._settings.webhooks
        if webhooks is not None:
            bundle, wait_s = None, _LONGEST_S
            if self._secrets is not None:
                bundle, wait_s = await self._certificates(webhooks, self._secrets)
            if not self._serves():
                return After(_SERVING_S)
            desired += await self._configurations(webhooks, bundle)
        for body in desired:
            await self._apply(body)
        await self._remove_others(desired)
        if not self._is_registered:
            await self._remove_unused()
            names = [body["metadata"]["name"] for body in desired]
            _log.info("Registered admission policies and webhooks", objects=names)
        self._is_registered = True
        return Done() if wait_s is None else After(min(wait_s, _LONGEST_S))

    # Certificates

    async def _certificates(
        self, settings: WebhookSettings, secrets: Informer[SecretWithData]
    ) -> tuple[bytes, float]:
        """Renew certificates that are due, and store them in the Secret.

        Returns the authorities to trust, as PEM, and the seconds until the next renewal.
        """
        key = settings.secret
        stored = secrets.get(key)
        present = CertificateSet.from_data(stored.data) if stored is not None else None
        renewal = renew(present, settings.names, self._clock)
        if renewal.certificates != present:
            secrets.wrote(await self._store(key, stored, renewal.certificates))
        wait = (renewal.next_at - self._clock.now()).total_seconds()
        return renewal.certificates.bundle, max(1.0, wait)

    async def _store(
        self, key: Key, stored: SecretWithData | None, certificates: CertificateSet
    ) -> SecretWithData:
        metadata: Json = {"name": key.name, "namespace": key.namespace}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": metadata,
            "data": certificates.data(),
        }
        if stored is None:
            try:
                written = await self._client.create(SECRETS_WITH_DATA, body)
            except AlreadyExists as error:
                # Another replica was faster; the next reconcile reads its certificates.
                raise Conflict(str(error), status=error.status) from error
        else:
            metadata["resourceVersion"] = stored.resource_version
            metadata["uid"] = stored.uid
            written = await self._client.update(SECRETS_WITH_DATA, body)
        _log.info("Stored certificates of webhooks", secret=str(key))
        return written

    # Objects

    async def _configurations(self, settings: WebhookSettings, bundle: bytes | None) -> list[Json]:
        """Return the desired webhook configurations, with their owner if it exists."""
        owner = await self._owner(settings.namespace)
        documents = configurations(settings.endpoint(bundle), settings.webhooks)
        for document in documents:
            if owner is not None:
                document["metadata"]["ownerReferences"] = [owner]
            if settings.annotations:
                document["metadata"]["annotations"] = settings.annotations
        return documents

    async def _owner(self, namespace: str) -> Json | None:
        """Return a reference to the hub's ClusterRole, or else to its Namespace.

        Webhooks that no process serves refuse requests. A hub that is uninstalled loses its
        ClusterRole: the garbage collector then deletes the configurations, and a replica that still
        runs is not allowed to create them again.
        """
        owners: tuple[tuple[Resource[Any], str], ...] = (
            (_CLUSTER_ROLES, HUB_ACCOUNT),
            (NAMESPACES, namespace),
        )
        for resource, name in owners:
            with suppress(NotFound):
                owner = await self._client.get(resource, name)
                return {
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                }
        return None

    def _policies(self) -> list[Json]:
        policies = self._settings.policies
        return policy_objects(policies) if policies is not None else []

    async def _apply(self, body: Json) -> None:
        resource = _resource(body)
        name = body["metadata"]["name"]
        stored = self._stored[resource].get(Key("", name))
        if stored is not None:
            content = stored.content()
            if _is_as_wanted(content, body):
                return
            if _webhook_names(content) - _webhook_names(body):
                # A server-side apply would keep webhooks in the list that another manager wrote.
                await self._delete(resource, stored)
        applied = await self._client.patch(resource, name, ApplyPatch(body, force=True))
        self._stored[resource].wrote(applied)
        _log.info("Applied admission object", kind=resource.kind, name=applied.name)

    async def _remove_others(self, desired: Iterable[Json]) -> None:
        """Delete stored objects of the registered kinds that are not among `desired`."""
        kept = {(_resource(body), body["metadata"]["name"]) for body in desired}
        for resource, informer in self._stored.items():
            for stored in list(informer.items()):
                if (resource, stored.name) not in kept and _is_removable(resource, stored):
                    await self._delete(resource, stored)

    async def _remove_unused(self) -> None:
        """Delete objects of kinds that are not registered; older API servers lack some kinds."""
        for resource, names in _NAMES.items():
            for name in sorted(names) if resource not in self._stored else ():
                try:
                    stored = await self._client.get(resource, name)
                    if _is_removable(resource, stored):
                        await self._delete(resource, stored)
                except NotFound:
                    continue
                except Forbidden as error:
                    # A hub whose role is older than its program can work without this right.
                    _log.error(
                        "Was not allowed to delete unused admission policy or webhook",
                        error=str(error),
                    )

    async def _delete(self, resource: Resource[Untyped], stored: Untyped) -> None:
        with suppress(NotFound):
            await self._client.delete(resource, stored.name, uid=stored.uid)
        if resource in self._stored:
            self._stored[resource].deleted(stored)
        _log.info("Deleted admission object", kind=resource.kind, name=stored.name)


def _is_named(names: frozenset[str]) -> Callable[[Untyped], bool]:
    return lambda obj: obj.name in names


def _used(settings: AdmissionSettings) -> set[Resource[Untyped]]:
    """Return the kinds of admission objects that the settings require."""
    webhooks = {_MUTATING, _VALIDATING} if settings.webhooks is not None else set()
    return webhooks | ({_POLICIES, _BINDINGS} if settings.policies is not None else set())


def _is_removable(resource: Resource[Untyped], stored: Untyped) -> bool:
    """Whether a hub may delete the object: policies need the fleet's labels, webhooks do not.

    Other programs might choose the same names for policies.
    """
    if resource in (_MUTATING, _VALIDATING):
        return True
    return POLICY_LABELS.items() <= stored.labels.items()


def _resource(body: Json) -> Resource[Untyped]:
    return next(each for each in _NAMES if each.kind == body["kind"])


def _webhook_names(content: Json) -> set[str]:
    return {each["name"] for each in content.get("webhooks") or ()}


def _is_as_wanted(stored: Json, desired: Json) -> bool:
    """Whether a stored object has the spec or webhooks of `desired`, and its metadata."""
    metadata = stored["metadata"]
    for field, value in desired["metadata"].items():
        present = metadata.get(field)
        if isinstance(value, dict):
            if not value.items() <= (present or {}).items():
                return False
        elif present != value:
            return False
    if "spec" in desired:
        return bool(stored.get("spec") == desired["spec"])
    webhooks = [_comparable(each, desired) for each in stored.get("webhooks") or ()]
    return bool(webhooks == desired["webhooks"])


def _comparable(webhook: Json, desired: Json) -> Json:
    """Return a stored webhook, without its `caBundle` if `desired` has none.

    cert-manager injects that field.
    """
    if any("caBundle" in each["clientConfig"] for each in desired["webhooks"]):
        return webhook
    client = {key: value for key, value in webhook["clientConfig"].items() if key != "caBundle"}
    return webhook | {"clientConfig": client}
