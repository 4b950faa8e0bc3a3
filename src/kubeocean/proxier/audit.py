"""Audit: one line for each request that leads to a pod, and for each that was refused.

It says who, from where, which pod and container, the hash of the command, how many bytes went each
way, how long it took and how it ended. Commands and contents are the users' own and are not in it.
Whatever strangers can make longer is cut to a length.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from kubeocean.errors import Refusal
from kubeocean.proxier.callers import Caller
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.routes import Logs, Page, Route, Run, Session
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.logs import get_logger

__all__ = ["Entry", "command_hash", "kind_of", "unreadable", "untrusted"]

_LOWEST_ERROR: Final = 400
_LONGEST: Final = 300
_SERVED, _REFUSED = "Served kubelet request", "Refused kubelet request"

_log = get_logger("kubeocean.audit")


@dataclass
class Entry:
    """What is to be said of one request, as far as it is known."""

    exchange: Exchange
    clock: Clock
    caller: Caller | None = None
    route: Route | None = None
    vnode: str = ""
    received: int = 0
    outcome: str = ""  # why it did not end as it should
    silent: bool = False  # there are too many of them to tell of each
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    def close(self) -> None:
        """Write the line, unless nobody would want to read it."""
        status = self.exchange.status
        refused = status >= _LOWEST_ERROR or not status
        if self.silent or (isinstance(self.route, Page) and not refused):
            return
        caller, head = self.caller, self.exchange.head
        _log.info(
            _REFUSED if refused else _SERVED,
            user=_short(caller.user) if caller else "",
            by=caller.by if caller else "",
            peer=self.exchange.peer,
            node=self.vnode or self.exchange.vnode,
            method=head.method,
            status=status,
            outcome=_short(self.outcome) or "ended",
            seconds=round(self.clock.monotonic() - self._began, 3),
            received_bytes=self.received,
            sent_bytes=self.exchange.sent,
            **_about(self.route, head.target),
        )


def unreadable(refusal: Refusal, peer: str) -> None:
    """The line of something that is no request."""
    _log.info(
        _REFUSED, peer=peer, status=refusal.status, outcome=_short(str(refusal)), what="unreadable"
    )


def untrusted(why: str, peer: str) -> None:
    """The line of somebody who did not get as far as a request."""
    _log.info(_REFUSED, peer=peer, status=0, outcome=_short(why), what="handshake")


def command_hash(command: tuple[str, ...]) -> str:
    """Tells commands apart without showing them."""
    return hashlib.sha256("\0".join(command).encode()).hexdigest()[:16] if command else ""


def kind_of(route: Route) -> str:
    """What a request is counted as."""
    match route:
        case Session():
            return route.kind.value
        case Run():
            return "run"
        case Logs():
            return "logs"
        case Page():
            return "page"


def _about(route: Route | None, target: str) -> dict[str, str]:
    match route:
        case Session() | Run():
            return {
                "what": kind_of(route),
                "pod": f"{route.namespace}/{route.pod}",
                "container": route.container,
                "command_sha256": command_hash(route.command),
            }
        case Logs():
            pod = f"{route.namespace}/{route.pod}"
            return {"what": "logs", "pod": pod, "container": route.container}
        case Page():
            return {"what": route.page.value}
        case None:
            return {"what": "unknown", "path": _short(target.partition("?")[0])}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
