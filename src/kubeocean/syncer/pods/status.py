"""The status of a virtual pod, derived from that of its physical pod.

Every field is shown as the worker has it, except for those that the computing cluster decides: the
node that the pod is bound to, its QoS class, its resource claims. Containers that the worker's
admission injected are not shown: the virtual pod does not have them, and its API server would
refuse the whole status when one of them restarts. Conditions are merged: the
kubelet's come from the physical pod; those that other programs wrote, in either cluster, are kept,
and if both pods have one the later one counts. So a readiness gate may be opened in either cluster.

Every function returns a JSON merge patch, which is empty if nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final, Protocol

from kubeocean.api.bindings import network_of
from kubeocean.api.conditions import (
    PHYSICAL_POD_LOST,
    POD_CREATED,
    POD_EXPECTED,
    POD_SYNCED,
    PodEvent,
)
from kubeocean.errors import ApiError, printable
from kubeocean.runtime.objects import Json, merge_patch, printable_json

__all__ = [
    "FINISHED",
    "PodRejection",
    "excluded",
    "final",
    "gates",
    "lost",
    "not_created",
    "not_synced",
    "rejected",
    "status_patch",
    "waits_for_node",
    "with_disruption",
    "without_refused",
]

FINISHED: Final = frozenset({"Succeeded", "Failed"})

_SCHEDULED: Final = "PodScheduled"
_DISRUPTION: Final = "DisruptionTarget"
_READY: Final = ("Ready", "ContainersReady")
# Conditions that a kubelet sets and removes.
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
# Fields of the computing cluster alone. A generation counts the changes of one object, and the
# physical pod is another object.
_VIRTUAL_ONLY: Final = frozenset(
    {
        "conditions",
        "extendedResourceClaimStatus",
        "nominatedNodeName",
        "observedGeneration",
        "qosClass",
        "resourceClaimStatuses",
    }
)
# The statuses of containers, and the field of the spec that has these containers
_CONTAINER_STATUSES: Final = {
    "containerStatuses": "containers",
    "initContainerStatuses": "initContainers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}
_ADDRESSES: Final = (("podIP", "podIPs"), ("hostIP", "hostIPs"))
_OURS: Final = frozenset(
    {POD_CREATED, POD_EXPECTED, POD_SYNCED}
)  # conditions that this syncer sets
_LOST: Final = "Physical pod was deleted unexpectedly"
_UNSCHEDULABLE: Final = "Unschedulable"


def status_patch(vpod: Json, ppod: Json, *, cidrs: Sequence[str] | None = None) -> Json:
    """Return the patch that gives a virtual pod the status of its physical pod.

    A virtual pod that has ended is not changed, unless its physical pod has the same phase. If
    `cidrs` are given, addresses outside of them are not shown. Control characters are removed from
    texts of the worker, and long texts are cut.
    """
    current: Json = vpod.get("status") or {}
    physical: Json = printable_json(ppod.get("status") or {})
    if current.get("phase") in FINISHED and current.get("phase") != physical.get("phase"):
        return {}
    displayed = {name: value for name, value in physical.items() if name not in _VIRTUAL_ONLY}
    displayed |= _own_containers(vpod["spec"], displayed)
    if cidrs:
        displayed |= _shown_addresses(displayed, cidrs)
    if (message := waits_for_node(ppod)) is not None:
        displayed |= {"reason": _UNSCHEDULABLE, "message": message}
    shown = {name: value for name, value in current.items() if name not in _VIRTUAL_ONLY}
    patch = merge_patch(shown, displayed)
    conditions = _merge(_conditions(current), _conditions(physical))
    if conditions != _conditions(current):
        patch["conditions"] = conditions
    return patch


def _own_containers(spec: Json, status: Json) -> Json:
    """Return the statuses of the containers that the virtual pod's spec has."""
    own: Json = {}
    for field, kind in _CONTAINER_STATUSES.items():
        if field in status:
            names = {container["name"] for container in spec.get(kind) or ()}
            own[field] = [each for each in status[field] or () if each["name"] in names]
    return {field: statuses or None for field, statuses in own.items()}


