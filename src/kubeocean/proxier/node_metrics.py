"""Metrics of a virtual node as a whole: the sum of its pods.

Other use of the worker's machine is not shown. Pods of others are left out of the kubelet's
summary; those of the virtual node get their virtual names. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeocean.proxier.metrics_text import PodName, PodSample, samples
from kubeocean.runtime.objects import Json

__all__ = ["UsageCounter", "UsageCounters", "node_metrics", "summarize", "usage_samples"]

_MAX_COUNTERS: Final = 10_000  # virtual nodes
_REMEMBERED_S: Final = 600.0  # for so long a pod missing in scrapes is remembered


@dataclass(slots=True)
class _PodUsage:
    """The CPU seconds of one pod: the sum counted so far, and the last sample of each container.

    A kubelet without pod-level samples is read by container; `""` is the pod as a whole.
    """

    counted_s: float = 0.0
    seen_s: float = 0.0
    last: dict[str, PodSample] = field(default_factory=dict)

    def add(self, samples: Mapping[str, PodSample]) -> float:
        """Count the samples of one scrape and return by how much the pod's usage has grown."""
        if ("" in samples) != ("" in self.last):
            # The first scrape, or a change between pod and containers: only the sums compare.
            total = sum(sample.value for sample in samples.values())
            increase = max(0.0, total - self.counted_s)
            self.last = dict(samples)
        else:
            increase = sum(self._increase(sample) for sample in samples.values())
        self.counted_s += increase
        return increase

    def _increase(self, sample: PodSample) -> float:
        before = self.last.get(sample.container)
        if before is not None and 0 < sample.time_ms < before.time_ms:
            return 0.0  # the answer to an earlier scrape, which arrived later
        self.last[sample.container] = sample
        if before is None or sample.value < before.value:
            return sample.value  # a new container, or one that restarted and counts from zero
        return sample.value - before.value


class UsageCounter:
    """The CPU seconds that the pods of one virtual node have used: a sum that never decreases.

    A pod that is missing in a scrape changes nothing; if it is scraped again within
    `_REMEMBERED_S`, only its use since the last sample is added.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._pods: dict[str, _PodUsage] = {}  # by UID

    def add(self, samples: Iterable[PodSample], now_s: float) -> float:
        """Count the samples of one scrape and return the node's CPU seconds."""
        by_pod: dict[str, dict[str, PodSample]] = {}
        for sample in samples:
            by_pod.setdefault(sample.pod.uid, {})[sample.container] = sample
        for uid, scraped in by_pod.items():
            usage = self._pods.setdefault(uid, _PodUsage())
            usage.seen_s = now_s
            self._total_s += usage.add(scraped)
        for uid, usage in tuple(self._pods.items()):
            if now_s - usage.seen_s > _REMEMBERED_S:
                del self._pods[uid]
        return self._total_s


class UsageCounters:
    """A counter for each virtual node that was scraped; the longest unused are dropped first."""

    def __init__(self) -> None:
        self._counters: dict[str, UsageCounter] = {}

    def of(self, vnode: str) -> UsageCounter:
        counter = self._counters.pop(vnode, None) or UsageCounter()
        self._counters[vnode] = counter
        while len(self._counters) > _MAX_COUNTERS:
            del self._counters[next(iter(self._counters))]
        return counter


def usage_samples(
    text: str, metric: str, pods: Mapping[tuple[str, str], PodName]
) -> list[PodSample]:
    """Return a pod-level sample of each pod, or samples of its containers if there is none."""
    whole = [sample for sample in samples(text, f"pod_{metric}", pods) if sample.value]
    known = {sample.pod for sample in whole}
    parts = [*samples(text, f"container_{metric}", pods)]
    return whole + [sample for sample in parts if sample.pod not in known]


def node_metrics(cpu_s: float, memory: float, times_ms: Iterable[int]) -> str:
    """Format CPU and memory of a virtual node, as of the latest of these times (0: unknown)."""
    latest = max(times_ms, default=0)
    at = f" {latest}" if latest else ""
    return (
        "# HELP node_cpu_usage_seconds_total CPU time of the pods of this node in core-seconds\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_s!r}{at}\n"
        "# HELP node_memory_working_set_bytes Working set of the pods of this node in bytes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory!r}{at}\n"
    )


_CPU: Final = ("usageNanoCores", "usageCoreNanoSeconds")
_MEMORY: Final = ("usageBytes", "workingSetBytes", "rssBytes", "pageFaults", "majorPageFaults")


def summarize(summary: Json, vnode: str, pods: Mapping[tuple[str, str], PodName]) -> Json:
    """Return a kubelet's summary, reduced to a virtual node and its pods."""
    renamed = [pod for pod in (_renamed(pod, pods) for pod in _list(summary, "pods")) if pod]
    node = _dict(summary, "node")
    usage: Json = {"nodeName": vnode}
    if "startTime" in node:
        usage["startTime"] = node["startTime"]
    for part, names in (("cpu", _CPU), ("memory", _MEMORY)):
        if part in node:
            usage[part] = _sum((_dict(pod, part) for pod in renamed), _dict(node, part), names)
    return {"node": usage, "pods": renamed}


def _renamed(pod: Json, pods: Mapping[tuple[str, str], PodName]) -> Json | None:
    reference = _dict(pod, "podRef")
    name = pods.get((str(reference.get("namespace", "")), str(reference.get("name", ""))))
    if name is None or (name.physical_uid and reference.get("uid") != name.physical_uid):
        return None
    return pod | {"podRef": {"name": name.name, "namespace": name.namespace, "uid": name.uid}}


def _sum(parts: Iterable[Json], node: Json, names: tuple[str, ...]) -> Json:
    total: Json = {"time": node["time"]} if "time" in node else {}
    for part in parts:
        for name in names:
            value = part.get(name)
            if isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    return total | {name: 0 for name in names if name in node and name not in total}


def _dict(holder: Json, name: str) -> Json:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _list(holder: Json, name: str) -> list[Json]:
    value = holder.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
