"""Reader: reads the objects that placements select from the hub.

Only the metadata of selected kinds is watched. A change that may concern the content of a placement
is reported to the handlers of `on_change`. `read` evaluates the selectors against the watched
metadata, and reads only those objects in full whose version it has not read before.

New kinds appear with CustomResourceDefinitions and APIServices: a change of one of these makes the
reader read the server's discovery again. While a placement names a kind that the server does not
have, or has selected objects of such a kind, discovery is also read by a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.errors import ApiError, ConfigError, InternalError, NotFound, ServerTimeout
from kubeocean.fleet.caches import RecentContents
from kubeocean.fleet.selection.kinds import ServedKinds
from kubeocean.fleet.selection.matching import (
    concerns_content,
    matches,
    metadata_document,
    with_digest,
)
from kubeocean.fleet.selection.rules import ApiFilter, NamespaceFilter, is_placeable
from kubeocean.fleet.selection.select import NAMESPACE, HubKinds, Query, queries, selected
from kubeocean.fleet.writes import in_parallel, in_thread
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.components import ServicePart
from kubeocean.runtime.discovery import ApiResource, Discovery
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.informer_pool import BY_NAMESPACE, InformerPool, Need
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICES, Namespace
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import GroupVersionKind, Json, Key, Resource, Untyped

__all__ = ["SelectedObject", "SelectionReader", "SelectionSettings"]

_API_SERVICES: Final = Resource(
    "apiregistration.k8s.io", "v1", "apiservices", "APIService", False, Untyped
)
_ENDPOINTS: Final = GroupVersionKind("", "v1", "Endpoints")
_READABLE: Final = frozenset({"get", "list", "watch"})
_MOST_GETS: Final = 20  # objects of a kind in a namespace; more are listed
_MANY: Final = 200  # objects; cleaning more would block the event loop for too long
_SYNC_S: Final = 10.0  # for the first listing of a kind
_INCOMPLETE_S: Final = 30.0  # for which a definition whose kind is not served delays the first read
_POLL_S: Final = 10.0  # while a placement names an unknown kind
_SETTLE_S: Final = (0.5, 2.0, 5.0)  # a server serves a new kind some time after its definition

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """Which kinds and namespaces may be placed, as the flags of the hub set them."""

    apis: ApiFilter = field(default_factory=ApiFilter)
    namespaces: NamespaceFilter = field(default_factory=NamespaceFilter)
    hub_runs_workloads: bool = False


@dataclass(slots=True)
class _Selection:
    """Kinds and namespaces that a placement selects."""

    queries: dict[GroupVersionKind, list[Query]]
    namespaces: frozenset[str]  # named by Namespace selectors; an empty name stands for all
    names_unknown_kind: bool


class SelectedObject(NamedTuple):
    """A selected object: its cached metadata, and its content if this version was read before."""

    resource: Resource[Untyped]
    metadata: Untyped
    content: bytes | None


class SelectionReader:
    """Reads the objects that placements select, and reports when they may have changed."""

    def __init__(
        self,
        client: Client,
        settings: SelectionSettings | None = None,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._settings = settings or SelectionSettings()
        self._clock = clock or RealClock()
        self._discovery = Discovery(client, clock=self._clock)
        self._kinds = ServedKinds()
        self._began_at: float | None = None  # of the first read: a standby may wait for days
        self._by_resource: dict[Resource[Untyped], GroupVersionKind] = {}
        self._stale = asyncio.Event()
        self._selections: dict[Key, _Selection] = {}
        # Namespaces that are deleted, with their UIDs, until the cache shows the deletion
        self._deleted: dict[str, str] = {}
        self._waiting: set[Key] = set()  # placements for which discovery omits a selected kind
        # By placement, namespaces in which selected objects were deleted
        self._shrunk: dict[Key, set[str]] = {}
        self._handlers: list[Callable[[Key], None]] = []
        # Encoded: decoded objects take several times the memory that the limit allows for
        self._contents: RecentContents[bytes] = RecentContents()
        options: dict[str, Any] = {"clock": self._clock, "metrics": metrics}
        self._pool: InformerPool[Key] = InformerPool(
            client, self._object_changed, prune=with_digest, **options
        )
        self._namespaces: Informer[Namespace] = Informer(
            client, NAMESPACES, metadata_only=True, **options
        )
        self._definitions: Informer[Untyped] = Informer(
            client, CUSTOM_RESOURCE_DEFINITIONS, metadata_only=True, **options
        )
        self._api_services: Informer[Untyped] = Informer(
            client, _API_SERVICES, metadata_only=True, **options
        )
        self._namespaces.on_change(self._namespace_changed)
        self._definitions.on_change(lambda old, new: self._stale.set())
        self._api_services.on_change(lambda old, new: self._stale.set())

    @property
    def parts(self) -> tuple[ServicePart, ...]:
        """Return the informers and loops of the reader, for a service to run."""
        return (
            self._namespaces,
            self._definitions,
            self._api_services,
            ("selected-kinds", self._pool.run),
            ("discovery", self._follow_discovery),
        )

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with each placement whose selection may have changed."""
        self._handlers.append(handler)

    def forget(self, placement: Key) -> None:
        """Stop watching for a deleted placement."""
        self._selections.pop(placement, None)
        self._waiting.discard(placement)
        self._shrunk.pop(placement, None)
        self._pool.need(placement, ())

    def namespace_exists(self, name: str) -> bool:
        """Whether the hub has a namespace that is not being deleted."""
        namespace = self._namespaces.get(Key("", name))
        return namespace is not None and not namespace.deleting

    def cached(self, kind: GroupVersionKind, key: Key) -> SelectedObject | None:
        """Return an object of a kind that a placement selects; None if the cache has none."""
        resource = self._kinds.resources.get(kind)
        if resource is None:
            return None
        informer = self._pool.informer(Need(resource, key.namespace))
        obj = informer.get(key) if informer is not None else None
        if obj is None:
            return None
        return SelectedObject(resource, obj, self._contents.get(obj.uid, obj.resource_version))

    async def read(self, placement: Placement) -> list[Json]:
        """Return the cleaned objects that a placement selects, in their order.

        :raises ConfigError: the selectors are a mistake of the user, or select an object that is
            nested too deeply.
        :raises ApiError: objects cannot be read now, or discovery omits a kind that the placement
            has selected and that may still exist.
        """
        await self._namespaces.synced()
        await self._ensure_kinds()
        self._check_kinds(placement)
        shrunk = self._shrunk.pop(placement.key, set())
        try:
            await self._check_namespaces(shrunk)
            return await self._read(placement, self._hub())
        except BaseException:
            self._shrunk.setdefault(placement.key, set()).update(shrunk)
            raise

    async def _read(self, placement: Placement, hub: HubKinds) -> list[Json]:
        selectors = [document(each) for each in placement.spec.resource_selectors]
        try:
            wanted = queries(selectors, placement.key, hub)
        except ConfigError:
            self._follow(placement, (), hub)  # a new namespace or kind may make the selectors valid
            raise
        self._follow(placement, wanted, hub)
        await self._synced(self._needs(wanted))
        contents, services = await self._contents_of(wanted), self._services(wanted)

        def choose() -> list[Json]:
            return selected(
                [_decoded(resource, raw) for resource, raw in contents],
                hub_runs_workloads=self._settings.hub_runs_workloads,
                services=services,
            )

        return await in_thread(choose, many=len(contents) > _MANY)

    async def _check_namespaces(self, namespaces: Iterable[str]) -> None:
        """Record which of the namespaces are deleted, or being deleted.

        Deletions of objects may be seen before the deletion of their namespace, which comes on
        another watch. A placement must not lose the objects of a namespace one by one.
        """
        for name in filter(None, namespaces):
            cached = self._namespaces.get(Key("", name))
            try:
                is_deleted = (await self._client.get(NAMESPACES, name)).deleting
            except NotFound:
                is_deleted = True
            if is_deleted and cached is not None:
                self._deleted[name] = cached.uid

    def _hub(self) -> HubKinds:
        namespaces = {
            namespace.name: namespace.labels
            for namespace in self._namespaces.items()
            if not namespace.deleting and self._deleted.get(namespace.name) != namespace.uid
        }
        return HubKinds(
            self._kinds.namespaced,
            self._kinds.preferred,
            namespaces,
            self._settings.apis,
            self._settings.namespaces,
        )

    # Watching

    def _follow(self, placement: Placement, wanted: Sequence[Query], hub: HubKinds) -> None:
        by_kind: dict[GroupVersionKind, list[Query]] = {}
        for query in wanted:
            by_kind.setdefault(query.kind, []).append(query)
        selectors = [
            (GroupVersionKind(each.group, each.version, each.kind), each.name)
            for each in placement.spec.resource_selectors
        ]
        self._selections[placement.key] = _Selection(
            by_kind,
            frozenset(name for kind, name in selectors if kind == NAMESPACE),
            any(hub.apis.allows(kind) and kind not in hub.kinds for kind, _ in selectors),
        )
        self._pool.need(placement.key, self._needs(wanted))

    def _needs(self, wanted: Iterable[Query]) -> set[Need]:
        needs: set[Need] = set()
        for query in wanted:
            resource = self._kinds.resources.get(query.kind)
            if resource is None:
                continue
            needs.add(Need(resource, query.namespace))
            if query.kind == _ENDPOINTS:
                needs.add(Need(SERVICES, query.namespace))
        return needs

    async def _synced(self, needs: Iterable[Need]) -> None:
        informers = [self._pool.informer(need) for need in needs]
        # Not by truth: an informer without objects is false
        missing = [each for each in informers if each is not None and not each.has_synced]
        if not missing:
            return
        try:
            await within(
                self._clock,
                _SYNC_S,
                lambda: asyncio.gather(*(informer.synced() for informer in missing)),
            )
        except TimeoutError:
            kinds = ", ".join(
                sorted(str(each.scope.resource) for each in missing if not each.has_synced)
            )
            raise ServerTimeout(f"selected kinds could not be listed: {kinds}") from None

    def _object_changed(
        self, resource: Resource[Untyped], old: Untyped | None, new: Untyped | None
    ) -> None:
        if not concerns_content(old, new):
            return
        kind = self._by_resource.get(resource)
        subject = new if new is not None else old
        if kind is None or subject is None:
            return
        for owner in list(self._pool.owners(resource, subject.namespace)):
            selection = self._selections.get(owner)
            wanted = selection.queries.get(kind, ()) if selection else ()
            if any(
                obj is not None and matches(query, obj) for query in wanted for obj in (old, new)
            ):
                if new is None or new.deleting:
                    namespace = subject.name if kind == NAMESPACE else subject.namespace
                    self._shrunk.setdefault(owner, set()).add(namespace)
                self._report(owner)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if old is not None and new is not None and _is_same(old, new):
            return
        subject = new if new is not None else old
        assert subject is not None
        if new is None or new.deleting or self._deleted.get(new.name) != new.uid:
            self._deleted.pop(subject.name, None)
        for placement, selection in list(self._selections.items()):
            if placement.namespace == subject.name or selection.namespaces & {"", subject.name}:
                self._report(placement)

    def _report(self, placement: Key) -> None:
        for handler in self._handlers:
            handler(placement)

    # Kinds

    async def _follow_discovery(self) -> None:
        while True:
            try:
                await within(self._clock, _POLL_S, self._stale.wait)
            except TimeoutError:
                if self._waiting or any(
                    each.names_unknown_kind for each in self._selections.values()
                ):
                    await self._refresh()
                continue
            self._stale.clear()
            for delay_s in _SETTLE_S:
                await self._clock.sleep(delay_s)
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            changed = await self._discovery.refresh()
        except ApiError as error:
            _log.warning("Failed to discover the kinds that the hub serves", error=str(error))
            return
        for placement in tuple(self._waiting):
            self._report(placement)
        if not changed:
            return
        before = self._kinds.resources.keys()
        self._take(await self._discovery.resources())
        if before == self._kinds.resources.keys():
            return
        for placement, selection in list(self._selections.items()):
            if (
                selection.names_unknown_kind
                or selection.namespaces  # all kinds in it are selected
                or any(kind not in self._kinds.resources for kind in selection.queries)
            ):
                self._report(placement)

    async def _ensure_kinds(self) -> None:
        """Read discovery before its first use.

        :raises ServerTimeout: the server does not offer all of its kinds yet.
        """
        await self._definitions.synced()
        await self._api_services.synced()
        if not self._kinds.resources:
            self._take(await self._discovery.resources())
        if self._began_at is None:
            self._began_at = self._clock.monotonic()
        if self._clock.monotonic() - self._began_at > _INCOMPLETE_S:
            return
        if self._kinds.undiscovered(_names(self._definitions)):
            await self._discovery.refresh()
            self._take(await self._discovery.resources())
        if missing := self._kinds.undiscovered(_names(self._definitions)):
            raise ServerTimeout(
                f"the hub does not serve all selected kinds yet: {', '.join(missing)}"
            )

    def _check_kinds(self, placement: Placement) -> None:
        """Refuse to select for a placement while a kind of its objects is not read.

        Discovery is read by a timer until then, and the placement is reported after each read.

        :raises ServerTimeout: discovery omits a kind that may still exist.
        """
        selected = dict.fromkeys(
            GroupVersionKind(each.group, each.version, each.kind)
            for each in placement.status.selected_resources
        )
        self._waiting.discard(placement.key)
        if unread := self._unread(selected):
            self._waiting.add(placement.key)
            kinds = ", ".join(f"{each.kind} of {each.group or 'core'}" for each in unread)
            raise ServerTimeout(
                "the API server of the hub does not serve kinds that the placement selected before:"
                f" {kinds}; its objects stay until they are served"
            )

    def _unread(self, kinds: Iterable[GroupVersionKind]) -> list[GroupVersionKind]:
        return self._kinds.unread(kinds, _names(self._definitions), _names(self._api_services))

    def _take(self, served: Iterable[ApiResource]) -> None:
        self._kinds = self._kinds.updated(
            (each.untyped() for each in served if each.verbs >= _READABLE),
            _names(self._definitions),
            _names(self._api_services),
        )
        self._by_resource = {each: kind for kind, each in self._kinds.resources.items()}

    # Content

    async def _contents_of(self, wanted: Iterable[Query]) -> list[tuple[Resource[Untyped], bytes]]:
        """Return the encoded objects that the queries select; repeated if several select one."""
        chosen: list[tuple[Resource[Untyped], Untyped]] = []
        for query in wanted:
            resource = self._kinds.resources.get(query.kind)
            if resource is None:
                continue  # its definition was deleted since
            informer = self._pool.informer(Need(resource, query.namespace))
            if informer is not None:
                chosen += [
                    (resource, obj)
                    for obj in self._candidates(informer, query)
                    if self._may_place(resource, obj)
                ]
        contents = {
            (resource, obj.key): self._contents.get(obj.uid, obj.resource_version)
            for resource, obj in chosen
        }
        contents |= await self._read_all([key for key, held in contents.items() if held is None])
        encoded: list[tuple[Resource[Untyped], bytes]] = []
        for resource, obj in chosen:
            content = contents[resource, obj.key]
            if content is None:
                # Deleted, and its event follows; or the server does not serve the kind just now
                raise ServerTimeout(f"{resource} {obj.key} could not be read")
            encoded.append((resource, content))
        return encoded

    @staticmethod
    def _candidates(informer: Informer[Untyped], query: Query) -> list[Untyped]:
        if query.name:
            named = informer.get(Key(query.namespace, query.name))
            return [named] if named is not None else []
        namespace = query.namespace
        listed = informer.by(BY_NAMESPACE, namespace) if namespace else informer.items()
        return [obj for obj in listed if matches(query, obj)]

    def _may_place(self, resource: Resource[Untyped], obj: Untyped) -> bool:
        return is_placeable(
            metadata_document(resource.api_version, resource.kind, obj),
            hub_runs_workloads=self._settings.hub_runs_workloads,
            services=(),
        )

    async def _read_all(
        self, missing: Iterable[tuple[Resource[Untyped], Key]]
    ) -> dict[tuple[Resource[Untyped], Key], bytes]:
        groups: dict[Need, set[Key]] = {}
        for resource, key in missing:
            groups.setdefault(Need(resource, key.namespace), set()).add(key)
        read: dict[tuple[Resource[Untyped], Key], bytes] = {}

        def keep(resource: Resource[Untyped], obj: Untyped) -> None:
            if not obj.raw:
                raise _too_deep(resource, obj.key)
            read[resource, obj.key] = raw = bytes(obj.raw)
            self._contents.put(obj.uid, obj.resource_version, raw, len(raw))

        async def get(one: tuple[Resource[Untyped], Key]) -> None:
            resource, key = one
            try:
                keep(resource, await self._client.get(resource, *reversed(key), keep_raw=True))
            except NotFound:
                return
            except InternalError as error:
                if isinstance(error.__cause__, RecursionError):
                    raise _too_deep(resource, key) from error
                raise

        singles: list[tuple[Resource[Untyped], Key]] = []
        for need, keys in groups.items():
            if len(keys) <= _MOST_GETS:
                singles += [(need.resource, key) for key in keys]
                continue
            async for page in self._client.pages(need.resource, need.namespace, keep_raw=True):
                for obj in page.items:
                    if obj.key in keys:
                        keep(need.resource, obj)
        await in_parallel(get, singles)
        return read

    def _services(self, wanted: Iterable[Query]) -> frozenset[Key]:
        """Return the Services in namespaces whose Endpoints are selected."""
        informers = [
            self._pool.informer(Need(SERVICES, query.namespace))
            for query in wanted
            if query.kind == _ENDPOINTS
        ]
        return frozenset(obj.key for each in informers if each is not None for obj in each.items())


def _decoded(resource: Resource[Untyped], raw: bytes) -> Json:
    """Decode an object, and add apiVersion and kind, which items of a list lack."""
    content: Json = msgspec.json.decode(raw)
    return content | {"apiVersion": resource.api_version, "kind": resource.kind}


def _too_deep(resource: Resource[Untyped], key: Key) -> ConfigError:
    """Return the error for an object that the decoder cannot read; its owner can change it."""
    return ConfigError(
        f"{resource} {key} is nested too deeply to be placed; change the placement's"
        " resourceSelectors so that they do not select it, or reduce its nesting"
    )


def _is_same(old: Namespace, new: Namespace) -> bool:
    return (old.labels, old.deleting) == (new.labels, new.deleting)


def _names(informer: Informer[Untyped]) -> set[str]:
    return {obj.name for obj in informer.items()}
