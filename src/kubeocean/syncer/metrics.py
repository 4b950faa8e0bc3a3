"""Metrics of one binding, under the names that every version has used.

Nodes and their resources are read from the caches at each scrape, so that a virtual node that is
gone has no series; no request is sent. Pods are counted as they change. Only nodes and pods of this
binding count.

CPU is in millicores, memory and storage are in MiB, everything else is in pieces.

A class of this module, or of `pods/metrics.py` for those of pods, creates the instruments of the
component that counts: add a metric here, and to docs/understand/metrics.md, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import product
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from kubeocean.api.group import TRUE, Domain
from kubeocean.leasing.requests import NodeUsage
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.metrics import Family, Metrics, Readings
from kubeocean.runtime.objects import Key, controller_of
from kubeocean.runtime.quantity import ZERO, Quantity
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

__all__ = [
    "PHASES",
    "RESOURCES",
    "LeaseMetrics",
    "PhaseCounter",
    "SweepMetrics",
    "SyncerMetrics",
    "in_units",
    "is_counted",
]

_MILLI: Final = 10**6  # in nano, as quantities count
_WHOLE: Final = 10**9
_MIB: Final = _WHOLE * 2**20
# The resources that have metrics, and their units.
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
_OTHER_PHASE: Final = "Unknown"

_PREFIX: Final = "kubeocean_syncer_"
_BINDING: Final = "clusterbinding"
_AMOUNTS: Final = {
    "origin_resource": "Allocatable amounts of the worker's nodes",
    "available_resource": "Allocatable amounts of the virtual nodes",
    "physical_usage": "Requests of the worker's own pods",
    "virtual_usage": "Requests of pods that run for virtual pods",
}
_NODES: Final = Family(f"{_PREFIX}vnode_total", "Virtual nodes", (_BINDING,))
_OF_NODES: Final = tuple(
    Family(f"{_PREFIX}vnode_{name}", f"{doc}, by virtual node", (_BINDING, "node", "resource"))
    for name, doc in _AMOUNTS.items()
)
_OF_CLUSTERS: Final = tuple(
    Family(f"{_PREFIX}cluster_{name}", f"{doc}, summed over all lent nodes", (_BINDING, "resource"))
    for name, doc in _AMOUNTS.items()
)
_VIRTUAL_PODS: Final = Family(
    f"{_PREFIX}virtual_pod_total", "Pods on virtual nodes, by phase", (_BINDING, "phase")
)
_PHYSICAL_PODS: Final = Family(
    f"{_PREFIX}physical_pod_total", "Physical pods of virtual nodes, by phase", (_BINDING, "phase")
)

_SYNCED: Final = Family(
    f"{_PREFIX}last_sync_timestamp_seconds",
    "When all changes of nodes, policies and pods were last carried out, as seconds since 1970",
    (_BINDING,),
)

_Rows: TypeAlias = list[tuple[tuple[str, ...], float]]
_Numbers: TypeAlias = tuple[float, float, float, float]  # in the order of _AMOUNTS


class _Phased(Protocol):
    @property
    def phase(self) -> str: ...


class _PhasedPod(Protocol):
    @property
    def status(self) -> _Phased: ...


_PodT = TypeVar("_PodT", bound=_PhasedPod)


def in_units(resource: str, amount: Quantity) -> float:
    """Return an amount of a resource in the unit of its metric, such as millicores or MiB."""
    return amount.nano / RESOURCES[resource]


def is_counted(pod: VirtualPod, domain: Domain) -> bool:
    """Whether metrics count a pod: no system pods, and DaemonSet pods only if annotated to run."""
    if pod.metadata.namespace in domain.system_namespaces:
        return False
    owner = controller_of(pod)
    if owner is None or owner.kind != "DaemonSet":
        return True
    return pod.annotations.get(domain.running_daemonset) == TRUE


class PhaseCounter(Generic[_PodT]):
    """Counts the pods of each virtual node by phase, from the changes of an informer.

    `node_of` returns the virtual node of a pod, or an empty name if the pod does not count.
    """

    def __init__(self, node_of: Callable[[_PodT], str]) -> None:
        self._node_of = node_of
        self._counts: dict[tuple[str, str], int] = {}  # by node and phase; no count is zero

    def __len__(self) -> int:
        return len(self._counts)

    def follow(self, old: _PodT | None, new: _PodT | None) -> None:
        """Update the counts after a change of a pod; a handler for an informer of pods."""
        for pod, change in ((old, -1), (new, 1)):
            if pod is None or not (node := self._node_of(pod)):
                continue
            key = node, pod.status.phase if pod.status.phase in PHASES else _OTHER_PHASE
            count = self._counts.pop(key, 0) + change
            if count:
                self._counts[key] = count

    def on(self, nodes: Container[str]) -> dict[str, int]:
        """Return the number of pods on `nodes` in each phase."""
        totals = dict.fromkeys(PHASES, 0)
        for (node, phase), count in list(self._counts.items()):
            if node in nodes:
                totals[phase] += count
        return totals


class LeaseMetrics:
    """Counters of the renewals of virtual nodes' Leases, succeeded and failed."""

    def __init__(self, metrics: Metrics) -> None:
        renewals = metrics.counter(
            f"{_PREFIX}lease_renewals_total", "Renewals of node leases", ["result"]
        )
        self.renewed, self.failed = renewals.labels("renewed"), renewals.labels("failed")


