"""Comparison: what is there on one side and should not be, seen from the other.

Pure: whoever looks says what there is and what is wanted. An object that is ours and that nothing
wants is an orphan; one that the earlier implementation may have made is told of and left, because
it does not say whose it is. What is somebody else's is not even looked at. Besides: virtual pods
whose physical pod is gone, and physical pods that run for one virtual pod twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped
from kubeocean.syncer.podviews import VIRTUAL_PODS

__all__ = [
    "POD",
    "TOKEN",
    "Bound",
    "Finding",
    "Kept",
    "Problem",
    "Trace",
    "compare",
    "trace",
    "untyped",
]

POD: Final = "Pod"
TOKEN: Final = "token Secret"  # noqa: S105 - a kind
_FOR_PODS: Final = frozenset({POD, TOKEN})


class Problem(StrEnum):
    """What can be wrong."""

    ORPHAN = "Orphan"  # ours, and nothing wants it
    UNPROVEN = "Unproven"  # nothing wants it, but nobody can tell whose it is
    LOST = "Lost"  # a virtual pod says that it runs, and there is nothing below
    TWIN = "Twin"  # two physical pods run for one virtual pod


@dataclass(frozen=True, slots=True)
class Trace:
    """An object that stands for one on the other side."""

    kind: str
    resource: Resource[Untyped]
    key: Key
    uid: str
    virtual: Key  # what it stands for
    virtual_uid: str
    original: Resource[Untyped]  # where that lives
    ours: bool = True
    above: bool = False  # it lives in the computing cluster
    deleting: bool = False

    @property
    def for_pod(self) -> bool:
        """Whether it stands for a virtual pod."""
        return self.kind in _FOR_PODS and not self.above

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Objects of one kind, and whether one is wanted."""

    traces: Iterable[Trace]
    wanted: Callable[[Trace], bool]


@dataclass(frozen=True, slots=True)
class Bound:
    """A virtual pod: its UID, the UID of its physical pod, and whether that should be there."""

    uid: str
    physical_uid: str
    runs: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; it is the same one as long as its object is."""

    problem: Problem
    subject: Trace
    message: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.problem, self.subject.uid

    @property
    def removable(self) -> bool:
        return self.problem is Problem.ORPHAN


def untyped(resource: Resource[ObjectT]) -> Resource[Untyped]:
    """The same place, for metadata alone."""
    where = resource.group, resource.version, resource.plural, resource.kind
    return Resource(*where, resource.namespaced, Untyped)


def trace(
    obj: Object,
    *,
    kind: str,
    resource: Resource[Untyped],
    original: Resource[Untyped],
    ids: Ids,
    domain: Domain,
) -> Trace | None:
    """What an object of the worker stands for; None if it is somebody else's."""
    ours = bears_ids(obj, ids=ids, domain=domain)
    marks = (domain.cluster_binding, domain.computing_cluster_id)
    managed = obj.labels.get(domain.managed_by) == domain.product
    if not ours and (not managed or any(mark in obj.labels for mark in marks)):
        return None
    said = obj.annotations
    if kind in _FOR_PODS:
        names = domain.virtual_pod_namespace, domain.virtual_pod_name, domain.virtual_pod_uid
    else:
        names = domain.virtual_namespace, domain.virtual_name, domain.virtual_uid
    namespace, name, uid = (said.get(each, "") for each in names)
    return Trace(
        kind=kind,
        resource=resource,
        key=obj.key,
        uid=obj.uid,
        virtual=Key(namespace, name),
        virtual_uid=uid,
        original=original,
        ours=ours,
        deleting=obj.deleting,
    )


def compare(kept: Iterable[Kept], pods: Mapping[Key, Bound]) -> Iterator[Finding]:
    """All that is wrong."""
    physical: dict[str, list[Trace]] = {}
    for each in kept:
        for found in each.traces:
            if found.kind == POD and found.virtual_uid:
                physical.setdefault(found.virtual_uid, []).append(found)
            if not found.deleting and not each.wanted(found):
                yield _unwanted(found)
    for key, pod in pods.items():
        there = physical.get(pod.uid, [])
        if pod.runs and pod.physical_uid and not there:
            yield _lost(key, pod)
        living = [each for each in there if each.ours and not each.deleting]
        if len(living) > 1:
            yield from (_twin(each, living) for each in living if each.uid != pod.physical_uid)


def _unwanted(found: Trace) -> Finding:
    if found.above:
        why = f"the virtual node {found.virtual} is not there"
    elif found.for_pod:
        why = f"the virtual pod {found.virtual} (UID {found.virtual_uid}) is not there"
    else:
        why = f"no pod here uses {found.original.kind} {found.virtual}"
    if found.ours:
        return Finding(Problem.ORPHAN, found, f"{found} is left over: {why}")
    said = f"{found} may be left over: {why}; but nothing on it proves whose it is"
    return Finding(Problem.UNPROVEN, found, said)


def _lost(key: Key, pod: Bound) -> Finding:
    pods = untyped(VIRTUAL_PODS)
    subject = Trace(
        kind=POD,
        resource=pods,
        key=key,
        uid=pod.uid,
        virtual=key,
        virtual_uid=pod.uid,
        original=pods,
        above=True,
    )
    said = f"The virtual pod {key} says that it runs, but the worker has no pod for it"
    return Finding(Problem.LOST, subject, said)


def _twin(found: Trace, living: list[Trace]) -> Finding:
    names = ", ".join(sorted(str(each.key) for each in living))
    return Finding(Problem.TWIN, found, f"Several pods run for {found.virtual}: {names}")
