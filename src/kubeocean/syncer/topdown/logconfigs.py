"""LogConfigs: what a log agent collects of pods, said to the worker's agent as well.

Only where both clusters know the kind, which is asked at the start and now and then; elsewhere
nothing is watched. The key is a LogConfig of the computing cluster. Its copies are changed in
place, and removed when they are not wanted any more, or with it; the computing cluster is asked
before that happens. No finalizer holds the original: one that an earlier implementation put there
is taken off.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import TRUE
from kubeocean.api.ownership import Ids
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.runtime.outcomes import Done, Outcome, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.filedwrites import FiledWrites
from kubeocean.syncer.forge import logconfigs as forge
from kubeocean.syncer.forge.logconfigs import LOG_CONFIGS, Copied
from kubeocean.syncer.topdown.watching import Fills, Switched, synced
from kubeocean.syncer.world import World

__all__ = ["LogConfigs"]

WORKERS: Final = 2
ASK_EVERY_S: Final = 600.0
_PATH: Final = f"/apis/{LOG_CONFIGS.group}/{LOG_CONFIGS.version}"
_VIRTUAL: Final = "virtual"

_log = get_logger(__name__)


class LogConfigs:
    """The copies of one binding."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ids = Ids(world.binding_name, world.cluster_id, world.computing_id)
        domain = world.domain
        self.sources = Informer(
            world.computing, LOG_CONFIGS, keep_raw=True, clock=world.clock, metrics=world.metrics
        )
        self.copies = Informer(
            world.worker,
            LOG_CONFIGS,
            labels=f"{domain.managed_by}={domain.product},"
            f"{domain.synced_by(world.cluster_id)}={TRUE}",
            indexes={_VIRTUAL: lambda copy: (forge.virtual_of(copy, domain).name,)},
            keep_raw=True,
            clock=world.clock,
            metrics=world.metrics,
        )
        self._switch = Switched(self.sources, self.copies)
        self._writes = FiledWrites()  # by original
        self.controller: Controller[Key] = Controller(
            f"virtuallogconfig-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            on_stuck=self._tell,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (self, self._switch, self.controller)
        world.bindings.on_change(self._binding_changed)
        world.reach.on_change(self._reached)
        self.sources.on_change(self._source_changed)
        self.copies.on_change(self._copy_changed)

    @property
    def on(self) -> bool:
        """Whether both clusters have the kind."""
        return self._switch.on

    def remaining(self) -> int:
        """How many copies there are, as far as we know."""
        return sum(self._is_ours(each) for each in self.copies.items())

    # Whether there is anything to do at all

    async def run(self) -> None:
        """Ask both clusters for the kind, until cancelled."""
        while True:
            served = await self._served()
            if served is not None and served != self.on:
                _log.info("Copying LogConfigs" if served else "Not copying LogConfigs")
                self._switch.turn(served)
            await self.world.clock.sleep(ASK_EVERY_S)

    async def _served(self) -> bool | None:
        """Whether both have the kind; None if one does not say."""
        try:
            clusters = (self.world.computing, self.world.worker)
            return all([await _serves(cluster) for cluster in clusters])
        except ApiError as error:
            _log.warning("Could not ask for LogConfigs", error=str(error))
            return None

    # What makes us look

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if old is None or new is None or old.deleting != new.deleting:
            self._enqueue_all()

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue_all()

    def _source_changed(self, old: Untyped | None, new: Untyped | None) -> None:
        self._enqueue(each.key for each in (old, new) if each is not None)

    def _copy_changed(self, old: Untyped | None, new: Untyped | None) -> None:
        copies = (each for each in (old, new) if each is not None)
        self._enqueue(forge.virtual_of(each, self.world.domain) for each in copies)

    def _enqueue_all(self) -> None:
        self._enqueue(each.key for each in self.sources.items())
        self._enqueue(forge.virtual_of(each, self.world.domain) for each in self.copies.items())

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key.name:
                self.controller.enqueue(key)

    async def _caught_up(self, key: Key) -> bool:
        caches: tuple[Fills, ...] = (self.world.bindings, self.sources, self.copies)
        if not await synced(self.world.clock, caches):
            return False
        if not await self._writes.shown(key, self.copies):
            return False
        return await self.sources.caught_up(key)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        binding = world.binding
        if binding is None or not world.reach.answers or not self.on:
            return Done()  # we are called again when that changes
        source = self.sources.get(key)
        copies = self.copies.by(_VIRTUAL, key.name)
        try:
            if source is None or source.deleting or binding.deleting:
                return await self._ensure_gone(key, source, copies)
            return await self._ensure(source, copies)
        except (Invalid, Forbidden) as error:
            return Stuck(BindingEvent.LOG_CONFIG_NOT_COPIED, str(error))

    async def _ensure(self, source: Untyped, copies: list[Untyped]) -> Outcome:
        world = self.world
        wanted = forge.forge(Copied(source, world.mount_namespace, self._ids, world.domain))
        known = {each.name: each for each in copies if self._is_claimed(each, source.name)}
        kept = set()
        for name, body in wanted.items():
            written = await self._ensure_copy(name, body, known, source)
            if written is None:
                message = f"LogConfig {source.name}: somebody else has the name {name}, and another"
                return Stuck(BindingEvent.LOG_CONFIG_NOT_COPIED, message)
            kept.add(written)
        for copy in known.values():
            if copy.name not in kept:
                await self._delete(copy, source.key)
        await self._let_go(source)
        return Done()

    async def _ensure_copy(
        self, name: str, body: Json, known: dict[str, Untyped], source: Untyped
    ) -> str | None:
        """Make one copy what it should be, under its first or its second name; that name."""
        worker, names = self.world.worker, (name, forge.second_name(name, self._ids))
        there = next((known[each] for each in names if each in known), None)
        if there is not None:
            await self._update(there, body, source.key)
            return there.name
        for each in names:
            named = body | {"metadata": body["metadata"] | {"name": each}}
            try:
                made = await worker.create(LOG_CONFIGS, named)
            except AlreadyExists:
                there = await worker.get(LOG_CONFIGS, each, keep_raw=True)
                if not self._is_claimed(there, source.name):
                    continue
                await self._update(there, body, source.key)
            else:
                self._writes.wrote(source.key, self.copies, made)
                _log.info("Copied LogConfig", source=source.name, copy=each)
            return each
        return None

    async def _update(self, there: Untyped, body: Json, source: Key) -> None:
        change = forge.changed(there, body, self.world.domain)
        if change is not None:
            written = await self.world.worker.update(LOG_CONFIGS, change)
            self._writes.wrote(source, self.copies, written)

    async def _ensure_gone(
        self, key: Key, source: Untyped | None, copies: list[Untyped]
    ) -> Outcome:
        binding = self.world.binding
        unbound = binding is None or binding.deleting
        if source is None and not unbound and copies and await self._exists(key):
            return Done()  # the cache is behind, and will show
        for copy in copies:
            # What an earlier implementation made says too little, unless its original is there.
            provable = source is not None and self._is_claimed(copy, key.name)
            if provable or self._is_ours(copy):
                await self._delete(copy, key)
        if source is not None:
            await self._let_go(source)
        return Done()

    async def _let_go(self, source: Untyped) -> None:
        """Take off the finalizer of the earlier implementation: copies are compared, not held."""
        finalizers = source.metadata.finalizers or ()
        theirs = self.world.domain.finalizer_for(self.world.cluster_id)
        if theirs not in finalizers:
            return
        metadata: Json = {
            "uid": source.uid,
            "resourceVersion": source.resource_version,
            "finalizers": [each for each in finalizers if each != theirs],
        }
        with suppress(NotFound):
            patch = MergePatch({"metadata": metadata})
            written = await self.world.computing.patch(LOG_CONFIGS, source.name, patch)
            self.sources.wrote(written)

    # Small questions and writes

    async def _exists(self, key: Key) -> bool:
        """Ask the server about what the cache does not show, before removing for it."""
        try:
            return not (await self.world.computing.get(LOG_CONFIGS, key.name)).deleting
        except NotFound:
            return False

    def _is_ours(self, copy: Untyped) -> bool:
        domain = self.world.domain
        source = forge.virtual_of(copy, domain).name
        return forge.is_ours(copy, source, ids=self._ids, domain=domain)

    def _is_claimed(self, copy: Untyped, source: str) -> bool:
        ids, domain = self._ids, self.world.domain
        ours = forge.is_ours(copy, source, ids=ids, domain=domain)
        return ours or forge.is_takeable(copy, source, ids=ids, domain=domain)

    async def _delete(self, copy: Untyped, source: Key) -> None:
        if copy.deleting:
            return
        with suppress(NotFound, Conflict):  # it is gone, or another one: the cache will show
            await self.world.worker.delete(LOG_CONFIGS, copy.name, uid=copy.uid)
            self._writes.deleted(source, self.copies, copy)
            _log.info("Removed copy of LogConfig", source=source.name, copy=copy.name)

    def _tell(self, key: Key, stuck: Stuck) -> None:
        source = self.sources.get(key)
        if source is not None:
            target = reference(LOG_CONFIGS, source)
            self.world.events.emit(target, "Warning", stuck.reason, stuck.message)


async def _serves(cluster: Client) -> bool:
    try:
        found = await cluster.request_json("GET", _PATH)
    except NotFound:
        return False
    return any(each.get("name") == LOG_CONFIGS.plural for each in found.get("resources") or ())
