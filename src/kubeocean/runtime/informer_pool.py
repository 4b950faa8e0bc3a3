"""InformerPool: metadata-only informers of kinds that are known only at run time.

Owners state which resources they need, in which namespaces. The pool runs one informer for each
resource: in one namespace as long as all needs are in that namespace, else in all namespaces. An
informer that no owner needs any more is closed after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Resource, Untyped

__all__ = ["BY_NAMESPACE", "InformerPool", "Need"]

OwnerT = TypeVar("OwnerT", bound=Hashable)
PoolHandler: TypeAlias = Callable[[Resource[Untyped], Untyped | None, Untyped | None], None]

BY_NAMESPACE: Final = "namespace"  # index of all informers of a pool
LINGER_S: Final = 60.0


class Need(NamedTuple):
    """Need of a pool's owner: a resource in one namespace; without a namespace, in all of them."""

    resource: Resource[Untyped]
    namespace: str = ""


@dataclass(slots=True)
class _Open:
    """Informer of a pool that runs, or will run when the pool does."""

    informer: Informer[Untyped]
    task: asyncio.Task[None] | None = None
    unneeded_since: float | None = None


class InformerPool(Generic[OwnerT]):
    """Metadata-only informers, which run while an owner needs them.

    `on_change(resource, old, new)` is called as the handler of an informer is; `prune` returns the
    part of an object that is kept.
    """

    def __init__(
        self,
        client: Client,
        on_change: PoolHandler,
        *,
        prune: Callable[[Untyped], Untyped] | None = None,
        linger_s: float = LINGER_S,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._prune = prune
        self._linger_s = linger_s
        self._clock = clock or RealClock()
        self._metrics = metrics or Metrics()
        self._needs: dict[Resource[Untyped], dict[str, set[OwnerT]]] = {}
        self._owned: dict[OwnerT, frozenset[Need]] = {}
        self._open: dict[Need, _Open] = {}
        self._group: asyncio.TaskGroup | None = None

    def need(self, owner: OwnerT, needs: Iterable[Need]) -> None:
        """Replace the set of resources and namespaces that an owner needs to have watched."""
        wanted, held = frozenset(needs), self._owned.get(owner, frozenset())
        if wanted:
            self._owned[owner] = wanted
        else:
            self._owned.pop(owner, None)
        for each in wanted - held:
            self._needs.setdefault(each.resource, {}).setdefault(each.namespace, set()).add(owner)
        for each in held - wanted:
            namespaces = self._needs[each.resource]
            namespaces[each.namespace].discard(owner)
            if not namespaces[each.namespace]:
                del namespaces[each.namespace]
            if not namespaces:
                del self._needs[each.resource]
        for resource in {each.resource for each in wanted ^ held}:
            self._adjust(resource)

    def informer(self, need: Need) -> Informer[Untyped] | None:
        """Return an informer of the needed resource and namespace, a synced one if there is one."""
        candidates = [
            self._open[each].informer for each in (Need(need.resource), need) if each in self._open
        ]
        return next(
            (each for each in candidates if each.has_synced), candidates[0] if candidates else None
        )

    def owners(self, resource: Resource[Untyped], namespace: str) -> set[OwnerT]:
        """Return the owners that need the objects of a resource in a namespace."""
        needs = self._needs.get(resource, {})
        return needs.get("", set()) | (needs.get(namespace, set()) if namespace else set())

    async def run(self) -> None:
        """Run the informers until cancelled, and close those that no owner needs."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for opened in self._open.values():
                self._start(opened)
            try:
                while True:
                    await self._clock.sleep(self._linger_s / 4)
                    self._close_unneeded()
            finally:
                self._group = None
                for opened in self._open.values():
                    if opened.task is not None:
                        opened.task.cancel()
                self._open.clear()

    def _adjust(self, resource: Resource[Untyped]) -> None:
        """Open the informer that serves all needs of a resource, and mark its other informers as
        unneeded."""
        namespaces = self._needs.get(resource, {})
        wanted: Need | None = None
        if namespaces:
            wanted = Need(resource, next(iter(namespaces)) if len(namespaces) == 1 else "")
            if wanted not in self._open:
                self._open[wanted] = opened = _Open(self._informer_of(wanted))
                self._start(opened)
        now = self._clock.monotonic()
        for need, opened in self._open.items():
            if need.resource == resource:
                opened.unneeded_since = None if need == wanted else opened.unneeded_since or now

    def _informer_of(self, need: Need) -> Informer[Untyped]:
        informer = Informer(
            self._client,
            need.resource,
            namespace=need.namespace,
            indexes={BY_NAMESPACE: lambda obj: (obj.namespace,)},
            prune=self._prune,
            metadata_only=True,
            clock=self._clock,
            metrics=self._metrics,
        )
        informer.on_change(lambda old, new: self._changed(need, old, new))
        return informer

    def _changed(self, need: Need, old: Untyped | None, new: Untyped | None) -> None:
        opened = self._open.get(need)
        if opened is not None and opened.unneeded_since is None:
            self._on_change(need.resource, old, new)

    def _start(self, opened: _Open) -> None:
        if self._group is not None and opened.task is None:
            opened.task = self._group.create_task(opened.informer.run())

    def _close_unneeded(self) -> None:
        limit = self._clock.monotonic() - self._linger_s
        for need, opened in list(self._open.items()):
            if opened.unneeded_since is not None and opened.unneeded_since <= limit:
                del self._open[need]
                if opened.task is not None:
                    opened.task.cancel()
