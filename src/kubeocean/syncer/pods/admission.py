"""Admission of pods: a virtual node runs pods that fit its offer, and no new ones while closed.

A scheduler checks the requests of a pod before binding; a client that writes `spec.nodeName` does
not, and a kubelet rejects such a pod if it does not fit. For virtual nodes the syncer is the
kubelet: a pod that does not fit beside the admitted pods, and the older pods that wait, fails with
a kubelet's reason. So does a pod with a host port that another pod of the worker's node holds. A
pod that was admitted is not checked again, nor one that has started, which another process
admitted.

Outside of its time windows, and while it is being reclaimed, a node starts no pod at all, whatever
the pod tolerates: its capacity is not lent then.

The requests of all bound pods that may run in the worker are summed up as pods are created and
deleted, so that the usual check costs next to nothing. Before a pod is rejected, its node is read
from the API server.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.conditions import NODE_PORTS, PodEvent
from kubeocean.errors import Forbidden, NotFound
from kubeocean.leasing.admission import Shortage, admit, shortage
from kubeocean.leasing.amounts import Amounts, read_amounts
from kubeocean.leasing.requests import CountedPod, NodeUsage, requests_of
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.objects import Key, decode_object
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.host_port_forge import PORT_PODS, HostPort, PortPod, ports_of
from kubeocean.syncer.pods.plan import may_run_in_worker, physical_node, reclaim_reason
from kubeocean.syncer.pods.record import PodRecord, PodRecords
from kubeocean.syncer.pods.views import VirtualPod

__all__ = ["Admission", "AdmissionRejection", "ClosedNode", "TakenPort", "conflict", "host_ports"]

_NOT_STARTED: Final = ("", "Pending")  # phases
_HOST_PORT: Final = b'"hostPort"'
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - as Kubernetes means a port without an address
_HOLDERS: Final = "spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class ClosedNode:
    """The rejection of a pod by a virtual node whose capacity is not lent now."""

    vnode: str
    why: str

    @property
    def reason(self) -> str:
        return PodEvent.NODE_CLOSED

    @property
    def message(self) -> str:
        return f"node {self.vnode} starts no pods now: {self.why}"


@dataclass(frozen=True, slots=True)
class TakenPort:
    """The rejection of a pod whose host port another pod of the worker's node holds."""

    port: HostPort

    @property
    def reason(self) -> str:
        return NODE_PORTS

    @property
    def message(self) -> str:
        port = f"{self.port.number}/{self.port.protocol}"
        return (
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod"
            f" ports: {port} is taken"
        )


AdmissionRejection: TypeAlias = Shortage | ClosedNode | TakenPort


def host_ports(vpod: VirtualPod) -> tuple[HostPort, ...]:
    """Return the host ports that a pod requests."""
    if _HOST_PORT not in vpod.raw:
        return ()
    return tuple(sorted(ports_of(decode_object(PortPod, vpod.raw, keep_raw=False))))


def conflict(one: HostPort, other: HostPort) -> bool:
    """Whether two pods on one node cannot hold these two host ports at the same time."""
    if (one.protocol, one.number) != (other.protocol, other.number):
        return False
    return one.address == other.address or _ANY_ADDRESS in (one.address, other.address)