class SweepMetrics:
    """Metrics of the sweep, which exist from the start for these kinds and problems."""

    def __init__(self, metrics: Metrics, kinds: Iterable[str], problems: Iterable[str]) -> None:
        self._series = tuple(product(kinds, problems))
        self._differences = metrics.gauge(
            "kubeocean_sweep_inconsistencies",
            "Differences in the last comparison, by kind",
            ["kind", "problem"],
        )
        self._removed = metrics.counter(
            "kubeocean_sweep_removed_total", "Orphans that were removed, by kind", ["kind"]
        )
        for kind, _ in self._series:
            self._removed.labels(kind)
        self.compared({})

    def compared(self, differences: Mapping[tuple[str, str], int]) -> None:
        """Set the number of differences of the last comparison, by kind and problem."""
        for kind, problem in self._series:
            self._differences.labels(kind, problem).set(differences.get((kind, problem), 0))

    def removed(self, kind: str) -> None:
        """Count an orphan that the sweep removed."""
        self._removed.labels(kind).inc()


class SyncerMetrics:
    """Gauges of one binding's nodes and pods; `usage` gives the requests on one worker node."""

    def __init__(
        self,
        clusters: Clusters,
        usage: Callable[[str], NodeUsage],
        *,
        is_idle: Callable[[], bool],
    ) -> None:
        self._clusters = clusters
        self._is_idle = is_idle
        self._synced_at = 0.0
        self._usage = usage
        self._exposes: Callable[[], bool] = lambda: True
        domain = clusters.domain
        self._virtual = PhaseCounter[VirtualPod](
            lambda pod: pod.spec.node_name if is_counted(pod, domain) else ""
        )
        # Several bindings may share the worker: an annotation names the pod's virtual node.
        self._physical = PhaseCounter[PhysicalPod](
            lambda pod: pod.annotations.get(domain.virtual_node_name, "")
        )
        clusters.vpods.on_change(self._virtual.follow)
        clusters.ppods.on_change(self._physical.follow)
        clusters.metrics.read_gauges(
            (_NODES, *_OF_NODES, *_OF_CLUSTERS, _VIRTUAL_PODS, _PHYSICAL_PODS, _SYNCED), self._read
        )

    def share(self, exposes: Callable[[], bool]) -> None:
        """Expose the metrics only while `exposes` returns True; call before the syncer runs."""
        self._exposes = exposes

    # Reading, in another thread: hence the copies of lists

    def _read(self) -> Readings:
        if not self._exposes():
            return {}
        binding = self._clusters.binding_name
        vnodes = list(self._clusters.vnodes.items())
        names = {vnode.name for vnode in vnodes}
        readings: dict[str, _Rows] = {
            _NODES.name: [((binding,), float(len(vnodes)))],
            _SYNCED.name: [((binding,), self._last_sync())],
        }
        for family, counter in ((_VIRTUAL_PODS, self._virtual), (_PHYSICAL_PODS, self._physical)):
            readings[family.name] = [
                ((binding, phase), float(count)) for phase, count in counter.on(names).items()
            ]
        return readings | self._amounts(binding, vnodes)

    def _last_sync(self) -> float:
        """Return the timestamp of the last moment when the worker answered and no work waited."""
        clusters = self._clusters
        if clusters.worker_health.answers and clusters.synced and self._is_idle():
            self._synced_at = clusters.clock.now().timestamp()
        return self._synced_at

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
        """Return the amounts of each resource of a node, in the order of `_AMOUNTS`."""
        name = self._clusters.pnode_of(vnode)
        pnode = self._clusters.pnodes.get(Key("", name))
        if pnode is None:
            return {}
        has = pnode.status.allocatable or pnode.status.capacity or {}
        offers = vnode.status.allocatable or {}
        usage = self._usage(name)
        others, ours = usage.others, usage.ours
        return {
            resource: (
                in_units(resource, Quantity.stored(has[resource])),
                in_units(resource, Quantity.stored(offers.get(resource, 0))),
                in_units(resource, others.get(resource, ZERO)),
                in_units(resource, ours.get(resource, ZERO)),
            )
            for resource in RESOURCES
            if resource in has
        }
