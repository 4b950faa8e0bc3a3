"""Rollout: the objects of a binding, made, followed, repaired and removed.

What the templates want is compared with what is there; only a difference is written, by server-side
apply with our field manager. So a change of a template or of the binding is followed, what somebody
edits or deletes comes back, and what others add stays. What somebody else owns is never touched. A
template that makes no sense changes nothing that runs.

Objects of the earlier implementation are taken over as they stand: same name, same UID, same pods
until the template says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import APP_COMPONENT, DEFAULT, Domain
from kubeocean.errors import (
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
from kubeocean.manager.rendering import KINDS, Component, Wanted
from kubeocean.manager.renderingplans import Plans
from kubeocean.manager.rolloutclaims import claim
from kubeocean.manager.rolloutdrift import drift, fingerprint, fitted, handed_over
from kubeocean.manager.rolloutremoval import Removal
from kubeocean.manager.rolloutviews import (
    Deployment,
    Rolled,
    Side,
    Standing,
    side_of,
)
from kubeocean.manager.rolloutwatching import Watched
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object
from kubeocean.runtime.patches import ApplyPatch, JsonPatch

__all__ = ["LOOK_S", "Rollout"]

LOOK_S: Final = 5.0  # between two looks at the templates; a kubelet needs a minute to mount them
# Asking again does not help until somebody changes something. An API server says InternalError to
# an apply of what does not fit the kind: a text where a number belongs.
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
_SHOWN: Final = 5  # fields that a log line names

_log = get_logger(__name__)


class _Failure(Exception):
    """A side cannot be made as it is wanted."""

    def __init__(self, standing: Standing, reason: str) -> None:
        super().__init__(reason)
        self.standing = standing


@dataclass(slots=True)
class _Account:
    """What one look did."""

    written: list[str] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    deployments: dict[Component, Deployment] = field(default_factory=dict)
    wanted: set[tuple[str, Key]] = field(default_factory=set)
    bound: bool = False  # whether the binding was seen to be there still


class Rollout:
    """The objects of all bindings; `ensure` and `remove` are for one of them."""

    def __init__(
        self,
        client: Client,
        *,
        syncer_templates: Path,
        proxier_templates: Path,
        domain: Domain = DEFAULT,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._domain = domain
        self._clock = clock or RealClock()
        metrics = metrics or Metrics()
        directories = {Component.SYNCER: syncer_templates, Component.PROXIER: proxier_templates}
        self._plans = Plans(directories, domain)
        self._watched = Watched(client, domain=domain, clock=self._clock, metrics=metrics)
        self._removal = Removal(client, self._watched, domain)
        self._template_handlers: list[Callable[[], None]] = []
        self._read_before = False
        # Objects that the server considers as wanted although we see a difference: how they looked.
        self._settled: dict[tuple[str, Key], tuple[str, str]] = {}
        self._reloads = metrics.counter(
            "kubeocean_manager_template_reloads_total", "Times that changed templates were read"
        )
        self._writes = metrics.counter(
            "kubeocean_manager_rollout_writes_total", "Objects applied for bindings", ["kind"]
        )
        for kind in KINDS:
            self._writes.labels(kind=kind)

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with the binding's key whenever one of its objects changed."""
        self._watched.on_change(handler)

    def on_templates(self, handler: Callable[[], None]) -> None:
        """Call `handler` whenever the templates changed: every binding wants `ensure` then."""
        self._template_handlers.append(handler)

    async def run(self) -> None:
        """Watch objects and templates until cancelled."""
        self._refresh()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watched.run())
            while True:
                await self._clock.sleep(LOOK_S)
                self._refresh()

    async def synced(self) -> None:
        """Return once the objects were listed, or when that takes too long."""
        self._refresh()
        await self._watched.synced()

    async def ensure(self, binding: ClusterBinding) -> Rolled:
        """Make all objects of the binding what the templates say, and tell how far they are.

        What cannot be made is a failed side, not an exception.

        :raises ApiError: the server could not be asked, or somebody was quicker; try again.
        """
        self._refresh()
        account = _Account()
        proxier = await self._ensure_side(Component.PROXIER, binding, account)
        syncer = await self._ensure_side(Component.SYNCER, binding, account)
        if not (proxier.failed or syncer.failed):
            await self._prune(binding, account)
        return Rolled(
            syncer=syncer,
            proxier=proxier,
            written=tuple(account.written),
            adopted=tuple(account.adopted),
        )

    def syncers_ready(self, binding: ClusterBinding) -> int:
        """How many syncers of the binding run, as far as they are watched."""
        return side_of(self._running(Component.SYNCER, binding)).ready

    async def remove(self, binding: ClusterBinding) -> list[str]:
        """Delete what is the binding's, in order; names of what is still there.

        Templates are not needed for it.

        :raises ApiError: the server could not be asked; try again.
        """
        self._refresh()
        for component in Component:
            for wanted in self._plans.known(component, binding.name):
                self._settled.pop((wanted.resource.kind, wanted.key), None)
        self._plans.forget(binding.name)
        return await self._removal.remove(binding)

    def syncer_homes(self) -> list[str]:
        """Namespaces in which syncers may run: where the templates say, and where they usually do,
        for templates may have said so before."""
        said = [home for side, home in self._plans.homes() if side is Component.SYNCER]
        return list(dict.fromkeys((self._domain.system_namespace, *said)))

    def _refresh(self) -> None:
        if not self._plans.refresh():
            return
        self._watched.want(
            (KINDS[kind], namespace)
            for _, namespace in self._plans.homes()
            for kind in ("Deployment", "Service")
        )
        if self._read_before:
            self._reloads.inc()
            for handler in self._template_handlers:
                handler()
        self._read_before = True

    # One side

    async def _ensure_side(
        self, component: Component, binding: ClusterBinding, account: _Account
    ) -> Side:
        failure: _Failure | None = None
        try:
            objects = self._plans.objects(component, binding)
        except ConfigError as error:
            objects, failure = (), _Failure(Standing.TEMPLATE, str(error))
        self._watched.want((each.resource, each.key.namespace) for each in objects)
        for wanted in objects:
            account.wanted.add((wanted.resource.kind, wanted.key))
            try:
                await self._ensure_object(wanted, binding, account)
            except _Failure as error:
                failure = failure or error  # the others may still be made
        there = account.deployments.get(component)
        if failure is None:
            return side_of(there)
        there = there or self._running(component, binding)
        return side_of(there, standing=failure.standing, reason=str(failure))

    def _running(self, component: Component, binding: ClusterBinding) -> Deployment | None:
        """The Deployment that a broken template leaves alone, as far as it is watched."""
        kept = {each.key for each in self._plans.known(component, binding.name)}
        for _, there in self._watched.owned_by(binding.uid):
            if isinstance(there, Deployment) and (
                there.key in kept or there.labels.get(APP_COMPONENT) == component
            ):
                return there
        return None

    async def _ensure_object(
        self, wanted: Wanted, binding: ClusterBinding, account: _Account
    ) -> None:
        try:
            there = await self._watched.read(wanted.resource, wanted.key)
            if there is None:
                await self._confirm(binding, account)
                # Without force: should somebody make one just now, his fields are his.
                await self._apply(wanted, ApplyPatch(wanted.body), account)
                return
            claimed = claim(there, binding, self._domain)
            if not claimed.ours:
                self._watched.wait_for(wanted.resource, wanted.key, binding.key)
                raise _Failure(Standing.FOREIGN, f"{wanted.title} {claimed.whose}")
            if isinstance(there, Deployment):
                account.deployments[wanted.component] = there
            if not there.deleting:  # else its end is an event
                await self._repair(wanted, there, account)
        except _REFUSALS as error:
            raise _Failure(Standing.REFUSED, str(error)) from None

    async def _confirm(self, binding: ClusterBinding, account: _Account) -> None:
        """Ask whether a binding is not gone yet before something is made for it: a cache may show
        it for a while longer.

        :raises Conflict: it is gone.
        """
        if account.bound:
            return
        try:
            there = (await self._client.get(CLUSTER_BINDINGS, binding.name)).uid
        except NotFound:
            there = ""
        if there != binding.uid:
            raise Conflict(f"ClusterBinding {binding.name} is gone, and nothing is made for it")
        account.bound = True

    async def _repair(self, wanted: Wanted, there: Object, account: _Account) -> None:
        content = there.content()
        try:
            body = fitted(wanted.body, content)
        except ConfigError as error:
            raise _Failure(Standing.REFUSED, str(error)) from None
        ident = (wanted.resource.kind, wanted.key)
        if self._domain.rollout_digest in there.annotations:
            different = drift(body, content)
            if not different or self._settled.get(ident) == (wanted.digest, fingerprint(content)):
                return
            _log.info("Object differs", object=wanted.title, fields=different[:_SHOWN])
        else:
            await self._take_over(wanted, there, account)
        # The UID is a precondition: what we looked at, and not its successor.
        body = body | {"metadata": body["metadata"] | {"uid": there.uid}}
        answer = await self._apply(wanted, ApplyPatch(body, force=True), account, before=there)
        if answer.resource_version == there.resource_version:
            self._settled[ident] = (wanted.digest, fingerprint(content))

    async def _take_over(self, wanted: Wanted, there: Object, account: _Account) -> None:
        """Make what another manager wrote ours, so that the apply may take some of it away."""
        account.adopted.append(wanted.title)
        _log.info("Adopting object", object=wanted.title, uid=there.uid)
        for left in reversed(range(_ATTEMPTS)):
            try:
                await self._hand_over(wanted, there)
                return
            except Conflict:
                # Most likely its controller told its status.
                fresh = await self._watched.read_fresh(wanted.resource, wanted.key)
                if not left or fresh is None or fresh.uid != there.uid:
                    raise
                there = fresh

    async def _hand_over(self, wanted: Wanted, there: Object) -> None:
        entries = handed_over(there.content(), self._client.field_manager)
        if entries is None:
            return
        steps: list[Json] = [
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            # A precondition: entries of another version say nothing of this one.
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": there.resource_version,
            },
        ]
        key = wanted.key
        with suppress(NotFound):  # then the UID will not hold either
            await self._client.patch(wanted.resource, key.name, JsonPatch(steps), key.namespace)

    async def _apply(
        self,
        wanted: Wanted,
        patch: ApplyPatch,
        account: _Account,
        *,
        before: Object | None = None,
    ) -> Object:
        key = wanted.key
        answer: Object = await self._client.patch(wanted.resource, key.name, patch, key.namespace)
        self._watched.wrote(wanted.resource, answer)
        if isinstance(answer, Deployment):
            account.deployments[wanted.component] = answer
        if before is None or before.resource_version != answer.resource_version:
            account.written.append(wanted.title)
            self._writes.labels(kind=wanted.resource.kind).inc()
            verb = "Created object" if before is None else "Changed object"
            _log.info(verb, object=wanted.title, digest=wanted.digest)
        return answer

    # What no template wants any more

    async def _prune(self, binding: ClusterBinding, account: _Account) -> None:
        for resource, there in list(self._watched.owned_by(binding.uid)):
            mine = self._domain.rollout_digest in there.annotations
            if there.deleting or not mine or (resource.kind, there.key) in account.wanted:
                continue
            try:
                await self._client.delete(
                    resource,
                    there.name,
                    there.namespace,
                    uid=there.uid,
                    resource_version=there.resource_version,
                )
            except (Conflict, NotFound):
                continue  # somebody was quicker, which is an event
            account.written.append(f"{resource.kind} {there.key}")
            _log.info("Removed what no template wants", object=f"{resource.kind} {there.key}")
