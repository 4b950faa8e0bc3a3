"""Summaries: what `/stats/summary` of a worker's node says of a virtual one.

Pods of others are left out; ours get their virtual names. What the node as a whole uses is what
these pods use: the rest of the machine is its owner's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kubeocean.proxier.exposition import PodName
from kubeocean.runtime.objects import Json

__all__ = ["summarize"]

_CPU: Final = ("usageNanoCores", "usageCoreNanoSeconds")
_MEMORY: Final = ("usageBytes", "workingSetBytes", "rssBytes", "pageFaults", "majorPageFaults")


def summarize(summary: Json, vnode: str, pods: Mapping[tuple[str, str], PodName]) -> Json:
    """The summary of a virtual node."""
    shown = [pod for pod in (_renamed(pod, pods) for pod in _list(summary, "pods")) if pod]
    node = _dict(summary, "node")
    about: Json = {"nodeName": vnode}
    if "startTime" in node:
        about["startTime"] = node["startTime"]
    for part, names in (("cpu", _CPU), ("memory", _MEMORY)):
        if part in node:
            about[part] = _sum((_dict(pod, part) for pod in shown), _dict(node, part), names)
    return {"node": about, "pods": shown}


def _renamed(pod: Json, pods: Mapping[tuple[str, str], PodName]) -> Json | None:
    said = _dict(pod, "podRef")
    found = pods.get((str(said.get("namespace", "")), str(said.get("name", ""))))
    if found is None or (found.uid_below and said.get("uid") != found.uid_below):
        return None
    return pod | {"podRef": {"name": found.name, "namespace": found.namespace, "uid": found.uid}}


def _sum(parts: Iterable[Json], node: Json, names: tuple[str, ...]) -> Json:
    total: Json = {"time": node["time"]} if "time" in node else {}
    for part in parts:
        for name in names:
            value = part.get(name)
            if isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    return total | {name: 0 for name in names if name in node and name not in total}


def _dict(holder: Json, name: str) -> Json:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _list(holder: Json, name: str) -> list[Json]:
    found = holder.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
