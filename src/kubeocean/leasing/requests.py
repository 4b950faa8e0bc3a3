"""Requests: what a pod takes from its node, counted as the scheduler counts it.

The rules are those of `PodRequests` in k8s.io/component-helpers/resource, with the switches that
the scheduler sets (kubernetes/pkg/scheduler/framework/types.go), read at v1.34:

- containers add up, and so do init containers that restart always (sidecars);
- another init container runs before the containers, beside the sidecars that precede it: the pod
  needs at least that much;
- a running container holds what it was given while a resize to less is under way; a resize that
  the node cannot make is not counted;
- requests of the pod as a whole, which exist for cpu, memory and huge pages, replace that sum;
- overhead comes on top, and one pod is one pod;
- a pod that succeeded or failed takes nothing; one that is terminating still does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from kubeocean.leasing.amounts import PODS, Amounts, Written, add, larger, read_amounts
from kubeocean.runtime.quantity import Quantity

__all__ = ["Countable", "requests_of"]

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
    """Any view of a pod that has what is counted; `CountedPod` has that and nothing else."""

    @property
    def spec(self) -> _Spec: ...
    @property
    def status(self) -> _Status: ...


def requests_of(pod: Countable) -> Amounts:
    """What the pod takes from its node, itself included; nothing if it has ended."""
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
    peak: Amounts = {}  # while the pod starts
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            wanted = _of_container(container, held, infeasible=infeasible)
            add(total, wanted)
            add(sidecars, wanted)
            peak = larger(peak, sidecars)
        else:
            alone = dict(_requested(container.resources))
            add(alone, sidecars)
            peak = larger(peak, alone)
    return larger(total, peak)


def _of_container(
    container: _Container, held: Mapping[str, Amounts], *, infeasible: bool
) -> Amounts:
    wanted = _requested(container.resources)
    holds = held.get(container.name)
    if holds is None:
        return wanted
    return holds if infeasible else larger(wanted, holds)


def _held(status: _Status) -> dict[str, Amounts]:
    """By container: what a node that reports it has given and set apart."""
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
