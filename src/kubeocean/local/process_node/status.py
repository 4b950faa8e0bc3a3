"""Status of a pod, from the state of its programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Json

__all__ = ["ContainerState", "phase", "remembered", "status", "waiting"]

_TERMINATED: Final = "Completed"
_ERROR: Final = "Error"


@dataclass(slots=True)
class ContainerState:
    """State of one container of a process node's pod; times are in the API's format."""

    name: str
    image: str
    ready: bool = False
    restarts: int = 0
    started_at: str = ""  # start of the run; empty while the container does not run
    reason: str = "ContainerCreating"  # why the container does not run
    message: str = ""
    code: int | None = None  # exit code of the last run, after its end
    ended: tuple[str, str] = ("", "")  # start and end of the last run
    over: bool = False  # whether the container is not restarted

    def end(self, code: int, now: str) -> None:
        """Record that a run of the container has ended with an exit code."""
        self.ended = (self.started_at, now)
        self.started_at, self.ready, self.code = "", False, code

    def document(self) -> Json:
        """Return the state as an entry of `containerStatuses`."""
        last = self._terminated() if self.code is not None else None
        state: Json
        if self.started_at:
            state = {"running": {"startedAt": self.started_at}}
        elif self.over and last is not None:
            state, last = {"terminated": last}, None
        else:
            state = {"waiting": {"reason": self.reason, "message": self.message}}
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "ready": self.ready,
            "started": bool(self.started_at),
            "restartCount": self.restarts,
            "state": state,
            "lastState": {"terminated": last} if last is not None else {},
        }

    def _terminated(self) -> Json:
        assert self.code is not None
        begun, ended = self.ended
        status: Json = {
            "exitCode": self.code if self.code >= 0 else 128 - self.code,
            "reason": _ERROR if self.code else _TERMINATED,
        }
        if self.code < 0:
            status["signal"] = -self.code
        return status | {"startedAt": begun, "finishedAt": ended}


def remembered(pod: Json) -> list[ContainerState]:
    """Return the states of a pod's containers before any runs, with reported restart counts."""
    before = {each["name"]: each for each in _entries(pod)}
    statuses = []
    for container in pod["spec"]["containers"]:
        known = ContainerState(container["name"], container.get("image", ""))
        if (old := before.get(known.name)) is not None:
            # A run whose end was not seen counts as a restart: the node was restarted meanwhile.
            known.restarts = old.get("restartCount", 0) + ("running" in (old.get("state") or {}))
        statuses.append(known)
    return statuses


def _entries(pod: Json) -> list[Json]:
    statuses: list[Json] = (pod.get("status") or {}).get("containerStatuses") or []
    return statuses


def phase(containers: Iterable[ContainerState]) -> str:
    """Return the phase of a pod with these containers."""
    known = list(containers)
    if known and all(each.over for each in known):
        return "Failed" if any(each.code for each in known) else "Succeeded"
    if any(each.started_at or each.code is not None for each in known):
        return "Running"
    return "Pending"


def waiting(containers: Iterable[ContainerState], reason: str, message: str) -> None:
    """Record in all `containers` why they cannot run."""
    for each in containers:
        each.reason, each.message = reason, message


def status(
    containers: Iterable[ContainerState], old: Json, *, address: str, host: str, now: str
) -> Json:
    """Return the status of a pod with these containers; `old` is its last status.

    Conditions whose status has not changed keep their transition times.
    """
    known = list(containers)
    ready = bool(known) and all(each.ready for each in known)
    conditions = {
        "PodReadyToStartContainers": True,
        "Initialized": True,
        "ContainersReady": ready,
        "Ready": ready,
    }
    before = {each["type"]: each for each in old.get("conditions") or ()}
    return {
        "phase": phase(known),
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": old.get("startTime") or now,
        "conditions": [
            _condition(kind, holds, before.get(kind), now) for kind, holds in conditions.items()
        ],
        "containerStatuses": [each.document() for each in known],
    }


def _condition(kind: str, holds: bool, before: Json | None, now: str) -> Json:
    value = "True" if holds else "False"
    same = before is not None and before.get("status") == value
    since = before.get("lastTransitionTime") if same and before is not None else None
    condition = {"type": kind, "status": value, "lastTransitionTime": since or now}
    return condition if holds else condition | {"reason": "ContainersNotReady"}
