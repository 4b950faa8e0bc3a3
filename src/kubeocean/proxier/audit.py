"""Audit log: a line for each session, each list of pods, and each refused request or connection.

A line names the caller, its address, the pod, the container, a hash of the command, the bytes each
way, the duration and the outcome. Commands and contents belong to users and are not logged. Texts
that callers control are cut to a length.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from kubeocean.errors import Refusal
from kubeocean.proxier.authentication import Caller
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.routes import Logs, NodePage, Page, Route, Run, Session
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.logs import AUDIT_LOGGER, get_logger

__all__ = ["AuditEntry", "log_failed_handshake", "log_unreadable_request", "request_kind"]

_LOWEST_ERROR: Final = 400
_MAX_TEXT: Final = 300
# These show the environment of every container; other pages are scraped all the time.
_AUDITED_PAGES: Final = (NodePage.PODS, NodePage.RUNNING_PODS)
_SERVED, _REFUSED = "Served kubelet request", "Refused kubelet request"

_log = get_logger(AUDIT_LOGGER)


@dataclass
class AuditEntry:
    """The audit line of one request, filled in while the request is served."""

    exchange: Exchange
    clock: Clock
    caller: Caller | None = None
    route: Route | None = None
    vnode: str = ""
    received: int = 0
    outcome: str = ""  # why the request was refused or broke off
    silent: bool = False  # one of too many refusals to log each
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    def write(self) -> None:
        """Log the audit line, unless the request was a routine one."""
        status = self.exchange.status
        refused = status >= _LOWEST_ERROR or not status
        if self.silent or (not refused and _is_routine(self.route)):
            return
        caller, head = self.caller, self.exchange.head
        _log.info(
            _REFUSED if refused else _SERVED,
            user=_cut(caller.user) if caller else "",
            by=caller.by if caller else "",
            peer=self.exchange.peer,
            node=self.vnode or self.exchange.vnode,
            method=head.method,
            status=status,
            outcome=_cut(self.outcome) or "ended",
            seconds=round(self.clock.monotonic() - self._began, 3),
            received_bytes=self.received,
            sent_bytes=self.exchange.sent,
            **_target_fields(self.route, head.target),
        )


def log_unreadable_request(refusal: Refusal, peer: str) -> None:
    """Log that bytes on a connection are not an HTTP request."""
    _log.info(
        _REFUSED, peer=peer, status=refusal.status, outcome=_cut(str(refusal)), what="unreadable"
    )


def log_failed_handshake(reason: str, peer: str) -> None:
    """Log a connection on which TLS was not established."""
    _log.info(_REFUSED, peer=peer, status=0, outcome=_cut(reason), what="handshake")


def request_kind(route: Route) -> str:
    """Return the kind of a request, as metrics and audit lines name it."""
    match route:
        case Session():
            return route.kind.value
        case Run():
            return "run"
        case Logs():
            return "logs"
        case Page():
            return "page"


def _is_routine(route: Route | None) -> bool:
    return isinstance(route, Page) and route.page not in _AUDITED_PAGES


def _command_hash(command: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(command).encode()).hexdigest()[:16] if command else ""


def _target_fields(route: Route | None, target: str) -> dict[str, str]:
    match route:
        case Session() | Run():
            return {
                "what": request_kind(route),
                "pod": f"{route.namespace}/{route.pod}",
                "container": route.container,
                "command_sha256": _command_hash(route.command),
            }
        case Logs():
            pod = f"{route.namespace}/{route.pod}"
            return {"what": "logs", "pod": pod, "container": route.container}
        case Page():
            return {"what": route.page.value}
        case None:
            return {"what": "unknown", "path": _cut(target.partition("?")[0])}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
