"""Exposition: a kubelet's metrics, of one virtual node's pods only, under their virtual names.

Text goes in and text comes out, line by line: values, timestamps, exemplars and every label but
those that name pod, namespace and container's pod stay byte for byte; HELP and TYPE lines stay with
the families that have a line left. A line that is not of a known pod is dropped, also one that
cannot be read: what may be somebody else's is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Family", "PodName", "families", "rewrite", "sample_name", "sample_value", "samples"]

# A metric's name, its labels if there are any, and the rest of the line.
_SAMPLE: Final = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?([ \t].*)'
)
# One label, and the comma that ends it where another follows.
_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|\Z)'
)
_ABOUT: Final = re.compile(r"# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
# The group of processes that a kubelet makes for a pod, by either of its two ways to name one.
_CGROUP: Final = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})\b")
_SUFFIXES: Final = ("_total", "_bucket", "_count", "_sum", "_created", "_info")


@dataclass(frozen=True, slots=True)
class PodName:
    """What a pod is called above."""

    namespace: str
    name: str
    uid: str
    uid_below: str = ""  # of the pod that it runs as; what is said of another one is not its


@dataclass(slots=True)
class Family:
    """A metric: what is said about it, and its samples."""

    name: str
    about: list[str]
    samples: list[str]


def rewrite(text: str, pods: Mapping[tuple[str, str], PodName], *, node: str = "") -> str:
    """The metrics of these pods, by namespace and name below; with a label for the node, if any."""
    lines: list[str] = []
    for family in families(text):
        kept = [line for line in (_renamed(line, pods, node) for line in family.samples) if line]
        if kept:
            lines += family.about
            lines += kept
    return "\n".join([*lines, ""]) if lines else ""


def samples(
    text: str, metric: str, pods: Mapping[tuple[str, str], PodName]
) -> Iterator[tuple[PodName, float, str]]:
    """Each pod with its value of a metric, and the time that stands behind it, if one does."""
    for family in families(text):
        for line in family.samples if family.name == metric else ():
            found = _SAMPLE.fullmatch(line)
            pod = _pod_of(_labels(found[2]), pods) if found is not None else None
            value = sample_value(line)
            if found is not None and pod is not None and value is not None:
                yield pod, value, " ".join(found[3].split()[1:2])


def families(text: str) -> Iterator[Family]:
    """The metrics in order; what comes before a sample belongs to it."""
    current: Family | None = None
    for line in text.split("\n"):
        about = _ABOUT.fullmatch(line)
        if about is not None:
            if current is None or current.name != about[2] or current.samples:
                if current is not None:
                    yield current
                current = Family(about[2], [], [])
            current.about.append(line)
            continue
        name = sample_name(line)
        if not name:
            continue
        if current is None or not _belongs(name, current.name):
            if current is not None:
                yield current
            current = Family(name, [], [])
        current.samples.append(line)
    if current is not None:
        yield current


def sample_name(line: str) -> str:
    """The metric that a line is a sample of; nothing if it is none."""
    sample = _SAMPLE.fullmatch(line)
    return sample[1] if sample is not None else ""


def sample_value(line: str) -> float | None:
    """The number in a line, if it is one."""
    sample = _SAMPLE.fullmatch(line)
    words = sample[3].split() if sample is not None else []
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _belongs(sample: str, family: str) -> bool:
    if sample == family:
        return True
    return sample.startswith(family) and sample[len(family) :] in _SUFFIXES


def _renamed(line: str, pods: Mapping[tuple[str, str], PodName], node: str) -> str:
    """The line under the pod's virtual name; nothing if it is not of one of these pods."""
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        return ""
    labels = _labels(sample[2])
    pod = _pod_of(labels, pods)
    if pod is None:
        return ""
    names = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
    shown = [f'{key}="{names.get(key, value)}"' for key, value in labels.items()]
    if node and "node" not in labels:
        shown.append(f'node="{node}"')
    return f"{sample[1]}{{{','.join(shown)}}}{sample[3]}"


def _pod_of(labels: Mapping[str, str], pods: Mapping[tuple[str, str], PodName]) -> PodName | None:
    pod = pods.get((labels.get("namespace", ""), labels.get("pod", "")))
    if pod is None or not pod.uid_below:
        return pod
    # Under one name there may have been another pod before, and there may be another one by now.
    group = _CGROUP.search(labels.get("id", ""))
    said = (labels.get("pod_uid", ""), group[1].replace("_", "-") if group else "")
    return pod if all(uid in ("", pod.uid_below) for uid in said) else None


def _labels(text: str | None) -> dict[str, str]:
    """The labels between the braces; none at all if they are not labels, or one is there twice."""
    labels: dict[str, str] = {}
    at, end = 0, len(text or "")
    while text and at < end:
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            return {}
        labels[found[1]] = found[2]
        at = found.end()
    return labels
