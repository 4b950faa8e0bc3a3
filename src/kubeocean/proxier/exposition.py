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

__all__ = ["Family", "PodName", "families", "rewrite", "sample_name", "sample_value", "totals"]

# A metric's name, its labels if there are any, and the rest of the line.
_SAMPLE: Final = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?([ \t].*)'
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ABOUT: Final = re.compile(r"# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
_SUFFIXES: Final = ("_total", "_bucket", "_count", "_sum", "_created", "_info")


@dataclass(frozen=True, slots=True)
class PodName:
    """What a pod is called above."""

    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class Family:
    """A metric: what is said about it, and its samples."""

    name: str
    about: list[str]
    samples: list[str]


def rewrite(text: str, pods: Mapping[tuple[str, str], PodName]) -> str:
    """The metrics of these pods, by namespace and name below."""
    lines: list[str] = []
    for family in families(text):
        kept = [line for line in (_renamed(line, pods) for line in family.samples) if line]
        if kept:
            lines += family.about
            lines += kept
    return "\n".join([*lines, ""]) if lines else ""


def totals(text: str, metric: str, pods: Mapping[tuple[str, str], PodName]) -> float:
    """The sum of a metric over these pods."""
    total = 0.0
    for family in families(text):
        for line in family.samples if family.name == metric else ():
            if _renamed(line, pods):
                total += sample_value(line) or 0.0
    return total


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


def _renamed(line: str, pods: Mapping[tuple[str, str], PodName]) -> str:
    """The line under the pod's virtual name; nothing if it is not of one of these pods."""
    sample = _SAMPLE.fullmatch(line)
    if sample is None or not sample[2]:
        return ""
    labels = [(found[1], found[2]) for found in _LABEL.finditer(sample[2])]
    given = dict(labels)
    if len(given) != len(labels):
        return ""
    pod = pods.get((given.get("namespace", ""), given.get("pod", "")))
    if pod is None:
        return ""
    names = {"namespace": pod.namespace, "pod": pod.name}
    if "pod_uid" in given:
        names["pod_uid"] = pod.uid
    shown = ",".join(f'{key}="{names.get(key, value)}"' for key, value in labels)
    return f"{sample[1]}{{{shown}}}{sample[3]}"
