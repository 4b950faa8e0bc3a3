"""Replicates the objects of one kind that pods refer to into the worker cluster.

The key is the source. `ensure` returns the name of the copy as soon as the copy exists: a thousand
pods that need the same object cause one read and one mark of the source and one create of the copy.
From then on the copy follows its source, until no pod refers to the source any more or the source
is gone; then the copy is deleted. A source that does not exist is waited for.

`Rules` decides; kinds with copies that depend on other kinds override its methods. Only the
controller of this loop writes copies: callers of `ensure` enqueue the key and wait for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kubeocean.api import naming
from kubeocean.api.ownership import Ownership, copy_ownership
from kubeocean.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.clock import within
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Done, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication import copy_forge as forge
from kubeocean.syncer.replication.copy_forge import Copy, CopyContext, ReplicatedKind, Source
from kubeocean.syncer.replication.existence_watch import ExistenceWatches
from kubeocean.syncer.replication.loop import ReplicationLoop
from kubeocean.syncer.replication.missing import WATCHED_S, Missing
from kubeocean.syncer.replication.referring_pods import PodReferences
from kubeocean.syncer.replication.secret_namespaces import NamespaceRequests
from kubeocean.syncer.replication.sources import MarkedSources
from kubeocean.syncer.replication.store import CopyStore, owned_by, virtual_object
from kubeocean.syncer.replication.sync_back import SyncDirection, direction_of, returned_fields

__all__ = ["LINGER_S", "VOLUME_NAME", "Replicator", "Rules"]

WORKERS: Final = 8
LINGER_S: Final = 10.0  # the next pod of a workload often needs the same copies
VOLUME_NAME: Final = "volume"  # the index of copies by `spec.volumeName`
ANSWER_S: Final = 10.0  # for which a caller waits for a copy at most
_RETRY_S: Final = 30.0  # for causes that no watch reports
_LEGACY_RETRY_S: Final = 1.0
_BOUND: Final = "Bound"
_LEAVING: Final = "is not copied: the binding is being deleted"
# The reasons of events
_COPY_REFUSED: Final = "CopyRefused"
_COPY_NOT_BOUND: Final = "CopyNotBound"
_SYNCED_BACK: Final = "SyncedBack"
_SYNC_CONFLICT: Final = "SyncConflict"
# The likeliest cause of an InternalError is a webhook of the worker that does not answer.
_REFUSALS: Final = (
    BadRequest, Forbidden, Invalid, NotFound, RequestTooLarge, InternalError,
)  # fmt: skip

_log = get_logger(__name__)


class Rules:
    """Decides which sources of one kind are replicated and the content of their copies.

    This base class fits a kind that pods alone refer to and with copies that depend on the source
    alone.
    """

    def __init__(
        self,
        clusters: Clusters,
        kind: ReplicatedKind,
        references: PodReferences,
        replicators: Mapping[str, Replicator],
    ) -> None:
        self.clusters = clusters
        self.kind = kind
        self.references = references
        self.replicators = replicators  # of all kinds, by kind; complete when `connect` is called

    @property
    def replicator(self) -> Replicator:
        """The replicator that these rules belong to."""
        return self.replicators[self.kind.name]

    def connect(self) -> None:
        """Register for changes of other kinds; called when all replicators exist."""

    def synced(self) -> bool:
        """Whether the caches that decisions need are complete: here, of the references of pods."""
        return self.references.synced

    def is_used(self, key: Key) -> bool:
        """Whether a virtual object refers to a source, as far as the caches show."""
        return self.references.is_used((self.kind.name, key))

    def needs_namespace(self, namespace: str) -> bool:
        """Whether a virtual object refers to a source in a namespace, as the caches show."""
        return self.references.uses_namespace(self.kind.name, namespace)

    async def unused(self, key: Key, copy: Copy, since: float) -> bool:
        """Whether no object needs a copy, by lists read from API servers after `since`."""
        return await self.references.unused((self.kind.name, key), since=since)

    def is_referenced(self, key: Key) -> bool:
        """Whether another copy refers to the copy of a source, and must be deleted before it."""
        return False

    async def translate(self, source: Source, name: str) -> Json | Missing:
        """Return the content of the copy of that name, or a Missing with the reason why there is
        none.
        """
        assert self.kind.translate is not None, f"{self.kind.name} needs rules of its own"
        return self.kind.translate(source.content())

    async def amend(self, source: Source, copy: Copy) -> Json | Missing:
        """Return further fields to set on a copy, by JSON pointer, or a Missing."""
        return {}

    async def report(self, source: Source, copy: Copy) -> None:
        """Write the state of a copy to its source; by default, do nothing."""

    def fits(self, source: Source, copy: Copy) -> bool:
        """Whether a pod may use a copy as it is, as far as the caches show."""
        return True

    def is_mounted(self, key: Key, name: str) -> bool:
        """Whether the physical pod of a pod that refers to a source names the copy `name`."""
        pods = self.references.pods((self.kind.name, key))
        ppods = (ppod for pod in pods for ppod in self.clusters.ppods.by("virtual", str(pod)))
        return any(f'"{name}"'.encode() in ppod.raw for ppod in ppods)

    def extra_labels(self, key: Key) -> Mapping[str, str]:
        """Return labels of a copy in addition to those of its source and its owner."""
        return {}

    def copy_name(self, key: Key) -> str:
        """Return the name that the copy of a source has, or will have."""
        replicator = self.replicator
        copies = replicator.copies_of(key)
        return copies[0].name if copies else replicator.first_name(key)


class _Request:
    """A request for a copy; all callers that wait for the same copy get the same answer."""

    __slots__ = ("answer", "answered")

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.answer: str | Missing = ""


@dataclass(slots=True)
class _Record:
    """The replicator's memory of one source."""

    request: _Request | None = None
    missing: Missing | None = None  # the last answer, if no copy was available
    unused_since: float | None = None

    @property
    def is_empty(self) -> bool:
        return self.request is None and self.missing is None and self.unused_since is None