class Admission:
    """Admits the pods of one binding to its virtual nodes."""

    def __init__(self, clusters: Clusters, records: PodRecords) -> None:
        self._clusters = clusters
        self._records = records
        self._usage: dict[str, NodeUsage] = {}  # by virtual node
        self._changed: dict[str, set[Key]] = {}  # by virtual node: pods to be counted again

    async def check(
        self, vpod: VirtualPod, vnode: Node, record: PodRecord
    ) -> AdmissionRejection | None:
        """Admit a pod that has no physical pod yet, or return why its node rejects the pod."""
        rejection: AdmissionRejection | None = self._rejection(vpod, vnode, record)
        if rejection is not None:
            try:
                live = await self._clusters.computing.get(NODES, vnode.name)
            except NotFound:
                live = vnode  # the node was deleted, and its pods will be
            rejection = self._rejection(vpod, live, record)
        if rejection is None and not record.admitted:
            rejection = await self._taken_port(vpod, vnode)
        record.admitted = rejection is None
        return rejection

    async def _taken_port(self, vpod: VirtualPod, vnode: Node) -> TakenPort | None:
        """Return a host port of the pod that another pod of the worker's node holds.

        The worker's pods are read from the server: a port may have become free just now.
        """
        clusters = self._clusters
        ports = host_ports(vpod)
        pnode = physical_node(vnode, clusters.ids, clusters.domain)
        if not ports or pnode is None:
            return None
        with suppress(Forbidden):  # then the worker's scheduler or kubelet decides
            listing = await clusters.worker.list(PORT_PODS, fields=_HOLDERS.format(pnode))
            # A pod that ran for an earlier virtual pod of this name is being deleted.
            others = (pod for pod in listing.items if not self._runs_for(pod, vpod))
            held = [port for pod in others for port in ports_of(pod)]
            for port in ports:
                if any(conflict(port, other) for other in held):
                    return TakenPort(port)
        return None

    def _runs_for(self, pod: PortPod, vpod: VirtualPod) -> bool:
        domain, annotations = self._clusters.domain, pod.annotations
        namespace = annotations.get(domain.virtual_pod_namespace)
        return (namespace, annotations.get(domain.virtual_pod_name)) == tuple(vpod.key)

    def _rejection(
        self, vpod: VirtualPod, vnode: Node, record: PodRecord
    ) -> Shortage | ClosedNode | None:
        # A pod may have been admitted, and waited for a copy until the window was closed.
        reason = reclaim_reason(vnode, self._clusters.domain)
        started = vpod.status.phase not in _NOT_STARTED
        if reason and not started:
            return ClosedNode(vnode.name, reason)
        return None if record.admitted or started else self._shortage(vpod, vnode)

    # Counting

    def pod_changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        """Mark a changed pod to be counted again; a handler for the informer of virtual pods."""
        if old is not None and (new is None or new.uid != old.uid):
            usage = self._usage.get(old.spec.node_name)
            if usage is not None:
                usage.drop(old.uid)
                if not len(usage):
                    del self._usage[old.spec.node_name]
        if new is not None:
            self._changed.setdefault(new.spec.node_name, set()).add(new.key)
        elif old is not None and (changed := self._changed.get(old.spec.node_name)) is not None:
            changed.discard(old.key)
            if not changed:
                del self._changed[old.spec.node_name]

    def binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """Mark all pods to be counted again: the binding decides which pods may run."""
        if old is None or new is None or old.spec != new.spec:
            for pod in self._clusters.vpods.items():
                self._changed.setdefault(pod.spec.node_name, set()).add(pod.key)

    def _used(self, vnode: str) -> NodeUsage:
        usage = self._usage.setdefault(vnode, NodeUsage())
        for key in self._changed.get(vnode, ()):
            pod = self._clusters.vpods.get(key)
            if pod is not None and pod.spec.node_name == vnode:
                usage.put(pod.uid, self._requests(pod), ours=True)
        # Only now: if one pod raised, all are counted again the next time.
        self._changed.pop(vnode, None)
        return usage

    def _requests(self, pod: VirtualPod) -> Amounts:
        if pod.finished or not may_run_in_worker(
            pod, self._clusters.binding, self._clusters.domain
        ):
            return {}
        return requests_of(decode_object(CountedPod, pod.raw, keep_raw=False))

    # Deciding

    def _shortage(self, vpod: VirtualPod, vnode: Node) -> Shortage | None:
        capacity = read_amounts(vnode.status.allocatable, field="status.allocatable")
        if shortage(self._used(vnode.name).ours, used={}, capacity=capacity) is None:
            return None  # all bound pods fit, this one among them
        used, waiting = NodeUsage(), [vpod]
        for pod in self._clusters.vpods.by("node", vnode.name):
            if self._is_admitted(pod):
                used.put(pod.uid, self._requests(pod), ours=True)
            elif pod.uid != vpod.uid:
                waiting.append(pod)
        queue = ((pod.uid, self._requests(pod)) for pod in sorted(waiting, key=_age))
        return admit(queue, used=used.ours, capacity=capacity).get(vpod.uid)

    def _is_admitted(self, pod: VirtualPod) -> bool:
        has_physical = bool(self._clusters.ppods.by("virtual", str(pod.key)))
        return self._records.is_admitted(pod) or has_physical


def _age(pod: VirtualPod) -> tuple[str, str, str]:
    return pod.metadata.creation_timestamp or "", pod.namespace, pod.name
