"""Events of physical pods, copied to their virtual pods, where users expect them.

Only new events are copied, of physical pods whose virtual pod exists; names of copies are replaced
by the names of their originals. Nothing is stored: an event that cannot be copied at once is
dropped, and the recorder limits the events of one pod.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, Literal

from kubeocean.api import naming
from kubeocean.api.ownership import pod_ownership
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import EVENTS, Event
from kubeocean.runtime.objects import Key, printable_json
from kubeocean.runtime.watch import Changed, Listed, Restarted, Scope, Watch
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.plan import is_ours
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.pods.views import VIRTUAL_PODS, PhysicalPod, VirtualPod, virtual_key
from kubeocean.syncer.replication.kinds.table import references_of
from kubeocean.syncer.shard_filter import ALL, ShardFilter, of_pod

__all__ = ["PodEvents", "translate"]

# The scheduler of the computing cluster emits this itself.
_SKIPPED: Final = frozenset({"Scheduled"})
# API servers have no watch cache of Events, and send no bookmarks while there are none.
_SILENCE_S: Final = 600.0


class PodEvents:
    """Copies the events of one binding's physical pods."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._shards: ShardFilter = ALL
        scope = Scope(EVENTS, clusters.mount_namespace, fields="involvedObject.kind=Pod")
        self._watch = Watch(
            clusters.worker,
            scope,
            clock=clusters.clock,
            metrics=clusters.metrics,
            silence_s=_SILENCE_S,
        )

    def share(self, shards: ShardFilter) -> None:
        """Copy only the events of pods in these shards; call before `run`."""
        self._shards = shards

    async def run(self) -> None:
        """Copy events until cancelled."""
        listing = True
        async with aclosing(self._watch.follow()) as changes:
            async for change in changes:
                match change:
                    case Restarted():
                        listing = True
                    case Listed():
                        listing = False
                    case Changed():
                        for kind, event in change.events:
                            if kind != "DELETED" and not listing:
                                self._copy(event)
                        change.events.clear()  # not in memory until the next event

    def _copy(self, event: Event) -> None:
        if event.reason in _SKIPPED:
            return
        clusters, subject = self._clusters, event.involved_object
        ppod = clusters.ppods.get(Key(subject.namespace, subject.name))
        if ppod is None or ppod.uid != subject.uid:
            return
        vpod = clusters.vpods.get(virtual_key(ppod, clusters.domain))
        if vpod is None or not self._is_ours(vpod, ppod) or not self._shards.owns(of_pod(vpod.key)):
            return
        about = reference(VIRTUAL_PODS, vpod, field_path=subject.field_path)
        kind: Literal["Normal", "Warning"] = "Warning" if event.type == "Warning" else "Normal"
        message = translate(printable_json(event.message), vpod, ppod)
        clusters.events.emit(about, kind, printable_json(event.reason), message)

    def _is_ours(self, vpod: VirtualPod, ppod: PhysicalPod) -> bool:
        clusters = self._clusters
        if not clusters.is_on_own_node(vpod):
            return False
        return is_ours(
            pod_ownership(
                ppod, virtual=vpod.key, uid=vpod.uid, ids=clusters.ids, domain=clusters.domain
            )
        )


def translate(message: str, vpod: VirtualPod, ppod: PhysicalPod) -> str:
    """Return a kubelet's message with virtual names in place of the names in the worker."""
    names = {
        f"{ppod.namespace}/{ppod.name}": str(vpod.key),
        f"{ppod.name}_{ppod.namespace}({ppod.uid})": f"{vpod.name}_{vpod.namespace}({vpod.uid})",
        ppod.name: vpod.name,
        ppod.uid: vpod.uid,
    }
    for _, (namespace, name) in references_of(references(vpod.content()), vpod.namespace):
        physical = naming.physical_name(name, namespace)
        names[f"{ppod.namespace}/{physical}"] = f"{vpod.namespace}/{name}"
        names[f'"{ppod.namespace}"/"{physical}"'] = f'"{vpod.namespace}"/"{name}"'
        names[physical] = name
    for physical, virtual in names.items():
        message = message.replace(physical, virtual)
    return message
