"""Rewriting of a kubelet's metrics page to the pods of one virtual node, under their virtual names.

Text is rewritten line by line: values, timestamps, exemplars and every label but those that name
the pod, its namespace and its UID stay byte for byte; HELP and TYPE lines stay with the families
that have a sample left. A line that is not of a known pod, or cannot be parsed, is dropped, because
the line may be about a pod of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["PodName", "PodSample", "rewrite", "samples"]

# Name of a metric, its labels if there are any, and the rest of the line.
_SAMPLE: Final = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?([ \t].*)'
)
# One label, with the comma before the next.
_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|\Z)'
)
_COMMENT: Final = re.compile(r"# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
# The cgroup of a pod, in either of the two ways that kubelets name one.
_CGROUP: Final = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})\b")
_DIGITS: Final = 18  # of a time that is read
_SUFFIXES: Final = ("_total", "_bucket", "_count", "_sum", "_created", "_info")


@dataclass(frozen=True, slots=True)
class PodName:
    """Namespace, name and UID of a virtual pod, and the UID of its physical pod."""

    namespace: str
    name: str
    uid: str
    physical_uid: str = ""  # of the physical pod; samples of another UID do not count


@dataclass(frozen=True, slots=True)
class PodSample:
    """A sample of a metric of a pod or of one of its containers."""

    pod: PodName
    container: str  # empty: of the pod as a whole
    value: float
    time_ms: int = 0  # 0: the sample has no time


@dataclass(slots=True)
class _Family:
    """A metric family: its HELP, TYPE and UNIT lines, and its samples."""

    name: str
    comments: list[str]
    samples: list[str]


def rewrite(text: str, pods: Mapping[tuple[str, str], PodName], *, node: str = "") -> str:
    """Return a metrics page with only the samples of these pods, under their virtual names.

    `pods` are by namespace and name of the physical pod. A label `node` is added if one is given.
    """
    lines: list[str] = []
    for family in _families(text):
        kept = [line for line in (_renamed(line, pods, node) for line in family.samples) if line]
        if kept:
            lines += family.comments
            lines += kept
    return "\n".join([*lines, ""]) if lines else ""


def samples(text: str, metric: str, pods: Mapping[tuple[str, str], PodName]) -> Iterator[PodSample]:
    """Yield the samples of `metric` that belong to these pods."""
    for family in _families(text):
        for line in family.samples if family.name == metric else ():
            sample, value = _SAMPLE.fullmatch(line), _sample_value(line)
            if sample is None or value is None:
                continue
            labels = _labels(sample[2])
            pod = _pod_of(labels, pods)
            if pod is not None:
                time = "".join(sample[3].split()[1:2])
                time_ms = int(time[:_DIGITS]) if time.isascii() and time.isdigit() else 0
                yield PodSample(pod, labels.get("container", ""), value, time_ms)


def _families(text: str) -> Iterator[_Family]:
    """Yield the metric families of a page in order."""
    current: _Family | None = None
    for line in text.split("\n"):
        comment = _COMMENT.fullmatch(line)
        if comment is not None:
            if current is None or current.name != comment[2] or current.samples:
                if current is not None:
                    yield current
                current = _Family(comment[2], [], [])
            current.comments.append(line)
            continue
        name = _sample_name(line)
        if not name:
            continue
        if current is None or not _belongs(name, current.name):
            if current is not None:
                yield current
            current = _Family(name, [], [])
        current.samples.append(line)
    if current is not None:
        yield current


def _sample_name(line: str) -> str:
    """Return the metric's name in a line of a page; empty if the line is not a sample."""
    sample = _SAMPLE.fullmatch(line)
    return sample[1] if sample is not None else ""


def _sample_value(line: str) -> float | None:
    """Return the value in a line of a page; None if the line is not a sample."""
    sample = _SAMPLE.fullmatch(line)
    words = sample[3].split() if sample is not None else []
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _belongs(sample: str, family: str) -> bool:
    """Whether a sample belongs to a metric family: `x_bucket`, `x_sum` and so on belong to `x`."""
    if sample == family:
        return True
    return sample.startswith(family) and sample[len(family) :] in _SUFFIXES


def _renamed(line: str, pods: Mapping[tuple[str, str], PodName], node: str) -> str:
    """Return a sample line with the virtual pod's names; empty if none of these pods is its."""
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        return ""
    labels = _labels(sample[2])
    pod = _pod_of(labels, pods)
    if pod is None:
        return ""
    names = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
    renamed = [f'{key}="{names.get(key, value)}"' for key, value in labels.items()]
    if node and "node" not in labels:
        renamed.append(f'node="{node}"')
    return f"{sample[1]}{{{','.join(renamed)}}}{sample[3]}"


def _pod_of(labels: Mapping[str, str], pods: Mapping[tuple[str, str], PodName]) -> PodName | None:
    pod = pods.get((labels.get("namespace", ""), labels.get("pod", "")))
    if pod is None or not pod.physical_uid:
        return pod
    # Another pod may have had the name before, or may have it by now.
    cgroup = _CGROUP.search(labels.get("id", ""))
    uids = (labels.get("pod_uid", ""), cgroup[1].replace("_", "-") if cgroup else "")
    return pod if all(uid in ("", pod.physical_uid) for uid in uids) else None


def _labels(text: str | None) -> dict[str, str]:
    """Return the labels between the braces; empty if one is malformed or given twice."""
    labels: dict[str, str] = {}
    position, end = 0, len(text or "")
    while text and position < end:
        label = _LABEL.match(text, position)
        if label is None or label[1] in labels:
            return {}
        labels[label[1]] = label[2]
        position = label.end()
    return labels
