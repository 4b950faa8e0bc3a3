"""Which virtual pods refer to which sources: the objects that are replicated for pods.

A pod refers to an object from the moment at which the pod is to run in the worker cluster until the
pod and its physical pod are gone, or the pod has finished and its physical pod is gone. The
references of pods that were bound before this process started are read when they are first needed.

A cache alone never proves that no pod refers to an object: `unused` lists pods at the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias

from kubeocean.api import naming
from kubeocean.errors import NotFound
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.plan import is_own_node, may_run_in_worker
from kubeocean.syncer.pods.referenced_objects import References, references
from kubeocean.syncer.pods.views import VIRTUAL_PODS, PhysicalPod, VirtualPod, virtual_key

__all__ = ["CLAIM", "CONFIG_MAP", "SECRET", "VOLUME", "PodReferences", "Reference", "ReferencesOf"]

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"  # noqa: S105 - a kind
CLAIM = "PersistentVolumeClaim"
VOLUME = "PersistentVolume"

_EPHEMERAL: Final = b'"ephemeralContainers"'
_LISTINGS: Final = 16  # that are remembered

Reference: TypeAlias = tuple[str, Key]  # the kind and the key of a source
# All objects that a pod refers to, given the names in its spec and its namespace
ReferencesOf: TypeAlias = Callable[[References, str], frozenset[Reference]]


class PodReferences:
    """The sources that each pod of the binding refers to, and the pods that refer to each source.

    `references_of` reads the table of kinds (`replication.kinds.table`).
    """

    def __init__(self, clusters: Clusters, references_of: ReferencesOf) -> None:
        self._clusters = clusters
        self._references_of = references_of
        self._prefix = naming.virtual_node_prefix(clusters.cluster_id)
        self._by_pod: dict[Key, frozenset[Reference]] = {}
        self._pods: dict[Reference, set[Key]] = {}
        self._unread: set[Key] = set()  # pods that are not in `_by_pod` yet
        # The last listings of pods, by namespace: the time, and the references of pods in it that
        # the cache did not show
        self._listed: dict[str, tuple[float, frozenset[Reference]]] = {}
        self._handlers: list[Callable[[Reference], None]] = []
        clusters.vpods.on_change(self._vpod_changed)
        clusters.ppods.on_change(self._ppod_changed)

    @property
    def synced(self) -> bool:
        """Whether the caches from which references are read are complete."""
        clusters = self._clusters
        caches = (clusters.vpods, clusters.ppods, clusters.vnodes)
        return all(cache.has_synced for cache in caches)

    def on_change(self, handler: Callable[[Reference], None]) -> None:
        """Call the handler with each source to which the last pod has stopped referring."""
        self._handlers.append(handler)

    def add(self, pod: Key, refs: frozenset[Reference]) -> None:
        """Record the references of a pod that is to run in the worker."""
        self._unread.discard(pod)
        before = self._by_pod.get(pod, frozenset())
        if refs != before:
            self._put(pod, refs)
            self._notify(before - refs)

    def remove(self, pod: Key) -> None:
        """Forget the references of a pod that does not run in the worker.

        A pod whose physical pod exists keeps its references.
        """
        if self._has_physical_pod(pod):
            return
        self._unread.discard(pod)
        self._notify(self._put(pod, frozenset()))

    def pods(self, reference: Reference) -> frozenset[Key]:
        """Return the virtual pods that refer to a source, as far as the caches show."""
        return frozenset(self._pods[reference]) if self.is_used(reference) else frozenset()

    def is_used(self, reference: Reference) -> bool:
        """Whether a pod refers to a source, as far as the caches show."""
        if reference in self._pods:
            return True
        for pod in tuple(self._unread):
            self._read(pod)
        return reference in self._pods

    def uses_namespace(self, kind: str, namespace: str) -> bool:
        """Whether a pod refers to a source of that kind and namespace, as the caches show."""
        for pod in tuple(self._unread):
            self._read(pod)
        return any(each == kind and key.namespace == namespace for each, key in self._pods)

    async def unused(self, reference: Reference, *, since: float) -> bool:
        """Whether no virtual pod refers to a source, by a listing that is newer than `since`.

        A worker may put any namespace on a copy. Without a namespace all pods would have to be
        listed, so the result is False.
        """
        namespace = reference[1].namespace
        if not namespace:
            return False
        began, used = self._listed.get(namespace, (-math.inf, frozenset()))
        if began <= since:
            began = self._clusters.clock.monotonic()
            used = await self._list(namespace)
            # Sources of one namespace become unused together.
            self._listed.pop(namespace, None)
            self._listed[namespace] = (began, used)
            if len(self._listed) > _LISTINGS:
                del self._listed[next(iter(self._listed))]
        return reference not in used and not self.is_used(reference)

    async def _list(self, namespace: str) -> frozenset[Reference]:
        scope = self._clusters.vpods.scope
        listing = await self._clusters.computing.list(
            VIRTUAL_PODS, namespace, labels=scope.labels, fields=scope.fields, keep_raw=True
        )
        used: set[Reference] = set()
        own: dict[str, bool] = {}
        for pod in listing.items:
            cached, node = self._clusters.vpods.get(pod.key), pod.spec.node_name
            if cached is not None and cached.resource_version == pod.resource_version:
                continue  # `is_used` covers pods that the cache shows
            if not node.startswith(self._prefix):
                continue
            if node not in own:
                own[node] = await self._is_own_node(node)
            if self._counts(pod, own_node=own[node]):
                used |= self._references_of(references(pod.content()), namespace)
        return frozenset(used)

    async def _is_own_node(self, node: str) -> bool:
        """Whether a node is a virtual node of this binding, or is not known.

        A node of another worker, with a clusterID that begins like this one's, is not.
        """
        clusters = self._clusters
        vnode = clusters.vnodes.get(Key("", node))
        with suppress(NotFound):
            vnode = vnode or await clusters.computing.get(NODES, node)
        return vnode is None or is_own_node(vnode, clusters.ids, clusters.domain)

    def _vpod_changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        if new is None:
            if old is not None:
                self.remove(old.key)
        elif old is None:
            self._unread.add(new.key)
        elif new.finished and not old.finished and not self._counts(new):
            self.remove(new.key)
        elif _EPHEMERAL in new.raw:
            # Ephemeral containers are added later, with references of their own; only the replica
            # that owns the pod calls `add` for them.
            self._unread.add(new.key)

    def _ppod_changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if old is None or new is not None:
            return
        pod = virtual_key(old, self._clusters.domain)
        vpod = self._clusters.vpods.get(pod)
        if vpod is None or vpod.finished:
            self.remove(pod)

    def _read(self, pod: Key) -> None:
        self._unread.discard(pod)
        vpod = self._clusters.vpods.get(pod)
        if vpod is not None and self._counts(vpod):
            self._put(pod, self._references_of(references(vpod.content()), pod.namespace))

    def _counts(self, pod: VirtualPod, *, own_node: bool | None = None) -> bool:
        """Whether the pod runs in the worker, or may be about to.

        `own_node` is whether its node is a virtual node of this binding, as read from the server.
        If None, the cache decides; a node that the cache does not show yet is not one of this
        binding.
        """
        if self._has_physical_pod(pod.key):
            return True
        if own_node is None:
            vnode = self._clusters.vnodes.get(Key("", pod.spec.node_name))
            own_node = is_own_node(vnode, self._clusters.ids, self._clusters.domain)
        if not own_node:
            return False
        binding = self._clusters.binding
        unknown = binding is None
        return not pod.finished and (
            unknown or may_run_in_worker(pod, binding, self._clusters.domain)
        )

    def _has_physical_pod(self, pod: Key) -> bool:
        return bool(self._clusters.ppods.by("virtual", str(pod)))

    def _put(self, pod: Key, refs: frozenset[Reference]) -> frozenset[Reference]:
        """Set the references of a pod; return the references that it had before."""
        before = self._by_pod.pop(pod, frozenset())
        if refs:
            self._by_pod[pod] = refs
        for reference in before - refs:
            pods = self._pods[reference]
            pods.discard(pod)
            if not pods:
                del self._pods[reference]
        for reference in refs - before:
            self._pods.setdefault(reference, set()).add(pod)
        return before

    def _notify(self, refs: Iterable[Reference]) -> None:
        for reference in refs:
            if reference not in self._pods:
                for handler in self._handlers:
                    handler(reference)
