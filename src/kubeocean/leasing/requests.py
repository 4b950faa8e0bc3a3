"""Requests of pods, counted as the scheduler counts them, and their totals for each node.

The rules are those of `PodRequests` in k8s.io/component-helpers/resource, with the switches that
the scheduler sets (kubernetes/pkg/scheduler/framework/types.go), read at v1.34:

- containers add up, and so do init containers that restart always (sidecars);
- another init container runs before the containers, at the same time as the sidecars that precede
  it: the pod needs at least that much;
- a running container holds its allocated resources while a resize to less is under way; a resize
  that the node cannot make is not counted;
- requests of the pod as a whole, which exist for cpu, memory and huge pages, replace that sum;
- overhead comes on top, and one pod is one pod;
- a pod that succeeded or failed requests nothing; a pod that is terminating still does.

`CountedPod` has no more of a pod than its requests are counted from. Most pods of a worker are not
the binding's; their images, environments, volumes and most of their status are never held in
memory.

`NodeUsage` has the requests of all pods on a node, updated one pod at a time: a change costs as
much as that pod has resources, however many pods there are. The totals are at any time the sums
over all pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from kubeocean.leasing.amounts import PODS, Amounts, Written, add, larger, read_amounts, subtract
from kubeocean.runtime.objects import Condition, Object, Resource
from kubeocean.runtime.quantity import Quantity

__all__ = [
    "COUNTED_PODS",
    "Countable",
    "CountedContainer",
    "CountedContainerStatus",
    "CountedPod",
    "CountedPodSpec",
    "CountedPodStatus",
    "CountedResources",
    "NodeUsage",
    "requests_of",
]

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_POD_LEVEL: Final = frozenset({"cpu", "memory"})
_ONE_POD: Final[Amounts] = {PODS: Quantity.whole(1)}


class _Resources(Protocol):
    @property
    def requests(self) -> Written | None: ...


class _Container(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def resources(self) -> _Resources | None: ...
    @property
    def restart_policy(self) -> str | None: ...


class _ContainerStatus(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def resources(self) -> _Resources | None: ...
    @property
    def allocated_resources(self) -> Written | None: ...


class _Condition(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def reason(self) -> str: ...


class _Spec(Protocol):
    @property
    def containers(self) -> Sequence[_Container] | None: ...
    @property
    def init_containers(self) -> Sequence[_Container] | None: ...
    @property
    def overhead(self) -> Written | None: ...
    @property
    def resources(self) -> _Resources | None: ...


class _Status(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def conditions(self) -> Sequence[_Condition] | None: ...
    @property
    def container_statuses(self) -> Sequence[_ContainerStatus] | None: ...
    @property
    def init_container_statuses(self) -> Sequence[_ContainerStatus] | None: ...


class Countable(Protocol):
    """Any view of a pod from which its requests can be counted, such as `CountedPod`."""

    @property
    def spec(self) -> _Spec: ...
    @property
    def status(self) -> _Status: ...


def requests_of(pod: Countable) -> Amounts:
    """Return the requests of a pod, including one of the resource `pods`; empty for a pod that has
    ended."""
    if pod.status.phase in _TERMINAL:
        return {}
    total = _of_containers(pod)
    total.update(_of_pod_level(pod.spec.resources))
    add(total, read_amounts(pod.spec.overhead, field="spec.overhead"))
    add(total, _ONE_POD)
    return total


def _of_containers(pod: Countable) -> dict[str, Quantity]:
    held = _held(pod.status)
    infeasible = _resize_is_infeasible(pod.status.conditions)
    total: dict[str, Quantity] = {}
    for container in pod.spec.containers or ():
        add(total, _of_container(container, held, infeasible=infeasible))

    sidecars: dict[str, Quantity] = {}
    peak: Amounts = {}  # largest need of an init container while the pod starts
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            requested = _of_container(container, held, infeasible=infeasible)
            add(total, requested)
            add(sidecars, requested)
        else:
            alone = dict(_requested(container.resources))
            add(alone, sidecars)
            peak = larger(peak, alone)
    return larger(total, peak)


def _of_container(
    container: _Container, held: Mapping[str, Amounts], *, infeasible: bool
) -> Amounts:
    requested = _requested(container.resources)
    holds = held.get(container.name)
    if holds is None:
        return requested
    return holds if infeasible else larger(requested, holds)


def _held(status: _Status) -> dict[str, Amounts]:
    """Return the resources that each container holds on its node, by the container statuses."""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return {
        each.name: larger(_requested(each.resources), _set_apart(each))
        for each in statuses
        if each.resources is not None
    }


def _requested(resources: _Resources | None) -> Amounts:
    return read_amounts(resources.requests, field="requests") if resources else {}


def _set_apart(status: _ContainerStatus) -> Amounts:
    return read_amounts(status.allocated_resources, field="allocatedResources")


def _resize_is_infeasible(conditions: Iterable[_Condition] | None) -> bool:
    pending = (each for each in conditions or () if each.type == "PodResizePending")
    return any(each.reason == "Infeasible" for each in pending)


def _of_pod_level(resources: _Resources | None) -> dict[str, Quantity]:
    return {
        name: amount
        for name, amount in _requested(resources).items()
        if name in _POD_LEVEL or name.startswith("hugepages-")
    }


class CountedResources(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Resources of a container, without limits, which are not counted."""

    requests: dict[str, str | int | float] | None = None