class Replicator(ReplicationLoop[Source, Copy]):
    """Replicates the sources of one kind that pods refer to, for one binding."""

    def __init__(
        self, clusters: Clusters, kind: ReplicatedKind, rules: Rules, *, linger_s: float = LINGER_S
    ) -> None:
        self._marked = MarkedSources(clusters, kind)
        store = CopyStore(
            clusters,
            clusters.worker,
            kind.copies,
            lambda copy: virtual_object(copy, clusters.domain, namespaced=kind.sources.namespaced),
            labels=f"{owned_by(clusters)},!{clusters.domain.service_account_token}",
            namespace=clusters.mount_namespace if kind.copies.namespaced else "",
            indexes={VOLUME_NAME: lambda copy: (copy.spec.volume_name,)},
            prune=partial(forge.digested, kind=kind),
            keep_raw=True,
        )
        super().__init__(clusters, kind.name.lower(), self._marked.cache, store, workers=WORKERS)
        self.kind = kind.name
        self.definition = kind
        self.rules = rules
        self._marked.is_used = self._may_be_used
        self.draining = False
        self._abandoned = False  # draining, and the worker is not waited for any more
        # Namespaces of sources for which a caller has waited in vain, until their caches have
        # synced; "" is all namespaces.
        self._stalled: set[str] = set()
        self._linger_s = linger_s if kind.lingers else 0.0
        self._records: dict[Key, _Record] = {}
        self._handlers: list[Callable[[Key], None]] = []
        self.existence_watches = ExistenceWatches(
            clusters, kind.sources, lambda key: self.enqueue([key])
        )
        self.parts: tuple[Runnable, ...] = (
            self.sources,
            self.copies,
            self.existence_watches,
            self.controller,
        )
        self.follow(self.sources, lambda source: source.key)
        self.follow(self.copies, self.source_of)
        self.requests = self._request_namespaces()

    def _request_namespaces(self) -> NamespaceRequests[Source] | None:
        """Return the requests for namespaces; None if all sources are in one cache."""
        namespaces = self._marked.namespaces
        if namespaces is None:
            return None
        requests = NamespaceRequests(self.clusters, namespaces, self._needs_namespace)
        namespaces.on_listed(self._retry_in)
        requests.on_change(self._retry_in)

        def gone(old: Object | None, namespace: str, new: Object | None) -> None:
            if old is not None and new is None:
                requests.check(namespace)

        namespaces.on_change(lambda old, new: gone(old, old.namespace if old else "", new))
        self.copies.on_change(
            lambda old, new: gone(old, self.source_of(old).namespace if old else "", new)
        )
        self.parts = (*self.parts, requests.controller)
        return requests

    def _needs_namespace(self, namespace: str) -> bool | None:
        """Whether sources of a namespace have to be read; None while the caches do not show that.

        A copy alone is no reason to request a namespace: a worker may put any namespace on a copy.
        It is a reason to keep one that is granted.
        """
        namespaces = self._marked.namespaces
        requested = (key for key, record in self._records.items() if record.request is not None)
        if any(key.namespace == namespace for key in requested):
            return True
        if not self._has_synced():
            return None
        if self.rules.needs_namespace(namespace):
            return True
        if namespaces is None or namespace not in namespaces.namespaces:
            return False
        if not namespaces.has_synced_in(namespace):
            return None
        return any(namespaces.items_in(namespace)) or any(
            self.source_of(copy).namespace == namespace for copy in self.copies.items()
        )

    def _retry_in(self, namespace: str) -> None:
        """Enqueue the sources of a namespace that can be read now, or not any more."""
        if self._marked.has_synced(Key(namespace, "")):
            self._stalled.discard(namespace)
        waiting = {key for key in self._records if key.namespace == namespace}
        copied = {self.source_of(copy) for copy in self.copies.items()}
        self.enqueue(waiting | {key for key in copied if key.namespace == namespace})

    # Sources and copies

    @property
    def synced(self) -> bool:
        return self.sources.has_synced and self.copies.has_synced

    def copies_of(self, key: Key) -> list[Copy]:
        """Return the cached copies of a source, the one with the first name first."""
        first = self.first_name(key)
        return sorted(self._store.of(key), key=lambda copy: (copy.name != first, copy.name))

    def first_name(self, key: Key) -> str:
        """Return the name that a copy gets if no foreign object has that name."""
        return naming.physical_name(key.name, key.namespace)

    def second_name(self, source: Source) -> str:
        """Return the name of a copy if an object that is not ours has the first name."""
        identity = f"{source.uid}/{self.clusters.cluster_id}"
        return naming.second_physical_name(source.name, source.namespace, uid=identity)

    def reserved_name(self, key: Key) -> str:
        """Return the name by which a pod refers to a copy that does not exist.

        The first name may be that of a foreign object, now or later, and a kubelet mounts any
        object with that name. The reserved name is a function of the binding as well. A source that
        is created while a pod has the reserved name is copied under that name.
        """
        ids = self.clusters.ids
        identity = f"{ids.computing_id}/{ids.binding}"
        return naming.second_physical_name(key.name, key.namespace, uid=identity)

    def _ownership(self, source: Source, copy: Copy) -> Ownership:
        return copy_ownership(
            copy,
            virtual=source.key,
            uid=source.uid,
            ids=self.clusters.ids,
            domain=self.clusters.domain,
            pointed=self._marked.has_legacy_copy(source),
        )

    def _may_be_used(self, key: Key) -> bool:
        """Whether the content of a source is needed: a pod refers to it, or it has a copy."""
        return key in self._records or bool(self.copies_of(key)) or self.rules.is_used(key)

    async def read(self, key: Key) -> Source | None:
        """Read a source from the server; None if there is none."""
        return await self._marked.read(key)

    async def report_phase(self, source: Source, copy: Copy) -> Source | None:
        """Write the phase of a copy to its source; return the source, None if it is gone.

        A phase that keeps pods from starting causes an event, too.
        """
        written = await self._marked.report_phase(source, copy.status.phase)
        if written is not None and written is not source:
            clusters, phase = self.clusters, copy.status.phase
            if phase != _BOUND:
                message = f"{self.kind} {copy.name} of the worker is {phase}, not {_BOUND}"
                target = reference(self.definition.sources, source)
                clusters.events.emit(target, "Warning", _COPY_NOT_BOUND, message)
            _log.info("Reported phase of copy", kind=self.kind, source=source.key, phase=phase)
        return written

    # Requests for copies

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call the handler with the key of each source that was missing and is replicated now."""
        self._handlers.append(handler)

    async def ensure(self, key: Key) -> str | Missing:
        """Return the name of the copy of a source once the copy exists, or a Missing.

        The caller must have recorded its reference before. Failures are retried by the controller,
        with backoff, once for all callers.
        """
        if (name := self.ready(key)) is not None:
            return name
        record = self._records.get(key)
        if record is not None and record.missing is not None:
            return record.missing
        if self.draining:
            return self._missing(key, _LEAVING)
        record = self._record(key)
        request = record.request = record.request or _Request()
        self.enqueue([key])
        if self._is_stalled(key):
            return self._not_answered(key, record)  # every caller that waits holds up other pods
        try:
            await within(self.clusters.clock, ANSWER_S, request.answered.wait)
        except TimeoutError:
            return self._not_answered(key, record)
        return request.answer

    def _not_answered(self, key: Key, record: _Record) -> Missing:
        """Return why a caller of `ensure` got no copy; its pod is enqueued when the copy exists."""
        if not self._has_synced():
            self._stalled.add("")
        elif not self._marked.has_synced(key):
            self._stalled.add(key.namespace)
        resource, cause = self.definition.sources.plural, f"it takes longer than {ANSWER_S:g} s"
        if not self.sources.has_synced:
            cause = f"the {resource} of the computing cluster could not be listed"
        elif not self.copies.has_synced:
            cause = f"the {resource} of the worker could not be listed"
        elif self.requests is not None and not self._marked.has_synced(key):
            cause = self.requests.obstacle(key.namespace)
        record.missing = self._missing(key, f"is not copied: {cause}", _RETRY_S)
        return record.missing

    def _is_stalled(self, key: Key) -> bool:
        """Whether a caller has waited in vain for the caches that this source needs."""
        if "" in self._stalled and self._has_synced():
            self._stalled.discard("")
        return "" in self._stalled or (
            key.namespace in self._stalled and not self._marked.has_synced(key)
        )

    def _has_synced(self) -> bool:
        # Without the binding it is not known which namespaces are granted.
        known = self.requests is None or self.clusters.bindings.has_synced
        return known and self.synced and self.rules.synced()

    def is_requested(self, key: Key) -> bool:
        """Whether a caller in this process waits for a copy, or all copies are being deleted."""
        record = self._records.get(key)
        waits = record is not None and (record.request is not None or record.missing is not None)
        return self.draining or waits

    def ready(self, key: Key) -> str | None:
        """Return the name of a source's copy, if the caches show that pods may use the copy."""
        source, copies = self.sources.get(key), self.copies_of(key)
        if source is None or not copies or self.draining:
            return None
        copy = copies[0]
        if self._ownership(source, copy) is not Ownership.OURS or self._store.is_deleting(copy):
            return None
        return copy.name if self.rules.fits(source, copy) else None

    def retry(self) -> None:
        """Enqueue every source whose last answer was a Missing."""
        self.enqueue([key for key, record in self._records.items() if record.missing is not None])

    def check(self, key: Key) -> None:
        """Enqueue a source to which the last object has stopped referring."""
        if self.requests is not None:
            self.requests.check(key.namespace)
        record = self._records.get(key)
        missing = record is not None and record.missing is not None
        if missing or self.sources.get(key) or self.copies_of(key):
            self.enqueue([key])

    def wanted(self, key: Key) -> bool:
        """Whether a source should have a copy: a caller waits for it, or an object refers to it."""
        if self.draining:
            return False
        record = self._records.get(key)
        requested = record is not None and record.request is not None
        return requested or (self.rules.is_used(key) and not self._binding_ends())

    def _binding_ends(self) -> bool:
        """Whether the binding is being deleted and lends no node any more.

        No copy is created again then: another process may be deleting all copies. Pods that still
        run have the copies that they need.
        """
        clusters = self.clusters
        binding = clusters.binding
        ending = binding is not None and binding.deleting and clusters.computing_synced
        return ending and not len(clusters.vnodes)

    async def is_unused(self, key: Key, copy: Copy) -> bool:
        """Whether no object needs a copy, as the API servers answer now."""
        if self.wanted(key) or self.rules.is_referenced(key):
            return False
        return await self.rules.unused(key, copy, self.clusters.clock.monotonic())

    # The end of a binding

    def drain(self, *, confirmed: bool = True) -> None:
        """Delete every copy, in use or not, and unmark all sources.

        With `confirmed` false, sources are unmarked without waiting for the worker.
        """
        self.draining = True
        self._abandoned = not confirmed
        for key, record in tuple(self._records.items()):
            if record.request is not None:
                self._answer(key, self._missing(key, _LEAVING))
        super().resync()

    def remaining(self) -> int:
        """Return how many marked sources and copies exist."""
        sources = len(self.sources) + self._marked.unlisted()
        return sources + (0 if self._abandoned else len(self.copies))

    # The loop

    def resync(self) -> None:
        super().resync()
        self.retry()

    async def caught_up(self, key: Key) -> bool:
        readable = not self._marked.is_granted(key) or self._marked.has_synced(key)
        if self._abandoned:
            return readable and await self.sources.caught_up(key)
        if not (self._has_synced() and readable and await self.sources.caught_up(key)):
            return False
        return await self._store.caught_up(key)

    async def reconcile(self, key: Key) -> Outcome:
        try:
            answer = await self._reconcile(key)
        except Conflict:
            raise  # another writer was first; callers of `ensure` go on waiting
        except ApiError as error:
            self._answer(key, self._missing(key, f"is not copied: {error}"))
            if isinstance(error, _REFUSALS):
                return Stuck(_COPY_REFUSED, str(error))
            raise
        finally:
            self._drop_empty_record(key)
        if isinstance(answer, str | Missing):
            return self._answer(key, answer)
        return answer

    async def _reconcile(self, key: Key) -> str | Missing | Outcome:
        source, copies = self.sources.get(key), self.copies_of(key)
        if not self.wanted(key):
            return await self._release(key, source, copies)
        self._record(key).unused_since = None
        if not self.clusters.worker_health.answers:
            return self._missing(key, "is not copied: the worker does not answer")
        if self.requests is not None and not self._marked.is_granted(key):
            return self._wait_for_grant(self.requests, key)
        if source is None or not source.raw:
            source = await self._marked.read(key)
        if source is not None:
            target = Key(self._store.namespace, self.first_name(key))
            used_by_pv = self.clusters.domain.used_by_pv in self.rules.extra_labels(key)
            source = await self._marked.mark(source, target, used_by_pv=used_by_pv)
        if source is None:
            return await self._source_absent(key, copies)
        self.existence_watches.remove(key)
        answer = await (self._update(source, copies[0]) if copies else self._create(source))
        if isinstance(answer, str):
            await self._marked.remove_legacy_marks(source)
        return answer

    def _wait_for_grant(self, requests: NamespaceRequests[Source], key: Key) -> Missing | Outcome:
        """Request the namespace of a source; callers of `ensure` wait for the grant a moment.

        The key is enqueued when the manager has answered.
        """
        requests.request(key.namespace)
        if key.namespace not in self._stalled and (rest_s := requests.waits_s(key.namespace)) > 0:
            return After(rest_s)
        self._stalled.add(key.namespace)
        return self._missing(key, f"is not copied: {requests.obstacle(key.namespace)}")

    async def _source_absent(self, key: Key, copies: Iterable[Copy]) -> Missing:
        """Delete the copies of a source that does not exist, and watch for its creation."""
        if not self.rules.is_referenced(key):
            for copy in copies:
                await self._store.delete(key, copy)
        retry_s = WATCHED_S if self.existence_watches.add(key) else _RETRY_S
        return Missing(self.kind, key, f"{self.kind} {key} does not exist", retry_s, absent=True)

    async def _create(self, source: Source) -> str | Missing:
        key = source.key
        names: tuple[str, ...] = (self.first_name(key), self.second_name(source))
        if self.rules.is_mounted(key, self.reserved_name(key)):
            names = (self.reserved_name(key),)
        for name in names:
            context = await self._context(source, name)
            if isinstance(context, Missing):
                return context
            copy, created = await self._store.create_or_get(key, forge.forge(context))
            if created:
                return name
            if self._ownership(source, copy) is not Ownership.FOREIGN:
                return await self._update(source, copy)
            _log.warning(
                "Could not write copy, an object of another owner has its name",
                kind=self.kind,
                source=key,
                name=name,
            )
        taken = " and ".join(names)
        return self._missing(key, f"is not copied: {taken} belong to another owner", _RETRY_S)

    async def _update(self, source: Source, copy: Copy) -> str | Missing:
        key = source.key
        if self._store.is_deleting(copy):
            return self._missing(key, f"is not copied: {copy.name} is being deleted")
        context = await self._context(source, copy.name)
        if isinstance(context, Missing):
            return context
        stale = self._ownership(source, copy) is Ownership.STALE
        if forge.must_be_replaced(copy, context, stale=stale):
            await self._store.delete(key, copy)
            return self._missing(key, f"is not copied: {copy.name} is being replaced")
        if not stale and await self._sync_back(source, copy, context):
            return copy.name  # the change of the source enqueues the key
        change = forge.changes(copy, context)
        amendment = await self.rules.amend(source, copy)
        if isinstance(amendment, Missing):
            return amendment
        if change := amendment | change:
            await self._store.patch(key, copy, forge.patch(copy, change))
        await self.rules.report(source, copy)
        return copy.name

    async def _sync_back(self, source: Source, copy: Copy, context: CopyContext) -> bool:
        """Apply a change of a copy to its source, if the source's annotation requests that.

        Return False if the copy is to be written instead.
        """
        direction = direction_of(copy, context)
        if direction is SyncDirection.NONE:
            return False
        target = reference(self.definition.sources, source)
        name = f"{self.kind} {copy.key} of the worker"
        if direction is SyncDirection.CONFLICT:
            ours, theirs = forge.content_digest(context)[:12], copy.synced_digest[:12]
            message = f"Overwrote {name}: source (SHA-256 {ours}) and copy ({theirs}) changed"
            self.clusters.events.emit(target, "Warning", _SYNC_CONFLICT, message)
            return False
        live = await self._store.read_whole(copy)
        if live is None:
            return True  # another version than the cache shows, which will change
        fields = returned_fields(live.content(), self.definition)
        written = await self.clusters.computing.patch(
            self.definition.sources, source.name, forge.patch(source, fields), source.namespace
        )
        self.sources.wrote(written)
        self.clusters.events.emit(target, "Normal", _SYNCED_BACK, f"Applied the changes of {name}")
        return True

    async def _context(self, source: Source, name: str) -> CopyContext | Missing:
        content = await self.rules.translate(source, name)
        if isinstance(content, Missing):
            return content
        return CopyContext(
            kind=self.definition,
            source=source,
            content=content,
            name=name,
            namespace=self._store.namespace,
            ids=self.clusters.ids,
            extra_labels=self.rules.extra_labels(source.key),
            domain=self.clusters.domain,
        )

    async def _release(self, key: Key, source: Source | None, copies: list[Copy]) -> Outcome:
        """Delete the copies of a source that is not used any more, then unmark the source."""
        record = self._record(key)
        record.missing = None
        self.existence_watches.remove(key)
        if self._abandoned and source is not None:
            await self._marked.unmark(source)
            return Done()
        if self._abandoned or (not copies and source is None):
            record.unused_since = None
            return Done()
        if not self.clusters.worker_health.answers or self.rules.is_referenced(key):
            return Done()  # the key is enqueued again when that changes
        now = self.clusters.clock.monotonic()
        if record.unused_since is None:
            record.unused_since = now
        since = record.unused_since
        if not self.draining and now < since + self._linger_s:
            return After(since + self._linger_s - now)
        if copies:
            return await self._delete_unused(key, copies, since)
        assert source is not None
        if legacy := await self._legacy_copy(source):
            await self._delete_unused(key, [legacy], since)
            return After(_LEGACY_RETRY_S)  # no cache shows when that copy is gone
        await self._marked.unmark(source)
        return Done()

    async def _delete_unused(self, key: Key, copies: list[Copy], since: float) -> Outcome:
        for copy in copies:
            if not self.draining and not await self.rules.unused(key, copy, since):
                self._record(key).unused_since = None
                return After(self._linger_s)
            if self.wanted(key):
                break  # the reference that appeared meanwhile has enqueued the key
            await self._store.delete(key, copy)
        return Done()  # the key is enqueued again when the copies are gone

    async def _legacy_copy(self, source: Source) -> Copy | None:
        """Read the copy that the earlier implementation created, if it has not been adopted."""
        if not self._marked.has_legacy_copy(source):
            return None
        try:
            copy = await self._store.get(self.first_name(source.key))
        except NotFound:
            return None
        return None if self._ownership(source, copy) is Ownership.FOREIGN else copy

    def _answer(self, key: Key, answer: str | Missing) -> Outcome:
        """Answer all callers of `ensure` that wait for the copy of a source."""
        record = self._record(key)
        request, record.request = record.request, None
        if request is not None:
            request.answer = answer
            request.answered.set()
        was_missing = record.missing is not None
        record.missing = answer if isinstance(answer, Missing) else None
        self._drop_empty_record(key)
        if isinstance(answer, Missing):
            return Done() if answer.retry_s >= WATCHED_S else After(answer.retry_s)
        if was_missing:
            for handler in self._handlers:
                handler(key)
        return Done()

    def _missing(self, key: Key, message: str, retry_s: float = WATCHED_S) -> Missing:
        return Missing(self.kind, key, f"{self.kind} {key} {message}", retry_s)

    def _record(self, key: Key) -> _Record:
        return self._records.setdefault(key, _Record())

    def _drop_empty_record(self, key: Key) -> None:
        record = self._records.get(key)
        if record is not None and record.is_empty:
            del self._records[key]
