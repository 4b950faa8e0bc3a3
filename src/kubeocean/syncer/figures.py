"""Figures: what a syncer tells about one binding, under the names that it always had.

Nodes and their resources are read from the caches when somebody looks, so that a virtual node that
is gone has no series; no cluster is asked for anything. Pods are tallied as they change. Only those
of this binding count.

Processors are counted in thousandths, memory and storage in MiB, everything else in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from kubeocean.api.group import TRUE, Domain
from kubeocean.leasing.usage import NodeUsage
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.metrics import Counter, Family, Metrics, Readings
from kubeocean.runtime.objects import Key, controller_of
from kubeocean.runtime.quantity import ZERO, Quantity
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.world import World

__all__ = ["PHASES", "RESOURCES", "Figures", "PodCounts", "Tally", "in_units", "is_counted"]

_MILLI: Final = 10**6  # in nano, as quantities count
_WHOLE: Final = 10**9
_MIB: Final = _WHOLE * 2**20
# What is told of, and in which unit.
RESOURCES: Final[Mapping[str, int]] = {
    "cpu": _MILLI,
    "memory": _MIB,
    "ephemeral-storage": _MIB,
    "gocrane.io/cpu": _MILLI,
    "gocrane.io/memory": _MIB,
    "nvidia.com/gpu": _WHOLE,
    "tke.cloud.tencent.com/eni-ip": _WHOLE,
    "tke.cloud.tencent.com/sub-eni": _WHOLE,
    "tke.cloud.tencent.com/direct-eni": _WHOLE,
    "tke.cloud.tencent.com/tke-shared-rdma": _WHOLE,
}
PHASES: Final = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
_ASIDE: Final = "Unknown"

_PREFIX: Final = "kubeocean_syncer_"
_BINDING: Final = "clusterbinding"
_AMOUNTS: Final = {
    "origin_resource": "What the worker has for pods",
    "available_resource": "What the virtual side offers of it",
    "physical_usage": "What pods of others request of it",
    "virtual_usage": "What our pods request of it",
}
_NODES: Final = Family(f"{_PREFIX}vnode_total", "Virtual nodes", (_BINDING,))
_OF_NODES: Final = tuple(
    Family(f"{_PREFIX}vnode_{name}", f"{doc}, by virtual node", (_BINDING, "node", "resource"))
    for name, doc in _AMOUNTS.items()
)
_OF_CLUSTERS: Final = tuple(
    Family(f"{_PREFIX}cluster_{name}", f"{doc}, all lent nodes together", (_BINDING, "resource"))
    for name, doc in _AMOUNTS.items()
)
_VIRTUAL_PODS: Final = Family(
    f"{_PREFIX}virtual_pod_total", "Pods on virtual nodes, by phase", (_BINDING, "phase")
)
_PHYSICAL_PODS: Final = Family(
    f"{_PREFIX}physical_pod_total", "Pods that run for them, by phase", (_BINDING, "phase")
)

_Rows: TypeAlias = list[tuple[tuple[str, ...], float]]
_Numbers: TypeAlias = tuple[float, float, float, float]  # in the order of _AMOUNTS


class _Phased(Protocol):
    @property
    def phase(self) -> str: ...


class _Pod(Protocol):
    @property
    def status(self) -> _Phased: ...


_PodT = TypeVar("_PodT", bound=_Pod)


def in_units(resource: str, amount: Quantity) -> float:
    """The number that stands for an amount."""
    return amount.nano / RESOURCES[resource]


def is_counted(pod: VirtualPod, domain: Domain) -> bool:
    """Whether a pod is one of those that are lent a node: not what each node has anyway."""
    if pod.metadata.namespace in domain.system_namespaces:
        return False
    owner = controller_of(pod)
    if owner is None or owner.kind != "DaemonSet":
        return True
    return pod.annotations.get(domain.running_daemonset) == TRUE


class Tally(Generic[_PodT]):
    """How many pods of each node are in each phase, kept current one change at a time.

    `node_of` names the virtual node of a pod, or nothing if the pod does not count.
    """

    def __init__(self, node_of: Callable[[_PodT], str]) -> None:
        self._node_of = node_of
        self._counts: dict[tuple[str, str], int] = {}  # by node and phase; none is zero

    def __len__(self) -> int:
        return len(self._counts)

    def follow(self, old: _PodT | None, new: _PodT | None) -> None:
        """A handler for an informer of pods."""
        for pod, change in ((old, -1), (new, 1)):
            if pod is None or not (node := self._node_of(pod)):
                continue
            key = node, pod.status.phase if pod.status.phase in PHASES else _ASIDE
            count = self._counts.pop(key, 0) + change
            if count:
                self._counts[key] = count

    def on(self, nodes: Container[str]) -> dict[str, int]:
        """The pods on these nodes by phase, also by those that none is in."""
        totals = dict.fromkeys(PHASES, 0)
        for (node, phase), count in list(self._counts.items()):
            if node in nodes:
                totals[phase] += count
        return totals


class PodCounts:
    """What became of attempts to make pods in the worker: tried, failed; got one, got none."""

    def __init__(self, binding: str, metrics: Metrics) -> None:
        def counter(name: str, doc: str) -> Counter:
            return metrics.counter(_PREFIX + name, doc, [_BINDING]).labels(binding)

        self.tried = counter("create_pod_total", "Attempts to make a physical pod")
        self.failed = counter(
            "create_pod_errors_total", "Attempts to make a physical pod that failed"
        )
        self.made = counter("pod_created_total", "Virtual pods that got a pod")
        self.unmade = counter(
            "pod_created_failed_total", "Virtual pods that failed for want of a pod"
        )


class Figures:
    """All metrics of one binding that are not a controller's own.

    `usage` tells what the pods on one of the worker's nodes request.
    """

    def __init__(self, world: World, usage: Callable[[str], NodeUsage]) -> None:
        self._world = world
        self._usage = usage
        self._tells: Callable[[], bool] = lambda: True
        domain = world.domain
        self._virtual = Tally[VirtualPod](
            lambda pod: pod.spec.node_name if is_counted(pod, domain) else ""
        )
        # Others may share the worker: a pod says which virtual node it stands on.
        self._physical = Tally[PhysicalPod](
            lambda pod: pod.annotations.get(domain.virtual_node_name, "")
        )
        world.vpods.on_change(self._virtual.follow)
        world.ppods.on_change(self._physical.follow)
        world.metrics.read_gauges(
            (_NODES, *_OF_NODES, *_OF_CLUSTERS, _VIRTUAL_PODS, _PHYSICAL_PODS), self._read
        )

    def share(self, tells: Callable[[], bool]) -> None:
        """Have figures only while this says so; before anything runs."""
        self._tells = tells

    # Reading; in another thread, hence the copies

    def _read(self) -> Readings:
        if not self._tells():
            return {}
        binding = self._world.binding_name
        vnodes = list(self._world.vnodes.items())
        names = {vnode.name for vnode in vnodes}
        readings: dict[str, _Rows] = {_NODES.name: [((binding,), float(len(vnodes)))]}
        for family, tally in ((_VIRTUAL_PODS, self._virtual), (_PHYSICAL_PODS, self._physical)):
            readings[family.name] = [
                ((binding, phase), float(count)) for phase, count in tally.on(names).items()
            ]
        return readings | self._amounts(binding, vnodes)

    def _amounts(self, binding: str, vnodes: Iterable[Node]) -> dict[str, _Rows]:
        rows: dict[str, _Rows] = {family.name: [] for family in (*_OF_NODES, *_OF_CLUSTERS)}
        totals: dict[str, list[float]] = {}
        for vnode in vnodes:
            for resource, numbers in self._of_node(vnode).items():
                total = totals.setdefault(resource, [0.0] * len(_AMOUNTS))
                labels = (binding, vnode.name, resource)
                for at, (family, number) in enumerate(zip(_OF_NODES, numbers, strict=True)):
                    rows[family.name].append((labels, number))
                    total[at] += number
        for resource, total in totals.items():
            for family, number in zip(_OF_CLUSTERS, total, strict=True):
                rows[family.name].append(((binding, resource), number))
        return rows

    def _of_node(self, vnode: Node) -> dict[str, _Numbers]:
        """Of each resource that the worker's node has: what there is, is offered, and is used."""
        name = self._world.pnode_of(vnode)
        pnode = self._world.pnodes.get(Key("", name))
        if pnode is None:
            return {}
        has = pnode.status.allocatable or pnode.status.capacity or {}
        offers = vnode.status.allocatable or {}
        usage = self._usage(name)
        others, ours = usage.others, usage.ours
        return {
            resource: (
                in_units(resource, Quantity.parse(has[resource])),
                in_units(resource, Quantity.parse(offers.get(resource, 0))),
                in_units(resource, others.get(resource, ZERO)),
                in_units(resource, ours.get(resource, ZERO)),
            )
            for resource in RESOURCES
            if resource in has
        }
