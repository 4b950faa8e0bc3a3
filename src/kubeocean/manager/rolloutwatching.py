"""Watching what was rolled out: one informer for each kind and namespace that templates speak of.

The manager may have rights in some namespaces only, so nothing is watched elsewhere, and what is
not watched yet is read when it is needed. Every change is told as the name of the binding whose
object it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from kubeocean.api.group import APP_MANAGED_BY, Domain
from kubeocean.errors import NotFound
from kubeocean.manager.rendering import AnyResource
from kubeocean.manager.rolloutclaims import binding_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object

__all__ = ["Place", "Watched"]

Place: TypeAlias = tuple[AnyResource, str]  # a kind, and a namespace
_Handler: TypeAlias = Callable[[Key], None]

_OWNER: Final = "owner"
_PATIENCE_S: Final = 10.0

_log = get_logger(__name__)


class Watched:
    """The informers, and who waits for what."""

    def __init__(self, client: Client, *, domain: Domain, clock: Clock, metrics: Metrics) -> None:
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._selector = f"{APP_MANAGED_BY}={domain.manager}"
        self._informers: dict[Place, Informer[Any]] = {}
        self._new: asyncio.Queue[Informer[Any]] = asyncio.Queue()
        self._handlers: list[_Handler] = []
        self._waiting: dict[tuple[AnyResource, Key], set[Key]] = {}

    @property
    def selector(self) -> str:
        """What finds everything that was rolled out."""
        return self._selector

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self._informers)

    def on_change(self, handler: _Handler) -> None:
        """Call `handler` with the key of the binding whose object changed."""
        self._handlers.append(handler)

    def want(self, places: Iterable[Place]) -> None:
        """Watch these too, from now on."""
        for place in places:
            if place not in self._informers:
                self._informers[place] = informer = self._informer(place)
                self._new.put_nowait(informer)

    def wait_for(self, resource: AnyResource, key: Key, binding: Key) -> None:
        """Tell this binding too when that object, which is another's, changes."""
        self._waiting.setdefault((resource, key), set()).add(binding)

    async def run(self) -> None:
        """Keep them all true until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task((await self._new.get()).run())

    async def synced(self) -> None:
        """Return once everything was listed, or when that takes too long: who may not watch can
        still ask."""

        async def all_synced() -> None:
            for informer in list(self._informers.values()):
                await informer.synced()

        try:
            await within(self._clock, _PATIENCE_S, all_synced)
        except TimeoutError:
            behind = [f"{r} in {n}" for (r, n), i in self._informers.items() if not i.has_synced]
            _log.warning("Could not watch what was rolled out yet", behind=behind)

    # Reading and writing

    async def read(self, resource: AnyResource, key: Key) -> Object | None:
        """The object with its bytes: as cached, or asked for where the cache does not show it."""
        informer = self._informers.get((resource, key.namespace))
        if informer is not None and informer.has_synced and await informer.caught_up(key):
            cached: Object | None = informer.get(key)
            if cached is not None:
                return cached
        # Labels may be missing, so absence has to be asked for.
        return await self.read_fresh(resource, key)

    async def read_fresh(self, resource: AnyResource, key: Key) -> Object | None:
        """The object as the server has it now."""
        try:
            found: Object = await self._client.get(resource, key.name, key.namespace, keep_raw=True)
        except NotFound:
            return None
        return found

    def wrote(self, resource: AnyResource, obj: Object) -> None:
        """The server answered this to a write of ours."""
        if (informer := self._informers.get((resource, obj.namespace))) is not None:
            informer.wrote(obj)

    def owned_by(self, uid: str) -> Iterator[tuple[AnyResource, Object]]:
        """What a binding owns, as far as it is watched."""
        for (resource, _), informer in self._informers.items():
            for obj in informer.by(_OWNER, uid):
                yield resource, obj

    def _informer(self, place: Place) -> Informer[Any]:
        resource, namespace = place
        informer: Informer[Any] = Informer(
            self._client,
            resource,
            namespace=namespace,
            labels=self._selector,
            indexes={_OWNER: _owner_uids},
            keep_raw=True,
            clock=self._clock,
            metrics=self._metrics,
        )
        informer.on_change(lambda old, new: self._changed(resource, old, new))
        return informer

    def _changed(self, resource: AnyResource, old: Object | None, new: Object | None) -> None:
        concerned: set[Key] = set()
        for obj in (old, new):
            if obj is not None:
                if (owner := binding_of(obj)) is not None:
                    concerned.add(Key("", owner.name))
                concerned |= self._waiting.get((resource, obj.key), set())
        if new is None and old is not None:
            self._waiting.pop((resource, old.key), None)  # who still waits will say so
        for binding in concerned:
            for handler in self._handlers:
                handler(binding)


def _owner_uids(obj: Object) -> tuple[str, ...]:
    owner = binding_of(obj)
    return (owner.uid,) if owner is not None else ()
