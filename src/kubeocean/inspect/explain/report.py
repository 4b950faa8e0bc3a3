"""Explanations: why a node, a pod, a binding or a fleet's object is in its state.

An explanation begins with the verdict in one sentence, and the rule that decided; reasons, remedies
that would change the verdict, and the parts that could not be read follow. Programs get the same as
a JSON document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from kubeocean.inspect.format import few, plain, table
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.objects import Json

__all__ = [
    "Answer",
    "Explanation",
    "ExplanationRule",
    "OfferedResource",
    "Section",
    "document",
    "explain_absence",
    "not_read",
    "page",
]


class ExplanationRule(StrEnum):
    """The rule that decided an explanation; its value is stable."""

    # Of anything
    NOT_READ = "NotRead"  # a part that decides could not be read
    NOT_FOUND = "NotFound"
    NOT_OURS = "NotOurs"  # Kubeocean does not manage the object
    BINDING_GONE = "BindingGone"
    NODE_GONE = "NodeGone"
    WORKER_UNREAD = "WorkerUnread"  # the worker cannot be read, so the last known state is shown
    SYNCER_SILENT = "SyncerSilent"  # a change is due, and no syncer is at work

    # Of nodes
    LENT = "Lent"
    NO_POLICY = "NoPolicy"
    POLICY_INVALID = "PolicyInvalid"
    WINDOW_CLOSED = "WindowClosed"
    TAKEN_BACK = "TakenBack"
    COOLING = "Cooling"
    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    NAME_TAKEN = "NameTaken"

    # Of pods that have no node
    GATED = "Gated"
    NO_NODE = "NoVirtualNode"
    NOT_SELECTED = "NotSelected"
    NOT_TOLERATED = "NotTolerated"
    CLOSED_TO_PODS = "ClosedToPods"  # cordoned, not Ready, or being reclaimed
    TOO_LITTLE = "TooLittleLent"
    FITS = "Fits"

    # Of pods that have a node
    RUNS = "Runs"
    STARTS = "Starts"
    ENDED = "Ended"
    EVICTED = "Evicted"
    LOST = "Lost"
    LEAVING = "Leaving"
    STAYS_ABOVE = "StaysAbove"  # a pod that does not run in a worker
    NODE_CLOSED = "NodeClosed"  # a pod that its node rejected, because nothing is lent now
    PORT_TAKEN = "PortTaken"  # a pod that its node rejected, because another pod has its host port
    MISSING = "Missing"  # an object that the pod refers to does not exist
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
    UNFINISHED = "Unfinished"  # the manager has not reported Ready
    WORKS = "Works"

    # Of placements
    PLACED = "Placed"
    PLACEMENT_DELETED = "PlacementDeleted"
    SCHEDULE_PENDING = "SchedulePending"
    SELECTORS_INVALID = "SelectorsInvalid"
    TOO_FEW_CLUSTERS = "TooFewClusters"
    NO_CLUSTER = "NoCluster"
    NO_OBJECT = "NoObject"
    ROLLOUT_HELD = "RolloutHeld"
    NOT_OVERRIDDEN = "NotOverridden"
    NOT_SYNCHRONIZED = "NotSynchronized"
    NOT_APPLIED = "NotApplied"
    NOT_AVAILABLE = "NotAvailable"

    # Of Works
    WORK_DONE = "WorkDone"
    WORK_DELETED = "WorkDeleted"
    WORK_NOT_REPORTED = "WorkNotReported"
    DIFF_NOT_REPORTED = "DiffNotReported"
    MEMBER_SILENT = "MemberSilent"  # the Work waits for an agent that sends no heartbeats

    # Of members
    JOINED = "Joined"
    MEMBER_LEAVING = "MemberLeaving"
    MEMBER_TAINTED = "MemberTainted"
    NOT_ADMITTED = "NotAdmitted"  # the hub has not prepared the member's namespace
    NOT_JOINED = "NotJoined"
    AGENT_NEVER_SEEN = "AgentNeverSeen"
    HEARTBEAT_LOST = "HeartbeatLost"
    HUB_SILENT = "HubSilent"  # the agent reports, and the hub does not copy the reports
    MEMBER_UNHEALTHY = "MemberUnhealthy"


class Answer(NamedTuple):
    """The answer of one rule: its verdict, the reasons for it, and remedies."""

    rule: ExplanationRule
    verdict: str
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """The amount of one resource that a virtual node offers, step by step."""

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
    """Lines under a title, as a part of an explanation."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of an object's state: verdict, rule, reasons and remedies."""

    about: str
    rule: ExplanationRule
    verdict: str
    reasons: tuple[str, ...] = ()  # in the order in which they follow from each other
    resources: tuple[OfferedResource, ...] = ()
    sections: tuple[Section, ...] = ()
    remedies: tuple[str, ...] = ()  # each would change the verdict
    unread: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        about: str,
        answer: Answer,
        *,
        more: Iterable[str] = (),
        resources: tuple[OfferedResource, ...] = (),
        sections: tuple[Section, ...] = (),
        unread: Iterable[NotRead] = (),
    ) -> Explanation:
        """Return an explanation made from an answer, with `more` reasons after its own."""
        return cls(
            about,
            answer.rule,
            answer.verdict,
            (*answer.reasons, *more),
            resources=resources,
            sections=sections,
            remedies=answer.remedies,
            unread=tuple(map(str, dict.fromkeys(unread))),
        )


