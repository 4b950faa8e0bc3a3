"""Host ports: what other people's pods hold on a lent node is taken on its virtual node, too.

The computing cluster's scheduler learns of them through a pod that runs nowhere: it sits on the
virtual node, names the ports, and asks for nothing else. Ports of a pod cannot change, so its name
is a function of node and ports, and another set of ports is another pod.

A pod holds its ports until it has finished; what several hold is reserved once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, may_be_ours, ownership
from kubeocean.runtime.kinds import NODES, PodCondition
from kubeocean.runtime.objects import Json, Meta, Object, Resource

__all__ = [
    "PORT_PODS",
    "RESERVATION_PODS",
    "HostPort",
    "PortPod",
    "Reservation",
    "ReservationPod",
    "changes",
    "counts",
    "fits",
    "forge",
    "forge_namespace",
    "held",
    "is_ours",
    "lean",
    "ports_of",
]

_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - what Kubernetes means by no address
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_RUNNING: Final = "Running"
_SCHEDULED: Final = "PodScheduled"


class HostPort(NamedTuple):
    """A port of a node, in the order in which they are told."""

    address: str
    protocol: str
    number: int


class _Port(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class _Container(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    ports: tuple[_Port, ...] | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None


class _Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""


class PortPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod of the worker, as far as its ports go.

    With the host's network its ports are host ports: the server writes them so.
    """

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _ReservationStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    conditions: tuple[PodCondition, ...] | None = None


class ReservationPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod that holds ports of a virtual node."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _ReservationStatus = msgspec.field(default_factory=_ReservationStatus)


PORT_PODS: Final = Resource("", "v1", "pods", "Pod", True, PortPod)
RESERVATION_PODS: Final = Resource("", "v1", "pods", "Pod", True, ReservationPod)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Everything that a reservation is made from; there is at least one port."""

    ports: tuple[HostPort, ...]
    vnode: str
    vnode_uid: str
    binding: str
    cluster_id: str
    domain: Domain = field(default=group.DEFAULT)

    @property
    def name(self) -> str:
        return naming.host_port_pod(self.vnode, self.ports)

    @property
    def namespace(self) -> str:
        return self.domain.host_port_namespace

    @property
    def labels(self) -> dict[str, str]:
        domain = self.domain
        return {
            domain.managed_by: domain.product,
            domain.host_port_pod: group.TRUE,
            domain.cluster_binding: naming.label_value(self.binding),
            domain.physical_cluster_id: self.cluster_id,
        }


# The worker's pods


def ports_of(pod: PortPod | ReservationPod) -> frozenset[HostPort]:
    """The ports of its node that a pod asks for, whatever became of it."""
    spec = pod.spec
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    ports = (port for container in containers for port in container.ports or ())
    return frozenset(
        HostPort(port.host_ip or _ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for port in ports
        if port.host_port
    )


def counts(pod: PortPod, ids: Ids, domain: Domain) -> bool:
    """Whether a pod holds what it asks for, and the computing cluster does not know it.

    It knows those of this binding; those of another, also one of that name elsewhere, it does not.
    """
    ours = may_be_ours(pod, ids=ids, domain=domain)
    return not ours and pod.status.phase not in _FINISHED


def held(pods: Iterable[PortPod], ids: Ids, domain: Domain) -> tuple[HostPort, ...]:
    """The ports that these pods of a node hold, each once, in order."""
    counted = (pod for pod in pods if counts(pod, ids, domain))
    return tuple(sorted({port for pod in counted for port in ports_of(pod)}))


def lean(pod: PortPod, ids: Ids, domain: Domain) -> PortPod:
    """The same pod without what nobody asks about it: most of its metadata."""
    meta, marks = pod.metadata, ownership(ids, domain)
    kept = Meta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels={key: value for key, value in pod.labels.items() if key in marks} or None,
    )
    return PortPod(metadata=kept, spec=pod.spec, status=pod.status)


# The reservation


def forge(reservation: Reservation) -> Json:
    """The pod as it is created. Nothing pulls its image or starts it: its node is virtual."""
    ports = [
        {
            "name": f"port-{index}",
            "hostIP": port.address,
            "protocol": port.protocol,
            "hostPort": port.number,
            "containerPort": port.number,
        }
        for index, port in enumerate(reservation.ports)
    ]
    container = {
        "name": group.HOST_PORT_CONTAINER,
        "image": group.HOST_PORT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(group.HOST_PORT_COMMAND),
        "ports": ports,
    }
    return {
        "apiVersion": RESERVATION_PODS.api_version,
        "kind": RESERVATION_PODS.kind,
        "metadata": {
            "name": reservation.name,
            "namespace": reservation.namespace,
            "labels": reservation.labels,
            "ownerReferences": [_owner(reservation)],
        },
        "spec": {
            "nodeName": reservation.vnode,
            "containers": [container],
            "priorityClassName": group.HOST_PORT_PRIORITY_CLASS,
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        },
    }


def fits(pod: ReservationPod, reservation: Reservation) -> bool:
    """Whether a pod reserves exactly these ports, and will go on doing so."""
    # One that an earlier node of that name owned is about to be collected.
    owners = [o.uid for o in pod.metadata.owner_references or () if o.kind == NODES.kind]
    return (
        not pod.deleting
        and pod.status.phase not in _FINISHED
        and pod.spec.node_name == reservation.vnode
        and ports_of(pod) == frozenset(reservation.ports)
        and all(uid == reservation.vnode_uid for uid in owners)
    )


def changes(pod: ReservationPod, reservation: Reservation, *, now: str) -> Json:
    """What to write, through its status, to a pod that fits; empty if it is well.

    It says that it is scheduled and runs: a pod that is Pending for ever is an alert in every
    cluster, and one that has finished holds no ports. Of readiness it says nothing: that would be
    taken back whenever the node's heartbeat stops, and would have to be said again.
    """
    labels = {k: v for k, v in reservation.labels.items() if pod.labels.get(k) != v}
    conditions = pod.status.conditions or ()
    scheduled = any(c.type == _SCHEDULED and c.status == "True" for c in conditions)
    status: Json = {} if pod.status.phase == _RUNNING else {"phase": _RUNNING}
    if not scheduled:
        condition = {"type": _SCHEDULED, "status": "True", "lastTransitionTime": now}
        status["conditions"] = [condition]
    change: Json = {"metadata": {"labels": labels}} if labels else {}
    return change | ({"status": status} if status else {})


def is_ours(pod: ReservationPod, *, binding: str, cluster_id: str, domain: Domain) -> bool:
    """Whether a pod is a reservation of this binding."""
    labels = pod.labels
    return (
        labels.get(domain.managed_by) == domain.product
        and labels.get(domain.host_port_pod) == group.TRUE
        and labels.get(domain.cluster_binding) == naming.label_value(binding)
        and labels.get(domain.physical_cluster_id) == cluster_id
    )


def forge_namespace(domain: Domain) -> Json:
    """Where all reservations are; they may hold host ports there, whatever is usual."""
    # A namespace may be asked to keep host ports out; these are only names.
    labels = {domain.managed_by: domain.product, group.LABEL_POD_SECURITY: "privileged"}
    return {"metadata": {"name": domain.host_port_namespace, "labels": labels}}


def _owner(reservation: Reservation) -> Json:
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "name": reservation.vnode,
        "uid": reservation.vnode_uid,
        "controller": True,  # so that draining the node needs no force
    }