class CountedContainer(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Container or init container, with the fields from which requests are counted."""

    name: str = ""
    resources: CountedResources | None = None
    restart_policy: str | None = None


class CountedContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Status of a container: the resources that the container holds."""

    name: str = ""
    resources: CountedResources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class CountedPodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Spec of a pod: its node, and the fields from which requests are counted."""

    node_name: str = ""
    containers: tuple[CountedContainer, ...] | None = None
    init_containers: tuple[CountedContainer, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: CountedResources | None = None


class CountedPodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Status of a pod: its phase, and the resources that its containers hold."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[CountedContainerStatus, ...] | None = None
    init_container_statuses: tuple[CountedContainerStatus, ...] | None = None


class CountedPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Pod with only the fields from which its requests are counted."""

    spec: CountedPodSpec = msgspec.field(default_factory=CountedPodSpec)
    status: CountedPodStatus = msgspec.field(default_factory=CountedPodStatus)


COUNTED_PODS: Final = Resource("", "v1", "pods", "Pod", True, CountedPod)


@dataclass(frozen=True, slots=True)
class _Share:
    amounts: Amounts
    ours: bool


class NodeUsage:
    """Requests on one worker node: of the binding's pods, and of all other pods."""

    __slots__ = ("_others", "_ours", "_shares")

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._ours: dict[str, Quantity] = {}
        self._others: dict[str, Quantity] = {}

    @property
    def ours(self) -> Amounts:
        """Sum of the requests of the binding's pods on the node."""
        return dict(self._ours)

    @property
    def others(self) -> Amounts:
        """Sum of the requests of the pods on the node that are not the binding's."""
        return dict(self._others)

    def __len__(self) -> int:
        return len(self._shares)

    def put(self, uid: str, amounts: Amounts, *, ours: bool) -> bool:
        """Set the requests of a pod; return whether the requests changed.

        A pod without requests is not kept.
        """
        share = _Share(amounts, ours) if amounts else None
        if self._shares.get(uid) == share:
            return False
        self.drop(uid)
        if share is not None:
            self._shares[uid] = share
            add(self._total(share), share.amounts)
        return True

    def drop(self, uid: str) -> bool:
        """Remove a pod; return whether the pod was counted."""
        share = self._shares.pop(uid, None)
        if share is None:
            return False
        subtract(self._total(share), share.amounts)
        return True

    def _total(self, share: _Share) -> dict[str, Quantity]:
        return self._ours if share.ours else self._others