def not_read(parts: Iterable[object], verdict: str = "") -> Answer | None:
    """Return the answer that one of these parts could not be read; None if all were read."""
    unread = [part for part in parts if isinstance(part, NotRead)]
    if not unread:
        return None
    reasons = tuple(dict.fromkeys(part.reason for part in unread))
    names = few(dict.fromkeys(part.what for part in unread))
    if all(part.forbidden for part in unread):
        remedies: tuple[str, ...] = ("the right to read these objects",)
    else:
        remedies = tuple(dict.fromkeys(part.remedy for part in unread if part.remedy))
    verdict = verdict or "nothing can be concluded"
    return Answer(
        ExplanationRule.NOT_READ,
        f"{verdict}: could not read {names}",
        reasons,
        remedies or ("API servers that answer; then try again",),
    )


def explain_absence(
    about: str, kind: str, part: NotRead | None, unread: Iterable[NotRead]
) -> Explanation:
    """Return the explanation of an object that does not exist, or could not be read."""
    absent = Answer(ExplanationRule.NOT_FOUND, f"there is no such {kind}")
    return Explanation.of(about, not_read((part,)) or absent, unread=unread)


def document(explanation: Explanation) -> Json:
    """Return an explanation as a JSON document for programs."""
    return {
        "about": explanation.about,
        "rule": str(explanation.rule),
        "verdict": explanation.verdict,
        "reasons": list(explanation.reasons),
        "figures": [asdict(each) for each in explanation.resources],
        "sections": [
            {"title": each.title, "lines": list(each.lines)}
            for each in explanation.sections
            if each.lines
        ],
        "wouldChange": list(explanation.remedies),
        "notRead": list(explanation.unread),
    }


def page(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation for people, line by line."""
    yield f"{explanation.about}: {explanation.verdict}"
    yield f"  decided by: {explanation.rule}"
    yield from _block("why", explanation.reasons)
    if explanation.resources:
        yield from _block("how much", _table(explanation.resources))
    for section in explanation.sections:
        yield from _block(section.title, section.lines)
    yield from _block("what would change it", explanation.remedies)
    yield from _block("could not be read", explanation.unread)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


_HEAD: Final = (
    "resource", "node has", "others use", "left", "limit", "lent", "binding uses", "offered",
    "decided by",
)  # fmt: skip


def _table(resources: Sequence[OfferedResource]) -> list[str]:
    rows = table(_HEAD, (tuple(asdict(each).values()) for each in resources), gap="  ")
    return plain(rows).splitlines()
