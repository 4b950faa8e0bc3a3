"""Reservations of host ports: the desired pods that hold ports of a virtual node.

Host ports that pods of others hold on a worker's node must count as taken on its virtual node, too.
The computing cluster's scheduler learns of them through a pod that never runs: the reservation is
bound to the virtual node, names the ports, and requests nothing else. Ports of a pod cannot change,
so the reservation's name is a function of node and ports, and another set of ports is another pod.

A pod holds its ports until it has finished; a port that several pods hold is reserved once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, may_be_ours, ownership_labels
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
    "is_ours",
    "lean",
    "ports_of",
    "taken_ports",
]

_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - what Kubernetes means by no address
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_RUNNING: Final = "Running"
_SCHEDULED: Final = "PodScheduled"


class HostPort(NamedTuple):
    """A host port of a node; ports in a reservation are sorted by these fields."""

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
    """A pod of the worker, with the fields from which its host ports are read.

    For a pod in the host's network, the API server sets all container ports as host ports.
    """

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _ReservationStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    conditions: tuple[PodCondition, ...] | None = None


class ReservationPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A reservation: a pod that holds host ports of a virtual node."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _ReservationStatus = msgspec.field(default_factory=_ReservationStatus)


PORT_PODS: Final = Resource("", "v1", "pods", "Pod", True, PortPod)
RESERVATION_PODS: Final = Resource("", "v1", "pods", "Pod", True, ReservationPod)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Everything from which a reservation pod is forged; `ports` is not empty."""

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
    """Return the host ports that a pod requests, in any phase."""
    spec = pod.spec
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    ports = (port for container in containers for port in container.ports or ())
    return frozenset(
        HostPort(port.host_ip or _ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for port in ports
        if port.host_port
    )


def counts(pod: PortPod, ids: Ids, domain: Domain) -> bool:
    """Whether a pod of the worker uses host ports that no virtual pod of this binding shows.

    The computing cluster's scheduler sees the ports of this binding's pods. The scheduler does not
    see those of another binding's pods, nor of a binding with the same name in another computing
    cluster.
    """
    ours = may_be_ours(pod, ids=ids, domain=domain)
    return not ours and pod.status.phase not in _FINISHED


def taken_ports(pods: Iterable[PortPod], ids: Ids, domain: Domain) -> tuple[HostPort, ...]:
    """Return the host ports held by those pods that `counts` accepts, each once, sorted."""
    counted = (pod for pod in pods if counts(pod, ids, domain))
    return tuple(sorted({port for pod in counted for port in ports_of(pod)}))


def lean(pod: PortPod, ids: Ids, domain: Domain) -> PortPod:
    """Return the pod without most of its metadata, to save memory."""
    meta, own = pod.metadata, ownership_labels(ids, domain)
    kept = Meta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels={key: value for key, value in pod.labels.items() if key in own} or None,
    )
    return PortPod(metadata=kept, spec=pod.spec, status=pod.status)


# The reservation


def forge(reservation: Reservation) -> Json:
    """Return the manifest of a reservation pod. Its image is never pulled: the node is virtual."""
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
    """Whether a pod holds exactly the ports of `reservation`, and is not ending."""
    # A pod of an earlier node of that name is about to be garbage-collected.
    owners = [o.uid for o in pod.metadata.owner_references or () if o.kind == NODES.kind]
    return (
        not pod.deleting
        and pod.status.phase not in _FINISHED
        and pod.spec.node_name == reservation.vnode
        and ports_of(pod) == frozenset(reservation.ports)
        and all(uid == reservation.vnode_uid for uid in owners)
    )


def changes(pod: ReservationPod, reservation: Reservation, *, now: str) -> Json:
    """Return the status patch for a reservation pod that fits; empty if nothing differs.

    The status is scheduled and Running: a pod that stays Pending raises alerts in many clusters,
    and a finished pod holds no ports. The pod has no condition Ready: Kubernetes would set that
    condition to False whenever the node's heartbeat stops.
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
    """Return the namespace of all reservations, in which pods may hold host ports."""
    # Pod Security of a cluster may forbid host ports by default; reservations never run.
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