def _shown_addresses(status: Json, cidrs: Sequence[str]) -> Json:
    """Return the addresses of a pod and its host that are within the given networks."""
    shown: Json = {}
    for one, several in _ADDRESSES:
        each = [item.get("ip", "") for item in status.get(several) or ()]
        inside = [ip for ip in each or [status.get(one) or ""] if _is_inside(ip, cidrs)]
        shown[one] = inside[0] if inside else None
        shown[several] = [{"ip": ip} for ip in inside] if each and inside else None
    return shown


def _is_inside(ip: str, cidrs: Sequence[str]) -> bool:
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    networks = (network_of(cidr) for cidr in cidrs)
    return any(network is not None and address in network for network in networks)


def without_refused(status: Json, error: ApiError) -> Json:
    """Return a status patch without the fields that the API server named in its refusal."""
    paths = (cause.field.split(".", 2) for cause in error.causes)
    refused = {path[1].partition("[")[0] for path in paths if path[0] == "status" and path[1:]}
    return {name: value for name, value in status.items() if name not in refused}


def lost(vpod: Json, *, now: str) -> Json:
    """Return the status patch that fails a virtual pod whose physical pod disappeared.

    Empty if the virtual pod has ended.
    """
    status: Json = vpod.get("status") or {}
    if status.get("phase") in FINISHED:
        return {}
    message = _LOST
    if status.get("reason") == _UNSCHEDULABLE:
        message = f"Not scheduled in the worker in time: {status.get('message', '')}"
    conditions = [
        _not_ready(condition, now) if condition["type"] in _READY else condition
        for condition in _conditions(status)
        if condition["type"] not in _OURS
    ]
    failed: Json = {"phase": "Failed", "reason": PHYSICAL_POD_LOST, "message": message}
    return with_disruption(vpod, failed | {"conditions": conditions}, now=now)


def final(vpod: Json, ended: Json | None, *, now: str, cidrs: Sequence[str] | None = None) -> Json:
    """Return the status patch of a virtual pod that is being deleted, before its removal.

    `ended` is the physical pod, if that is known to have ended. If not, a pod with finalizers is
    reported as lost, because the owner of a finalizer waits for the pod to end; any other pod needs
    no patch.
    """
    if ended is not None:
        return status_patch(vpod, ended, cidrs=cidrs)
    return lost(vpod, now=now) if vpod["metadata"].get("finalizers") else {}


class PodRejection(Protocol):
    """Why a node rejects a pod: a reason in one word, and a message for people."""

    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...


def rejected(rejection: PodRejection) -> Json:
    """Return the status of a virtual pod that its node rejects, as a kubelet sets it."""
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": f"Pod was rejected: {rejection.message}",
    }


def with_disruption(vpod: Json, status: Json, *, now: str) -> Json:
    """Return the status with the condition DisruptionTarget, by which a Job ignores the failure."""
    conditions = status.get("conditions") or _conditions(vpod.get("status") or {})
    if any((c["type"], c["status"]) == (_DISRUPTION, "True") for c in conditions):
        return status | {"conditions": conditions}
    condition = {
        "type": _DISRUPTION,
        "status": "True",
        "reason": status["reason"],
        "message": status["message"],
        "lastTransitionTime": now,
    }
    others = [each for each in conditions if each["type"] != _DISRUPTION]
    return status | {"conditions": [*others, condition]}


def not_created(vpod: Json, message: str, *, now: str) -> Json:
    """Return the status patch with the condition about why there is no physical pod."""
    condition = {
        "type": POD_CREATED,
        "status": "False",
        "reason": PodEvent.FAILED_CREATE,
        "message": message,
    }
    return _with_condition(_conditions(vpod.get("status") or {}), condition, now)


