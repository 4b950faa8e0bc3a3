"""Differences between the two clusters of a binding.

Pure: the caller passes existing and expected objects. An object that has our labels and that no
virtual object needs is an orphan. Pods of the Go implementation have no labels of their owner: such
a pod is an orphan, too, if it names a virtual node of this binding and a virtual pod that does not
exist. A pod that names neither a virtual pod nor a node is left for a person to delete. Every other
object without proof of its owner is only reported. Objects of other owners are ignored. Further
differences: virtual pods whose physical pod is missing, and several physical pods that run for one
virtual pod.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, bears_no_ids
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped
from kubeocean.syncer.pods.views import VIRTUAL_PODS, VirtualPod

__all__ = [
    "CSI_NODE",
    "POD",
    "PORT_RESERVATION",
    "TOKEN",
    "ComparedPod",
    "Counterpart",
    "Difference",
    "DifferenceKind",
    "ObjectSet",
    "beside_node",
    "compare",
    "compared_pod",
    "counterpart",
    "counterparts",
    "untyped",
]

POD: Final = "Pod"
TOKEN: Final = "token Secret"  # noqa: S105 - a kind
CSI_NODE: Final = "CSINode"
PORT_RESERVATION: Final = "port reservation"
_FOR_PODS: Final = frozenset({POD, TOKEN})


class DifferenceKind(StrEnum):
    """The kinds of differences between the two clusters of a binding."""

    ORPHAN = "Orphan"  # ours, and used by nothing
    LEGACY = "Legacy"  # of the Go implementation, for a virtual node of ours, used by nothing
    UNMAPPED = "Unmapped"  # a pod with the label of Kubeocean that names no virtual pod and no node
    UNPROVEN = "Unproven"  # used by nothing, but without proof of its owner
    LOST = "Lost"  # a virtual pod that should run has no physical pod
    TWIN = "Twin"  # two physical pods run for one virtual pod


@dataclass(frozen=True, slots=True)
class Counterpart:
    """An object that Kubeocean created in either cluster for an object of the computing cluster."""

    kind: str
    resource: Resource[Untyped]
    key: Key
    uid: str
    virtual: Key  # the virtual object that this object was created for
    virtual_uid: str
    original: Resource[Untyped]  # the resource of the virtual object
    ours: bool = True
    in_computing_cluster: bool = False  # not in the worker
    deleting: bool = False
    legacy_node: str = ""  # the virtual node of ours that a pod of the Go implementation names
    unmapped: bool = False  # no label of an owner, and no annotation of a virtual pod or node

    @property
    def for_pod(self) -> bool:
        """Whether the object was created in the worker for a virtual pod."""
        return self.kind in _FOR_PODS and not self.in_computing_cluster

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """Objects of one kind, and a function that returns whether such an object should exist."""

    objects: Iterable[Counterpart]
    wanted: Callable[[Counterpart], bool]


@dataclass(frozen=True, slots=True)
class ComparedPod:
    """A virtual pod: its UID, its physical pod's UID, and whether the physical pod should exist."""

    uid: str
    physical_uid: str
    runs: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the clusters; `identity` stays the same while its object exists."""

    problem: DifferenceKind
    subject: Counterpart
    message: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.problem, self.subject.uid

    @property
    def removable(self) -> bool:
        """Whether a sweep may delete the object, once both clusters confirm the difference."""
        return self.problem in (DifferenceKind.ORPHAN, DifferenceKind.LEGACY)

    @property
    def repairable(self) -> bool:
        """Whether `kubeocean repair` may delete the object."""
        return self.removable or self.problem is DifferenceKind.UNMAPPED


def untyped(resource: Resource[ObjectT]) -> Resource[Untyped]:
    """Return the same resource with the type `Untyped`, which holds the metadata alone."""
    fields = resource.group, resource.version, resource.plural, resource.kind
    return Resource(*fields, resource.namespaced, Untyped)


def counterpart(
    obj: Object,
    *,
    kind: str,
    resource: Resource[Untyped],
    original: Resource[Untyped],
    ids: Ids,
    domain: Domain,
    vnodes: Container[str] = (),
) -> Counterpart | None:
    """Return an object of the worker as a Counterpart; None if the object has another owner.

    `vnodes` are the names of this binding's virtual nodes.
    """
    ours = bears_ids(obj, ids=ids, domain=domain)
    owners = (domain.cluster_binding, domain.computing_cluster_id)
    managed = obj.labels.get(domain.managed_by) == domain.product
    if not ours and (not managed or any(owner in obj.labels for owner in owners)):
        return None
    if kind in _FOR_PODS:
        names = domain.virtual_pod_namespace, domain.virtual_pod_name, domain.virtual_pod_uid
    else:
        names = domain.virtual_namespace, domain.virtual_name, domain.virtual_uid
    namespace, name, uid = (obj.annotations.get(each, "") for each in names)
    return Counterpart(
        kind=kind,
        resource=resource,
        key=obj.key,
        uid=obj.uid,
        virtual=Key(namespace, name),
        virtual_uid=uid,
        original=original,
        ours=ours,
        deleting=obj.deleting,
        legacy_node=_legacy_node(obj, vnodes, domain) if kind == POD else "",
        unmapped=kind == POD and _is_unmapped(obj, domain),
    )


def _legacy_node(obj: Object, vnodes: Container[str], domain: Domain) -> str:
    """Return the virtual node of this binding that a pod of the Go implementation names, if any.

    Such a pod's name is computed from the virtual pod that its annotations name. A pod that a
    person created from the manifest of such a pod has another name, or a controller of the worker.
    """
    annotations = obj.annotations
    keys = domain.virtual_pod_namespace, domain.virtual_pod_name, domain.virtual_pod_uid
    namespace, name, uid = (annotations.get(each, "") for each in keys)
    node = annotations.get(domain.virtual_node_name, "")
    if not (namespace and name and uid) or node not in vnodes:
        return ""
    named = obj.name == naming.physical_name(name, namespace)
    return node if named and _has_no_owner(obj, domain) else ""


def _is_unmapped(obj: Object, domain: Domain) -> bool:
    """Whether a pod with the label of Kubeocean names neither a virtual pod nor a node."""
    keys = (
        domain.virtual_pod_namespace,
        domain.virtual_pod_name,
        domain.virtual_pod_uid,
        domain.virtual_node_name,
    )
    return _has_no_owner(obj, domain) and not any(each in obj.annotations for each in keys)


def _has_no_owner(obj: Object, domain: Domain) -> bool:
    """Whether an object has no label of a binding or computing cluster, and no ownerReferences."""
    return not obj.metadata.owner_references and bears_no_ids(obj, domain=domain)


def counterparts(
    objects: Iterable[Object],
    kind: str,
    resource: Resource[Untyped],
    original: Resource[Untyped],
    *,
    ids: Ids,
    domain: Domain,
    vnodes: Container[str] = (),
) -> list[Counterpart]:
    """Return the worker's objects that belong, or may belong, to this binding, as Counterparts."""
    candidates = (
        counterpart(
            each,
            kind=kind,
            resource=resource,
            original=original,
            ids=ids,
            domain=domain,
            vnodes=vnodes,
        )
        for each in objects
    )
    return [each for each in candidates if each is not None]


