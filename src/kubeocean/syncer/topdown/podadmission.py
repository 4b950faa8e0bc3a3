"""Admission of pods: nobody gets more of a virtual node than it offers.

A scheduler counts before it binds a pod; who writes `spec.nodeName` does not, and a kubelet would
turn such a pod away. Here we are the kubelet: a pod that does not fit beside those that are in, and
those that are older and wait, has failed, in a kubelet's words. Who was let in is not asked again.

All bound pods that may run in the worker are counted as they come and go, so that the usual answer
costs next to nothing. Before a pod is turned away its node is read afresh.
"""

from __future__ import annotations

from kubeocean.api.binding import ClusterBinding
from kubeocean.errors import NotFound
from kubeocean.leasing.admission import Shortage, admit, shortage
from kubeocean.leasing.amounts import Amounts, read_amounts
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.usage import NodeUsage
from kubeocean.runtime.codec import decode_object
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.podplan import is_wanted
from kubeocean.syncer.podviews import VIRTUAL_PODS, VirtualPod
from kubeocean.syncer.topdown.podwrites import PodWrites
from kubeocean.syncer.world import World

__all__ = ["Admission"]

_log = get_logger(__name__)


class Admission:
    """Of one binding's pods to its virtual nodes."""

    def __init__(self, world: World, writes: PodWrites) -> None:
        self._world = world
        self._writes = writes
        self._usage: dict[str, NodeUsage] = {}  # by virtual node; all is ours
        self._unread: dict[str, set[Key]] = {}  # by virtual node: those that changed
        self._admitted: set[str] = set()  # virtual UIDs
        world.vpods.on_change(self._follow)
        world.bindings.on_change(self._binding_changed)

    async def rejects(self, vpod: VirtualPod, vnode: Node) -> bool:
        """Whether a pod that does not run yet cannot; then that is told."""
        if vpod.uid in self._admitted:
            return False
        short = self._short(vpod, vnode)
        if short is not None:
            try:
                live = await self._world.computing.get(NODES, vnode.name)
            except NotFound:
                live = vnode  # it goes, and its pods with it
            short = self._short(vpod, live)
        if short is None:
            self._admitted.add(vpod.uid)
            return False
        await self._reject(vpod, short)
        return True

    # Counting

    def _follow(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._admitted.discard(old.uid)
            usage = self._usage.get(old.spec.node_name)
            if usage is not None:
                usage.drop(old.uid)
                if not len(usage):
                    del self._usage[old.spec.node_name]
        if new is not None:
            self._unread.setdefault(new.spec.node_name, set()).add(new.key)
        elif old is not None and (unread := self._unread.get(old.spec.node_name)) is not None:
            unread.discard(old.key)
            if not unread:
                del self._unread[old.spec.node_name]

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        # Which pods may run in the worker is for the binding to say.
        if old is None or new is None or old.spec != new.spec:
            for pod in self._world.vpods.items():
                self._unread.setdefault(pod.spec.node_name, set()).add(pod.key)

    def _used(self, vnode: str) -> NodeUsage:
        usage = self._usage.setdefault(vnode, NodeUsage())
        for key in self._unread.pop(vnode, ()):
            pod = self._world.vpods.get(key)
            if pod is not None and pod.spec.node_name == vnode:
                usage.put(pod.uid, self._requests(pod), ours=True)
        return usage

    def _requests(self, pod: VirtualPod) -> Amounts:
        if pod.finished or not is_wanted(pod, self._world.binding, self._world.domain):
            return {}
        return requests_of(decode_object(CountedPod, pod.raw, keep_raw=False))

    # Deciding

    def _short(self, vpod: VirtualPod, vnode: Node) -> Shortage | None:
        capacity = read_amounts(vnode.status.allocatable, field="status.allocatable")
        if shortage(self._used(vnode.name).ours, used={}, capacity=capacity) is None:
            return None  # all are counted, also this one
        used, waiting = NodeUsage(), [vpod]
        for pod in self._world.vpods.by("node", vnode.name):
            if self._is_in(pod):
                used.put(pod.uid, self._requests(pod), ours=True)
            elif pod.uid != vpod.uid:
                waiting.append(pod)
        queue = ((pod.uid, self._requests(pod)) for pod in sorted(waiting, key=_age))
        return admit(queue, used=used.ours, capacity=capacity).get(vpod.uid)

    def _is_in(self, pod: VirtualPod) -> bool:
        return pod.uid in self._admitted or bool(self._world.ppods.by("virtual", str(pod.key)))

    # Telling

    async def _reject(self, vpod: VirtualPod, short: Shortage) -> None:
        world, message = self._world, short.message
        status: Json = {
            "phase": "Failed",
            "reason": short.reason,
            "message": f"Pod was rejected: {message}",
        }
        meta = {"uid": vpod.uid, "resourceVersion": vpod.resource_version}
        body = MergePatch({"metadata": meta, "status": status})
        try:
            written = await world.computing.patch(
                VIRTUAL_PODS, vpod.name, body, vpod.namespace, subresource="status"
            )
        except NotFound:
            return
        self._writes.wrote_above(written)
        world.events.emit(reference(VIRTUAL_PODS, vpod), "Warning", short.reason, message)
        _log.info("Rejected pod", vpod=str(vpod.key), node=vpod.spec.node_name, why=message)


def _age(pod: VirtualPod) -> tuple[str, str, str]:
    return pod.metadata.creation_timestamp or "", pod.namespace, pod.name