def excluded(vpod: Json, message: str, *, now: str) -> Json:
    """Return the status patch with the condition of a pod that is not meant to run in workers."""
    condition = {
        "type": POD_EXPECTED,
        "status": "False",
        "reason": PodEvent.NOT_REPLICATED,
        "message": message,
    }
    return _with_condition(_conditions(vpod.get("status") or {}), condition, now)


def not_synced(vpod: Json, message: str, *, now: str) -> Json:
    """Return the status patch with the condition about problems of a virtual pod that runs.

    Without a message the condition is removed.
    """
    status: Json = vpod.get("status") or {}
    if message:
        condition = {
            "type": POD_SYNCED,
            "status": "False",
            "reason": PodEvent.FAILED_UPDATE,
            "message": message,
        }
        return _with_condition(_conditions(status), condition, now)
    if all(c["type"] != POD_SYNCED for c in status.get("conditions") or ()):
        return {}
    return {"conditions": [c for c in _conditions(status) if c["type"] != POD_SYNCED]}


def gates(vpod: Json, ppod: Json) -> list[Json]:
    """Return the readiness-gate conditions that the physical pod lacks or has in an older state."""
    types = {gate["conditionType"] for gate in vpod["spec"].get("readinessGates") or ()}
    types -= _KUBELETS | {_SCHEDULED}
    if not types:
        return []
    physical = _by_type(_conditions(ppod.get("status") or {}))
    virtual = (c for c in _conditions(vpod.get("status") or {}) if c["type"] in types)
    return [c for c in virtual if _later(c, physical.get(c["type"])) != physical.get(c["type"])]


def waits_for_node(ppod: Json) -> str | None:
    """Return the worker scheduler's message about an unschedulable physical pod; else None."""
    if ppod["spec"].get("nodeName"):
        return None
    conditions = printable_json(_conditions(ppod.get("status") or {}))
    scheduled = _by_type(conditions).get(_SCHEDULED, {})
    return scheduled.get("message", "") if scheduled.get("status") == "False" else None


def _merge(virtual: list[Json], physical: list[Json]) -> list[Json]:
    """Return the conditions of a virtual pod, merged with those of its physical pod."""
    others = _by_type(physical)
    merged: list[Json] = []
    for condition in virtual:
        kind = condition["type"]
        other = others.pop(kind, None)
        if kind == _SCHEDULED:
            merged.append(condition)
        elif kind in _KUBELETS:
            merged += [other] if other is not None else []
        elif kind not in (POD_CREATED, POD_EXPECTED):
            merged.append(_later(condition, other))
    return [*merged, *others.values()]


def _later(virtual: Json, physical: Json | None) -> Json:
    """Return the condition that changed last; in doubt the virtual pod's, which users see."""
    if physical is None:
        return virtual
    since = [each.get("lastTransitionTime") or "" for each in (virtual, physical)]
    return physical if since[1] > since[0] else virtual


def _with_condition(conditions: list[Json], condition: Json, now: str) -> Json:
    """Return the status patch that sets a condition; empty if it is set already.

    The message may quote names of the worker.
    """
    condition = {**condition, "message": printable(condition["message"])}
    before = next((c for c in conditions if c["type"] == condition["type"]), None)
    if before is not None and condition.items() <= before.items():
        return {}
    since = before.get("lastTransitionTime") if before is not None else None
    others = [c for c in conditions if c["type"] != condition["type"]]
    return {"conditions": [*others, condition | {"lastTransitionTime": since or now}]}


def _not_ready(condition: Json, now: str) -> Json:
    if condition["status"] == "False":
        return condition
    failed = {"type": condition["type"], "status": "False", "reason": "PodFailed"}
    return failed | {"lastTransitionTime": now}


def _conditions(status: Json) -> list[Json]:
    """Return the conditions of a status without empty fields and generations, for comparison."""
    return [
        {k: v for k, v in each.items() if v is not None and k != "observedGeneration"}
        for each in status.get("conditions") or ()
    ]


def _by_type(conditions: Iterable[Json]) -> dict[str, Json]:
    return {condition["type"]: condition for condition in conditions}