def beside_node(obj: Object, kind: str, resource: Resource[ObjectT], vnode: str) -> Counterpart:
    """Return a computing cluster's object that belongs to a virtual node, as a Counterpart."""
    return Counterpart(
        kind=kind,
        resource=untyped(resource),
        key=obj.key,
        uid=obj.uid,
        virtual=Key("", vnode),
        virtual_uid="",
        original=untyped(NODES),
        in_computing_cluster=True,
        deleting=obj.deleting,
    )


def compared_pod(pod: VirtualPod, domain: Domain) -> ComparedPod:
    """Return the compared fields of a virtual pod."""
    physical = pod.annotations.get(domain.physical_pod_uid, "")
    return ComparedPod(pod.uid, physical, runs=not pod.finished and not pod.deleting)


def compare(sets: Iterable[ObjectSet], pods: Mapping[Key, ComparedPod]) -> Iterator[Difference]:
    """Yield all differences between the clusters; `pods` are the virtual pods of the binding."""
    physical: dict[str, list[Counterpart]] = {}
    for each in sets:
        for obj in each.objects:
            if obj.kind == POD and obj.virtual_uid:
                physical.setdefault(obj.virtual_uid, []).append(obj)
            if not obj.deleting and not each.wanted(obj):
                yield _unwanted(obj)
    for key, pod in pods.items():
        ppods = physical.get(pod.uid, [])
        if pod.runs and pod.physical_uid and not ppods:
            yield _lost(key, pod)
        living = [each for each in ppods if each.ours and not each.deleting]
        if len(living) > 1:
            yield from (_twin(each, living) for each in living if each.uid != pod.physical_uid)


def _unwanted(obj: Counterpart) -> Difference:
    if obj.in_computing_cluster:
        why = f"the virtual node {obj.virtual} does not exist"
    elif obj.for_pod:
        why = f"the virtual pod {obj.virtual} (UID {obj.virtual_uid}) does not exist"
    else:
        why = f"no pod of this binding uses {obj.original.kind} {obj.virtual}"
    if obj.ours:
        return Difference(DifferenceKind.ORPHAN, obj, f"{obj} is left over: {why}")
    if obj.legacy_node:
        message = f"{obj} of the Go implementation on {obj.legacy_node} is left over: {why}"
        return Difference(DifferenceKind.LEGACY, obj, message)
    if obj.unmapped:
        message = f"{obj} has the label of Kubeocean, but names no virtual pod and no binding"
        return Difference(DifferenceKind.UNMAPPED, obj, message)
    message = f"{obj} may be left over: {why}; but its metadata does not prove its owner"
    return Difference(DifferenceKind.UNPROVEN, obj, message)


def _lost(key: Key, pod: ComparedPod) -> Difference:
    pods = untyped(VIRTUAL_PODS)
    subject = Counterpart(
        kind=POD,
        resource=pods,
        key=key,
        uid=pod.uid,
        virtual=key,
        virtual_uid=pod.uid,
        original=pods,
        in_computing_cluster=True,
    )
    message = f"The virtual pod {key} has not ended, but the worker has no pod for it"
    return Difference(DifferenceKind.LOST, subject, message)


def _twin(obj: Counterpart, living: list[Counterpart]) -> Difference:
    names = ", ".join(sorted(str(each.key) for each in living))
    return Difference(DifferenceKind.TWIN, obj, f"Several pods run for {obj.virtual}: {names}")
