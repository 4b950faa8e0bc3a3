"""Uses: which virtual pods use what.

A pod uses what it refers to from the moment it is asked to run here until it and its physical pod
are gone, or it has finished and its physical pod is gone. What pods refer to that nobody has asked
about (after a restart) is read from them when somebody wants to know.

That nobody uses something is never concluded from a cache alone: `unused` asks the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias

from kubeocean.api import naming
from kubeocean.errors import NotFound
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Key
from kubeocean.syncer.forge.references import References, references
from kubeocean.syncer.podplan import is_lent, is_wanted
from kubeocean.syncer.podviews import VIRTUAL_PODS, PhysicalPod, VirtualPod, virtual_key
from kubeocean.syncer.world import World

__all__ = ["CLAIM", "CONFIG_MAP", "SECRET", "Use", "Uses", "uses_of"]

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"  # noqa: S105 - a kind
CLAIM = "PersistentVolumeClaim"

_EPHEMERAL: Final = b'"ephemeralContainers"'

Use: TypeAlias = tuple[str, Key]  # kind and virtual object


def uses_of(refs: References, namespace: str) -> frozenset[Use]:
    """All that a pod needs copied."""
    named = {
        CONFIG_MAP: refs.config_maps,
        SECRET: (*refs.secrets, *refs.pull_secrets),
        CLAIM: refs.all_claims,
    }
    return frozenset(
        (kind, Key(namespace, name)) for kind, names in named.items() for name in names
    )


class Uses:
    """What each bound pod uses, and by whom each thing is used."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._prefix = naming.virtual_node_prefix(world.cluster_id)
        self._of: dict[Key, frozenset[Use]] = {}
        self._by: dict[Use, set[Key]] = {}
        self._unread: set[Key] = set()
        self._listed: dict[str, tuple[float, frozenset[Use]]] = {}  # by namespace: since when, what
        self._handlers: list[Callable[[Use], None]] = []
        world.vpods.on_change(self._vpod_changed)
        world.ppods.on_change(self._ppod_changed)

    @property
    def known(self) -> bool:
        world = self._world
        return world.vpods.has_synced and world.ppods.has_synced and world.vnodes.has_synced

    def on_change(self, handler: Callable[[Use], None]) -> None:
        """Call for what the last pod that used it uses no more."""
        self._handlers.append(handler)

    def note(self, pod: Key, uses: frozenset[Use]) -> None:
        """The pod is to run, and uses this."""
        self._unread.discard(pod)
        before = self._of.get(pod, frozenset())
        if uses != before:
            self._put(pod, uses)
            self._tell(before - uses)

    def drop(self, pod: Key) -> None:
        """The pod does not run here, or not any more; one that still runs below counts."""
        if self._runs_below(pod):
            return
        self._unread.discard(pod)
        self._tell(self._put(pod, frozenset()))

    def users(self, use: Use) -> frozenset[Key]:
        """The virtual pods that use it, as far as we know."""
        return frozenset(self._by[use]) if self.is_used(use) else frozenset()

    def is_used(self, use: Use) -> bool:
        """Whether there is such a pod, as far as we know."""
        if use in self._by:
            return True
        for pod in tuple(self._unread):
            self._read(pod)
        return use in self._by

    async def unused(self, use: Use, *, since: float) -> bool:
        """Whether no pod above uses it, by what the server said at some time after `since`."""
        namespace = use[1].namespace
        began, used = self._listed.get(namespace, (0.0, frozenset()))
        if began <= since:
            began = self._world.clock.monotonic()
            used = await self._ask(namespace)
            self._listed = {namespace: (began, used)}  # the last one: they come in bunches
        return use not in used and not self.is_used(use)

    async def _ask(self, namespace: str) -> frozenset[Use]:
        scope = self._world.vpods.scope
        listing = await self._world.computing.list(
            VIRTUAL_PODS, namespace, labels=scope.labels, fields=scope.fields, keep_raw=True
        )
        found: set[Use] = set()
        lent: dict[str, bool] = {}
        for pod in listing.items:
            cached, node = self._world.vpods.get(pod.key), pod.spec.node_name
            if cached is not None and cached.resource_version == pod.resource_version:
                continue  # what is known of it is looked up anyway
            if not node.startswith(self._prefix):
                continue
            if node not in lent:
                lent[node] = await self._is_lent(node)
            if self._counts(pod, lent=lent[node]):
                found |= uses_of(references(pod.content()), namespace)
        return frozenset(found)

    async def _is_lent(self, node: str) -> bool:
        """Whether a node is not of another worker, whose clusterID begins like ours."""
        world = self._world
        known = world.vnodes.get(Key("", node))
        with suppress(NotFound):
            known = known or await world.computing.get(NODES, node)
        return known is None or is_lent(known, world.ids, world.domain)

    # What the caches say

    def _vpod_changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        if new is None:
            if old is not None:
                self.drop(old.key)
        elif old is None:
            self._unread.add(new.key)
        elif new.finished and not old.finished and not self._counts(new):
            self.drop(new.key)
        elif _EPHEMERAL in new.raw:
            # They come later, and with them what they refer to; only the pod's owner notes that.
            self._unread.add(new.key)

    def _ppod_changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if old is None or new is not None:
            return
        pod = virtual_key(old, self._world.domain)
        vpod = self._world.vpods.get(pod)
        if vpod is None or vpod.finished:
            self.drop(pod)

    def _read(self, pod: Key) -> None:
        self._unread.discard(pod)
        vpod = self._world.vpods.get(pod)
        if vpod is not None and self._counts(vpod):
            self._put(pod, uses_of(references(vpod.content()), pod.namespace))

    def _counts(self, pod: VirtualPod, *, lent: bool | None = None) -> bool:
        """Whether it runs in the worker, or may be about to. `lent` says whether its node is ours,
        where somebody asked; the cache may know no node of that name yet, but none of ours then."""
        if self._runs_below(pod.key):
            return True
        if lent is None:
            vnode = self._world.vnodes.get(Key("", pod.spec.node_name))
            lent = is_lent(vnode, self._world.ids, self._world.domain)
        if not lent:
            return False
        binding = self._world.binding
        unknown = binding is None
        return not pod.finished and (unknown or is_wanted(pod, binding, self._world.domain))

    def _runs_below(self, pod: Key) -> bool:
        return bool(self._world.ppods.by("virtual", str(pod)))

    def _put(self, pod: Key, uses: frozenset[Use]) -> frozenset[Use]:
        before = self._of.pop(pod, frozenset())
        if uses:
            self._of[pod] = uses
        for use in before - uses:
            users = self._by[use]
            users.discard(pod)
            if not users:
                del self._by[use]
        for use in uses - before:
            self._by.setdefault(use, set()).add(pod)
        return before

    def _tell(self, uses: Iterable[Use]) -> None:
        for use in uses:
            if use not in self._by:
                for handler in self._handlers:
                    handler(use)
