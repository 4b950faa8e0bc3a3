"""The status of a virtual pod, from that of the physical one.

All is shown as the worker says it, but for what is decided above: to which node the pod is bound,
its class of quality, its claims. Conditions are merged: those of the kubelet come from below; those
that others wrote, on either side, survive, and if both sides have one the later one counts. So a
readiness gate may be opened above or below.

Everything here is a JSON merge patch, empty where nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kubeocean.api.reasons import PHYSICAL_POD_LOST, POD_CREATED, POD_SYNCED, PodEvent
from kubeocean.runtime.objects import Json

__all__ = [
    "FINISHED",
    "gates",
    "lost",
    "merge_diff",
    "mirror",
    "refusal",
    "refused_for",
    "trouble",
    "waits_for_node",
]

FINISHED: Final = frozenset({"Succeeded", "Failed"})

_SCHEDULED: Final = "PodScheduled"
_READY: Final = ("Ready", "ContainersReady")
# What a kubelet says and takes back.
_KUBELETS: Final = frozenset(
    {
        *_READY,
        "AllContainersRestarting",
        "Initialized",
        "PodReadyToStartContainers",
        "PodResizeInProgress",
        "PodResizePending",
    }
)
# Of the computing cluster alone. Generations count the changes of an object, and below is another.
_ABOVE: Final = frozenset(
    {
        "conditions",
        "extendedResourceClaimStatus",
        "nominatedNodeName",
        "observedGeneration",
        "qosClass",
        "resourceClaimStatuses",
    }
)
_OURS: Final = frozenset({POD_CREATED, POD_SYNCED})  # what we say of how it goes
_LOST: Final = "Physical pod was deleted unexpectedly"
_UNSCHEDULABLE: Final = "Unschedulable"


def mirror(vpod: Json, ppod: Json) -> Json:
    """What to change in the status of a virtual pod.

    One that has ended has ended: what its physical pod does afterwards is not told.
    """
    now: Json = vpod.get("status") or {}
    below: Json = ppod.get("status") or {}
    if now.get("phase") in FINISHED and now.get("phase") != below.get("phase"):
        return {}
    wanted = {name: value for name, value in below.items() if name not in _ABOVE}
    if (waiting := waits_for_node(ppod)) is not None:
        wanted |= {"reason": _UNSCHEDULABLE, "message": waiting}
    shown = {name: value for name, value in now.items() if name not in _ABOVE}
    patch = merge_diff(shown, wanted)
    conditions = _merge(_conditions(now), _conditions(below))
    if conditions != _conditions(now):
        patch["conditions"] = conditions
    return patch


def lost(vpod: Json, *, now: str) -> Json:
    """The status of a pod whose physical pod disappeared; nothing if it had ended before."""
    status: Json = vpod.get("status") or {}
    if status.get("phase") in FINISHED:
        return {}
    message = _LOST
    if status.get("reason") == _UNSCHEDULABLE:
        message = f"Not scheduled in the worker in time: {status.get('message', '')}"
    conditions = [
        _ended(condition, now) if condition["type"] in _READY else condition
        for condition in _conditions(status)
        if condition["type"] not in _OURS
    ]
    ended: Json = {"phase": "Failed", "reason": PHYSICAL_POD_LOST, "message": message}
    return merge_diff({"conditions": _conditions(status)}, {"conditions": conditions}) | ended


def refusal(vpod: Json, *, reason: str, message: str, now: str) -> Json:
    """The condition that says why there is no physical pod."""
    said = {"type": POD_CREATED, "status": "False", "reason": reason, "message": message}
    return _saying(_conditions(vpod.get("status") or {}), said, now)


def trouble(vpod: Json, message: str, *, now: str) -> Json:
    """The condition that says what of a pod could not be carried down; gone without a message."""
    status: Json = vpod.get("status") or {}
    if message:
        said = {"type": POD_SYNCED, "status": "False", "message": message}
        return _saying(_conditions(status), said | {"reason": PodEvent.FAILED_UPDATE}, now)
    if all(c["type"] != POD_SYNCED for c in status.get("conditions") or ()):
        return {}
    return {"conditions": [c for c in _conditions(status) if c["type"] != POD_SYNCED]}


def refused_for(vpod: Json) -> str:
    """Why there is no physical pod, as far as the virtual one says so."""
    conditions = _conditions(vpod.get("status") or {})
    return next((c.get("message", "") for c in conditions if c["type"] == POD_CREATED), "")


def gates(vpod: Json, ppod: Json) -> list[Json]:
    """The conditions of readiness gates that the worker has yet to learn."""
    wanted = {gate["conditionType"] for gate in vpod["spec"].get("readinessGates") or ()}
    wanted -= _KUBELETS | {_SCHEDULED}
    if not wanted:
        return []
    below = _by_type(_conditions(ppod.get("status") or {}))
    above = (c for c in _conditions(vpod.get("status") or {}) if c["type"] in wanted)
    return [c for c in above if _later(c, below.get(c["type"])) != below.get(c["type"])]


def waits_for_node(ppod: Json) -> str | None:
    """What the worker's scheduler says of a pod for which it has no node; None otherwise."""
    if ppod["spec"].get("nodeName"):
        return None
    scheduled = _by_type(_conditions(ppod.get("status") or {})).get(_SCHEDULED, {})
    return scheduled.get("message", "") if scheduled.get("status") == "False" else None


def merge_diff(now: Json, wanted: Json) -> Json:
    """The JSON merge patch from one document to another."""
    patch: Json = {name: None for name in now if now[name] is not None and name not in wanted}
    for name, value in wanted.items():
        before: Any = now.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if nested := merge_diff(before, value):
                patch[name] = nested
        elif value != before:
            patch[name] = value
    return patch


def _merge(above: list[Json], below: list[Json]) -> list[Json]:
    """The conditions of a virtual pod, its own first and in their order."""
    from_below = _by_type(below)
    merged: list[Json] = []
    for condition in above:
        kind = condition["type"]
        other = from_below.pop(kind, None)
        if kind == _SCHEDULED:
            merged.append(condition)
        elif kind in _KUBELETS:
            merged += [other] if other is not None else []
        elif kind != POD_CREATED:
            merged.append(_later(condition, other))
    return [*merged, *from_below.values()]


def _later(above: Json, below: Json | None) -> Json:
    """The one that changed last; in doubt the one above, where users and controllers look."""
    if below is None:
        return above
    since = [each.get("lastTransitionTime") or "" for each in (above, below)]
    return below if since[1] > since[0] else above


def _saying(conditions: list[Json], said: Json, now: str) -> Json:
    """The conditions with this one, if that is news."""
    before = next((c for c in conditions if c["type"] == said["type"]), None)
    if before is not None and said.items() <= before.items():
        return {}
    since = before.get("lastTransitionTime") if before is not None else None
    others = [c for c in conditions if c["type"] != said["type"]]
    return {"conditions": [*others, said | {"lastTransitionTime": since or now}]}


def _ended(condition: Json, now: str) -> Json:
    if condition["status"] == "False":
        return condition
    kept = {"type": condition["type"], "status": "False", "reason": "PodFailed"}
    return kept | {"lastTransitionTime": now}


def _conditions(status: Json) -> list[Json]:
    """Without what is empty, and without generations: so that equal ones compare equal."""
    return [
        {k: v for k, v in each.items() if v is not None and k != "observedGeneration"}
        for each in status.get("conditions") or ()
    ]


def _by_type(conditions: Iterable[Json]) -> dict[str, Json]:
    return {condition["type"]: condition for condition in conditions}
