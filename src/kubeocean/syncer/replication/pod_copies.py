"""Provides the objects besides itself that a pod needs in the worker: copies and tokens.

`prepare` runs before the physical pod is created, and replicates the objects that a pod refers to.
`attach` runs after that, and creates the tokens, which the physical pod owns. If an object was
missing, its pods are enqueued with its first copy. Copies that no pod refers to any more are
deleted without a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from kubeocean.runtime.components import Runnable
from kubeocean.runtime.objects import Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.forge_context import CopyNames
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod
from kubeocean.syncer.replication.copy_forge import PodReference, Source
from kubeocean.syncer.replication.kinds.table import REPLICATED_KINDS, references_of
from kubeocean.syncer.replication.missing import Missing
from kubeocean.syncer.replication.referring_pods import CLAIM, PodReferences
from kubeocean.syncer.replication.replicator import LINGER_S, Replicator
from kubeocean.syncer.replication.tokens import Tokens

__all__ = ["Missing", "PodCopies"]


class PodCopies:
    """The copies and token Secrets of one binding.

    Copies stay for `linger_s` after the last pod that refers to them.
    """

    def __init__(self, clusters: Clusters, *, linger_s: float = LINGER_S) -> None:
        self.clusters = clusters
        self.references = PodReferences(clusters, references_of)
        self.replicators: Mapping[str, Replicator] = _replicators(
            clusters, self.references, linger_s
        )
        self.tokens = Tokens(clusters)
        self._handlers: list[Callable[[Key], None]] = []
        self._env_keys = {
            replicator.definition.env_source: _EnvKeys(replicator)
            for replicator in self.replicators.values()
            if replicator.definition.env_source
        }
        self.parts: tuple[Runnable, ...] = (
            *(part for replicator in self.replicators.values() for part in replicator.parts),
            *self.tokens.parts,
        )
        self.references.on_change(self._reference_removed)
        for kind, replicator in self.replicators.items():
            replicator.on_change(partial(self._source_replicated, kind))
        self.tokens.on_change(self._notify)

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call the handler with each virtual pod that should be reconciled."""
        self._handlers.append(handler)

    async def prepare(self, pod: VirtualPod, refs: References) -> CopyNames | Missing:
        """Replicate all objects that a pod refers to; return the names of the copies.

        No request is made if all copies exist.
        """
        self.references.add(pod.key, references_of(refs, pod.namespace))
        sources = list(self._referenced_sources(pod.namespace, refs))
        waiting = [source for source in sources if source.replicator.ready(source.key) is None]
        if len(waiting) > 1:
            async with asyncio.TaskGroup() as group:
                for source in waiting:
                    group.create_task(source.replicator.ensure(source.key))
        names: dict[str, dict[str, str]] = {kind: {} for kind in self.replicators}
        for source in sources:
            name = await source.copy_name()
            if isinstance(name, Missing):
                return name
            names[source.replicator.kind][source.key.name] = name
        if (missing := self._foreign_ephemeral_claim(pod, refs)) is not None:
            return missing
        env_keys = {
            (kind, name): await self._env_keys[kind].of(Key(pod.namespace, name))
            for kind, name in refs.env_from
        }
        return CopyNames(names, self.tokens.names(pod, refs), env_keys)

    async def attach(self, pod: VirtualPod, ppod: PhysicalPod, refs: References) -> float | None:
        """Create the tokens of a physical pod, which are renewed without a further call.

        :raises ApiError: one of them could not be created.
        """
        await self.tokens.attach(pod, ppod, refs)
        return None

    def release(self, pod_key: Key) -> None:
        """Forget the references of a pod that is gone, or does not run in the worker."""
        self.references.remove(pod_key)

    def drain(self, *, confirmed: bool = True) -> None:
        """Delete all copies and unmark all sources; token Secrets are deleted with their pods.

        With `confirmed` false, sources are unmarked without waiting for the worker.
        """
        for replicator in self.replicators.values():
            replicator.drain(confirmed=confirmed)

    def remaining(self) -> int:
        """Return how many marked sources and copies exist; token Secrets do not count."""
        return sum(replicator.remaining() for replicator in self.replicators.values())

    def _referenced_sources(self, namespace: str, refs: References) -> Iterator[_ReferencedSource]:
        for replicator in self.replicators.values():
            for reference in replicator.definition.pod_references(refs):
                yield _ReferencedSource(replicator, Key(namespace, reference.name), reference)

    def _foreign_ephemeral_claim(self, pod: VirtualPod, refs: References) -> Missing | None:
        """Return why an ephemeral volume's claim is refused: the pod does not own the claim.

        None if the pod owns all such claims that exist.
        """
        for name in refs.ephemeral_claims:
            key = Key(pod.namespace, name)
            claim = self.replicators[CLAIM].sources.get(key)
            owners = claim.metadata.owner_references or () if claim is not None else ()
            if claim is not None and all(owner.uid != pod.uid for owner in owners):
                return Missing(CLAIM, key, f"{CLAIM} {key} was not created for pod {pod.key}")
        return None

    def _reference_removed(self, reference: tuple[str, Key]) -> None:
        kind, key = reference
        self.replicators[kind].check(key)

    def _source_replicated(self, kind: str, key: Key) -> None:
        for pod in self.references.pods((kind, key)):
            self._notify(pod)

    def _notify(self, pod: Key) -> None:
        for handler in self._handlers:
            handler(pod)


