"""Stories: one page that says why something is as it is.

First the verdict, in one sentence, and the rule that decided; then what that rests on, what would
change it, and what could not be read. Programs get the same as a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from kubeocean.runtime.objects import Json

__all__ = ["Figure", "Rule", "Section", "Story", "document", "page"]


class Rule(StrEnum):
    """What decided."""

    # Of anything
    NOT_FOUND = "NotFound"
    NOT_OURS = "NotOurs"  # Kubeocean has nothing to do with it
    BINDING_GONE = "BindingGone"
    NODE_GONE = "NodeGone"
    WORKER_UNREAD = "WorkerUnread"  # so nothing can be said for sure
    SYNCER_SILENT = "SyncerSilent"  # what should be is not, and nobody is at work

    # Of nodes
    LENT = "Lent"
    NO_POLICY = "NoPolicy"
    POLICY_INVALID = "PolicyInvalid"
    WINDOW_CLOSED = "WindowClosed"
    TAKEN_BACK = "TakenBack"
    COOLING = "Cooling"
    NOT_READY = "NotReady"
    NAME_TAKEN = "NameTaken"

    # Of pods that have no node
    GATED = "Gated"
    NO_NODE = "NoVirtualNode"
    NOT_SELECTED = "NotSelected"
    NOT_TOLERATED = "NotTolerated"
    CLOSED_TO_PODS = "ClosedToPods"  # cordoned, not ready, or going
    TOO_LITTLE = "TooLittleLent"
    FITS = "Fits"

    # Of pods that have one
    RUNS = "Runs"
    STARTS = "Starts"
    ENDED = "Ended"
    EVICTED = "Evicted"
    LOST = "Lost"
    LEAVING = "Leaving"
    STAYS_ABOVE = "StaysAbove"  # not a pod that runs in a worker
    MISSING = "Missing"  # something that it refers to
    QUOTA = "QuotaBelow"
    ADMISSION = "AdmissionBelow"
    REFUSED = "Refused"
    UNSCHEDULED = "UnscheduledBelow"
    IMAGE = "ImageBelow"
    CONTAINER = "ContainerBelow"

    # Of bindings
    INVALID = "Invalid"
    DUPLICATE = "DuplicateClusterID"
    NO_CREDENTIAL = "NoCredential"
    UNREACHABLE = "Unreachable"
    RIGHTS = "RightsMissing"
    NO_NAMESPACE = "NoMountNamespace"
    DRAINING = "Draining"
    UNFINISHED = "Unfinished"  # the manager has not said Ready
    WORKS = "Works"


@dataclass(frozen=True, slots=True)
class Figure:
    """How much of one resource a virtual node offers, step by step."""

    resource: str
    allocatable: str
    others: str
    leftover: str
    limit: str
    lent: str
    used: str
    offered: str
    bound: str


@dataclass(frozen=True, slots=True)
class Section:
    """Some lines that belong together."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """Why something is as it is."""

    about: str
    rule: Rule
    verdict: str
    reasons: tuple[str, ...] = ()  # in the order in which they follow
    figures: tuple[Figure, ...] = ()
    sections: tuple[Section, ...] = ()
    remedies: tuple[str, ...] = ()  # what would change it
    unread: tuple[str, ...] = ()


def document(story: Story) -> Json:
    """The same, for programs."""
    return {
        "about": story.about,
        "rule": str(story.rule),
        "verdict": story.verdict,
        "reasons": list(story.reasons),
        "figures": [asdict(figure) for figure in story.figures],
        "sections": [{"title": s.title, "lines": list(s.lines)} for s in story.sections if s.lines],
        "wouldChange": list(story.remedies),
        "notRead": list(story.unread),
    }


def page(story: Story) -> Iterator[str]:
    """The same, for people, line by line."""
    yield f"{story.about}: {story.verdict}"
    yield f"  decided by: {story.rule}"
    yield from _block("why", story.reasons)
    if story.figures:
        yield from _block("how much", _table(story.figures))
    for section in story.sections:
        yield from _block(section.title, section.lines)
    yield from _block("what would change it", story.remedies)
    yield from _block("could not be read", story.unread)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


_HEAD = Figure(
    "resource", "node has", "others use", "left", "limit", "lent", "we use", "offered", "decided by"
)


def _table(figures: Sequence[Figure]) -> list[str]:
    rows = [tuple(asdict(each).values()) for each in (_HEAD, *figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
