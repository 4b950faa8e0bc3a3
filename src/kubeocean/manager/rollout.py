"""Applies, repairs and deletes the objects of bindings: syncer, proxier, and objects they need.

The rendered templates are compared with the stored objects; differences are written by server-side
apply. So changes of a template or of the binding are applied, edits and deletions by others are
reverted, and fields that others add stay. Foreign objects are never written, and an invalid
template changes no running object.

Objects of the earlier implementation are adopted in place: they keep name, UID and pods until the
template differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding, SecretNamespaces
from kubeocean.api.group import APP_COMPONENT, DEFAULT, Domain
from kubeocean.errors import (
    ApiError,
    BadRequest,
    ConfigError,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
)
from kubeocean.manager.rendering import (
    ACCOUNT_KINDS,
    KINDS,
    RenderedObject,
    Renderer,
    RolloutComponent,
)
from kubeocean.manager.rollout_drift import (
    drift,
    fingerprint,
    keep_replicas,
    keep_selector,
    transfer_fields,
)
from kubeocean.manager.rollout_removal import RolloutRemoval
from kubeocean.manager.rollout_state import (
    ComponentPhase,
    ComponentState,
    RolloutResult,
    component_state,
)
from kubeocean.manager.rollout_watch import RolloutInformers, ownership_of
from kubeocean.manager.secret_grants import SecretGrants
from kubeocean.runtime.client import ApplyPatch, Client, JsonPatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import DEPLOYMENTS, Deployment
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object

__all__ = ["TEMPLATE_PERIOD_S", "Rollout"]

TEMPLATE_PERIOD_S: Final = 5.0  # between two reads; a kubelet takes a minute to update a mount
# Errors that a retry does not solve. An API server answers InternalError to an apply of an object
# that does not fit its kind, such as a text where a number belongs.
_REFUSALS: Final = (
    BadRequest,
    Forbidden,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
)
_ATTEMPTS: Final = 5
_LOGGED_FIELDS: Final = 5
_ACCOUNT: Final = "ServiceAccount"

_log = get_logger(__name__)


class _Failure(Exception):
    """Raised if the objects of a component (syncer or proxier) cannot be applied."""

    def __init__(self, phase: ComponentPhase, reason: str) -> None:
        super().__init__(reason)
        self.phase = phase


@dataclass(slots=True)
class _Progress:
    """The objects that one rollout of a binding has written, adopted and rendered so far."""

    written: list[str] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    deployments: dict[RolloutComponent, Deployment] = field(default_factory=dict)
    desired: set[tuple[str, Key]] = field(default_factory=set)
    confirmed: bool = False  # whether the binding was read and exists


class Rollout:
    """Applies and deletes the objects of bindings: syncers, proxiers, and objects they need.

    `client` is a client of the cluster in which syncers and proxiers run. If that is a management
    cluster, `computing` is a client of the computing cluster.
    """

    def __init__(
        self,
        client: Client,
        *,
        syncer_templates: Path,
        proxier_templates: Path,
        computing: Client | None = None,
        domain: Domain = DEFAULT,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._computing = computing or client
        self._domain = domain
        self._clock = clock or RealClock()
        metrics = metrics or Metrics()
        directories = {
            RolloutComponent.SYNCER: syncer_templates,
            RolloutComponent.PROXIER: proxier_templates,
        }
        self._plans = Renderer(directories, domain, owned=computing is None)
        self._watched = RolloutInformers(client, domain=domain, clock=self._clock, metrics=metrics)
        self._removal = RolloutRemoval(client, self._computing, self._watched, domain)
        self._reserved: Callable[[], Collection[str]] = frozenset
        # In a management cluster all syncers have the shared account, which reads all Secrets.
        self._grants = (
            SecretGrants(
                client, self._reserved_namespaces, domain=domain, clock=self._clock, metrics=metrics
            )
            if computing is None
            else None
        )
        self._template_handlers: list[Callable[[], None]] = []
        if self._grants is not None:
            self._grants.informer.on_listed(self._notify)
        self._read_before = False
        # Objects that an apply did not change although they differ: template digest and
        # fingerprint.
        self._unchanged: dict[tuple[str, Key], tuple[str, str]] = {}
        self._reloads = metrics.counter(
            "kubeocean_manager_template_reloads_total", "Reads of changed templates"
        )
        self._writes = metrics.counter(
            "kubeocean_manager_rollout_writes_total", "Objects applied for bindings", ["kind"]
        )
        for kind in KINDS:
            self._writes.labels(kind=kind)

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with the binding's key whenever one of its objects changed."""
        self._watched.on_change(handler)
        if self._grants is not None:
            self._grants.on_change(handler)

    def reserve(self, namespaces: Callable[[], Collection[str]]) -> None:
        """Set the namespaces in which no syncer is granted Secrets, except by its own roles."""
        self._reserved = namespaces

    def _reserved_namespaces(self) -> Collection[str]:
        """Return the namespaces of syncers and proxiers, and those of `reserve`."""
        rolled_out = (namespace for _, namespace in self._plans.namespaces())
        return {*self._reserved(), self._domain.system_namespace, *rolled_out}

    def on_templates(self, handler: Callable[[], None]) -> None:
        """Call `handler` when each binding needs `ensure`: after the templates changed, and after
        RoleBindings of syncers were listed.
        """
        self._template_handlers.append(handler)

    async def run(self) -> None:
        """Watch objects and templates until cancelled."""
        self._refresh()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watched.run())
            if self._grants is not None:
                group.create_task(self._grants.informer.run())
            while True:
                await self._clock.sleep(TEMPLATE_PERIOD_S)
                self._refresh()

    async def synced(self) -> None:
        """Return once the rolled-out objects were listed, or after a time-out."""
        self._refresh()
        await self._watch_autoscalers()
        await self._watched.synced()
        if self._grants is not None:
            await self._grants.synced()

    async def _watch_autoscalers(self) -> None:
        """Watch autoscalers that an earlier manager process created, so that they can be pruned."""
        resource = KINDS["HorizontalPodAutoscaler"]
        for namespace in {namespace for _, namespace in self._plans.namespaces()}:
            try:
                listing = await self._client.list(
                    resource, namespace, labels=self._watched.selector
                )
            except Forbidden:
                continue  # a manager without this permission has not created any
            except ApiError as error:
                _log.warning("Could not list HorizontalPodAutoscalers", error=str(error))
            else:
                if not listing.items:
                    continue
            self._watched.watch([(resource, namespace)])

    async def ensure(self, binding: ClusterBinding) -> RolloutResult:
        """Apply all objects of the binding, and return the state of its rollout.

        A template or an object that is refused is a failed component, not an exception.

        :raises ApiError: a request failed, or another writer was faster; retry.
        """
        self._refresh()
        progress = _Progress()
        proxier = await self._ensure_component(RolloutComponent.PROXIER, binding, progress)
        syncer = await self._ensure_component(RolloutComponent.SYNCER, binding, progress)
        if not (proxier.failed or syncer.failed):
            ready = proxier.is_ready and syncer.is_ready
            await self._prune(binding, progress, ready=ready)
        return RolloutResult(
            syncer=syncer,
            proxier=proxier,
            secret_namespaces=await self._ensure_grants(binding, syncer),
            written=tuple(progress.written),
            adopted=tuple(progress.adopted),
        )

    async def _ensure_grants(
        self, binding: ClusterBinding, syncer: ComponentState
    ) -> SecretNamespaces:
        """Let the syncer of the binding read Secrets where it needs to; return the namespaces.

        A syncer with a shared account reads Secrets of all namespaces. Grants stay until such a
        syncer is ready: pods of an earlier template need them, and an invalid template names no
        account either.
        """
        unchanged = binding.status.secret_namespaces
        if self._grants is None:
            return unchanged
        rendered = self._plans.known(RolloutComponent.SYNCER, binding.name)
        account = next((each.key for each in rendered if each.resource.kind == _ACCOUNT), None)
        if account is None and not syncer.is_ready:
            return unchanged
        return await self._grants.ensure(binding, account)

    def syncers_ready(self, binding: ClusterBinding) -> int:
        """Return the number of ready syncers of the binding, from the cache."""
        return component_state(self._cached_deployment(RolloutComponent.SYNCER, binding)).ready

    async def remove(self, binding: ClusterBinding) -> list[str]:
        """Delete the binding's objects in order; return titles of those that still exist.

        Accounts and roles stay: terminating pods need them. Templates are not needed.

        :raises ApiError: a request failed; retry.
        """
        self._refresh()
        for component in RolloutComponent:
            for desired in self._plans.known(component, binding.name):
                self._unchanged.pop((desired.resource.kind, desired.key), None)
        self._plans.forget(binding.name)
        return await self._removal.remove(binding)

    async def remove_accounts(self, binding: ClusterBinding) -> list[str]:
        """Delete the binding's accounts and roles; return titles of those that still exist.

        :raises ApiError: a request failed; retry.
        """
        remaining = await self._grants.remove(binding) if self._grants is not None else []
        return [*remaining, *await self._removal.remove_accounts(binding)]

    def syncer_homes(self) -> list[str]:
        """Return the namespaces in which syncers may run.

        These are that of the templates, and the default, which earlier templates may have used.
        """
        named = [
            namespace
            for component, namespace in self._plans.namespaces()
            if component is RolloutComponent.SYNCER
        ]
        return list(dict.fromkeys((self._domain.system_namespace, *named)))

    def _refresh(self) -> None:
        if not self._plans.refresh():
            return
        self._watched.watch(
            (KINDS[kind], namespace)
            for _, namespace in self._plans.namespaces()
            for kind in ("Deployment", "Service")
        )
        if self._read_before:
            self._reloads.inc()
            self._notify()
        self._read_before = True

    def _notify(self) -> None:
        for handler in self._template_handlers:
            handler()

    async def _ensure_component(
        self, component: RolloutComponent, binding: ClusterBinding, progress: _Progress
    ) -> ComponentState:
        failure: _Failure | None = None
        try:
            objects = self._plans.objects(component, binding)
        except ConfigError as error:
            objects, failure = (), _Failure(ComponentPhase.TEMPLATE, str(error))
        self._watched.watch((each.resource, each.key.namespace) for each in objects)
        unfit = False
        for desired in objects:
            kind = desired.resource.kind
            progress.desired.add((kind, desired.key))
            if unfit and kind == DEPLOYMENTS.kind:
                continue  # its new pods could not work
            try:
                await self._ensure_object(desired, binding, progress)
            except _Failure as error:
                failure = failure or error  # the other objects are still applied
                unfit = unfit or kind in ACCOUNT_KINDS
        deployment = progress.deployments.get(component)
        if failure is None:
            return component_state(deployment)
        deployment = deployment or self._cached_deployment(component, binding)
        return component_state(deployment, phase=failure.phase, reason=str(failure))

    def _cached_deployment(
        self, component: RolloutComponent, binding: ClusterBinding
    ) -> Deployment | None:
        """Return a component's Deployment, unchanged by an invalid template, from the cache."""
        kept = {each.key for each in self._plans.known(component, binding.name)}
        for _, stored in self._watched.owned_by(binding.uid):
            if isinstance(stored, Deployment) and (
                stored.key in kept or stored.labels.get(APP_COMPONENT) == component
            ):
                return stored
        return None

    async def _ensure_object(
        self, desired: RenderedObject, binding: ClusterBinding, progress: _Progress
    ) -> None:
        try:
            stored = await self._watched.read(desired.resource, desired.key)
            if stored is None:
                await self._confirm(binding, progress)
                # Without force: an object that another client creates meanwhile keeps its fields.
                await self._apply(desired, ApplyPatch(desired.body), progress)
                return
            ownership = ownership_of(stored, binding, self._domain)
            if not ownership.ours:
                self._watched.notify(desired.resource, desired.key, binding.key)
                raise _Failure(ComponentPhase.FOREIGN, f"{desired.title} {ownership.owner}")
            if isinstance(stored, Deployment):
                progress.deployments[desired.component] = stored
            if not stored.deleting:  # the end of a deletion is an event
                await self._repair(desired, stored, progress)
        except _REFUSALS as error:
            raise _Failure(ComponentPhase.REFUSED, str(error)) from None

    async def _confirm(self, binding: ClusterBinding, progress: _Progress) -> None:
        """Check, once in a rollout, that the API server has the binding: the cache may lag.

        :raises Conflict: the binding is gone.
        """
        if progress.confirmed:
            return
        try:
            uid = (await self._computing.get(CLUSTER_BINDINGS, binding.name)).uid
        except NotFound:
            uid = ""
        if uid != binding.uid:
            raise Conflict(f"cannot roll out ClusterBinding {binding.name}: it was deleted")
        progress.confirmed = True

    async def _repair(self, desired: RenderedObject, stored: Object, progress: _Progress) -> None:
        content = stored.content()
        try:
            body = keep_selector(desired.body, content)
        except ConfigError as error:
            raise _Failure(ComponentPhase.REFUSED, str(error)) from None
        if desired.scale is not None:
            body = keep_replicas(body, content, desired.scale)
        ident = (desired.resource.kind, desired.key)
        if self._domain.rollout_digest in stored.annotations:
            different = drift(body, content)
            if not different or self._unchanged.get(ident) == (
                desired.digest,
                fingerprint(content),
            ):
                return
            _log.info(
                "Found object that differs from its template",
                object=desired.title,
                fields=different[:_LOGGED_FIELDS],
            )
        else:
            await self._take_over(desired, stored, progress)
        # The UID is a precondition: apply to the compared object, not to a successor.
        precondition = {"uid": stored.uid}
        if desired.scale is not None:  # an autoscaler may have set other replicas meanwhile
            precondition["resourceVersion"] = stored.resource_version
        body = body | {"metadata": body["metadata"] | precondition}
        answer = await self._apply(desired, ApplyPatch(body, force=True), progress, before=stored)
        if answer.resource_version == stored.resource_version:
            self._unchanged[ident] = (desired.digest, fingerprint(content))

    async def _take_over(
        self, desired: RenderedObject, stored: Object, progress: _Progress
    ) -> None:
        """Transfer fields of another field manager to ours, so that an apply can remove them."""
        progress.adopted.append(desired.title)
        for left in reversed(range(_ATTEMPTS)):
            try:
                await self._transfer_fields(desired, stored)
                _log.info(
                    "Took over fields of object from another field manager",
                    object=desired.title,
                    uid=stored.uid,
                )
                return
            except Conflict:
                # Most likely a controller wrote the status.
                fresh = await self._watched.read_fresh(desired.resource, desired.key)
                if not left or fresh is None or fresh.uid != stored.uid:
                    raise
                stored = fresh

    async def _transfer_fields(self, desired: RenderedObject, stored: Object) -> None:
        entries = transfer_fields(stored.content(), self._client.field_manager)
        if entries is None:
            return
        steps: list[Json] = [
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            # A precondition: the entries are those of this version.
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": stored.resource_version,
            },
        ]
        key = desired.key
        with suppress(NotFound):  # then the precondition of the apply fails, too
            await self._client.patch(desired.resource, key.name, JsonPatch(steps), key.namespace)

    async def _apply(
        self,
        desired: RenderedObject,
        patch: ApplyPatch,
        progress: _Progress,
        *,
        before: Object | None = None,
    ) -> Object:
        key = desired.key
        answer: Object = await self._client.patch(desired.resource, key.name, patch, key.namespace)
        self._watched.wrote(desired.resource, answer)
        if isinstance(answer, Deployment):
            progress.deployments[desired.component] = answer
        if before is None or before.resource_version != answer.resource_version:
            progress.written.append(desired.title)
            self._writes.labels(kind=desired.resource.kind).inc()
            verb = "Created object" if before is None else "Changed object"
            _log.info(verb, object=desired.title, digest=desired.digest)
        return answer

    async def _prune(self, binding: ClusterBinding, progress: _Progress, *, ready: bool) -> None:
        """Delete objects of the binding that no template contains any more.

        Accounts and roles stay until syncers and proxiers are `ready`: pods of an earlier template
        need them until they have been replaced.
        """
        for resource, stored in list(self._watched.owned_by(binding.uid)):
            if resource.kind in ACCOUNT_KINDS and not ready:
                continue
            applied = self._domain.rollout_digest in stored.annotations
            if stored.deleting or not applied or (resource.kind, stored.key) in progress.desired:
                continue
            try:
                await self._client.delete(
                    resource,
                    stored.name,
                    stored.namespace,
                    uid=stored.uid,
                    resource_version=stored.resource_version,
                )
            except (Conflict, NotFound):
                continue  # changed meanwhile, which is an event
            progress.written.append(f"{resource.kind} {stored.key}")
            _log.info(
                "Deleted object that no template contains", object=f"{resource.kind} {stored.key}"
            )