def _replicators(
    clusters: Clusters, references: PodReferences, linger_s: float
) -> dict[str, Replicator]:
    """Build the replicators of all kinds of the table, and connect those that need each other."""
    replicators: dict[str, Replicator] = {}
    for kind, rules in REPLICATED_KINDS:
        replicators[kind.name] = Replicator(
            clusters, kind, rules(clusters, kind, references, replicators), linger_s=linger_s
        )
    for replicator in replicators.values():
        replicator.rules.connect()
    return replicators


@dataclass(frozen=True, slots=True)
class _ReferencedSource:
    """A source that a pod refers to, with the replicator of its kind."""

    replicator: Replicator
    key: Key
    reference: PodReference

    async def copy_name(self) -> str | Missing:
        """Return the name of the copy, or a Missing if the pod cannot start without the copy."""
        name = await self.replicator.ensure(self.key)
        if isinstance(name, str):
            return name
        reference = self.reference
        if reference.best_effort or (reference.optional and name.absent):
            return self.replicator.reserved_name(self.key)
        return name


class _EnvKeys:
    """The keys of ConfigMaps or Secrets that containers use in `envFrom`.

    In the computing cluster a variable from `envFrom` takes precedence over one of a Service; for
    the same result in the worker the keys have to be known when a pod is created. They are read
    from the cache, once for each version of a source.
    """

    def __init__(self, replicator: Replicator) -> None:
        self._replicator = replicator
        self._sources = replicator.sources
        self._keys: dict[Key, tuple[str, frozenset[str]]] = {}  # with the version of the source
        self._sources.on_change(self._source_changed)

    async def of(self, key: Key) -> frozenset[str]:
        """Return the keys of a source; empty if the source does not exist."""
        source = self._sources.get(key)
        if source is None and await self._sources.caught_up(key):
            source = self._sources.get(key)  # marked a moment ago
        if source is None:
            return frozenset()
        version, keys = self._keys.get(key, ("", frozenset()))
        if version != source.resource_version:
            if not source.raw:  # the cache does not hold the content of everything
                source = await self._replicator.read(key) or source
            keys = frozenset(source.content().get("data") or {}) if source.raw else frozenset()
            self._keys[key] = source.resource_version, keys
        return keys

    def _source_changed(self, old: Source | None, new: Source | None) -> None:
        if old is not None and new is None:
            self._keys.pop(old.key, None)
