"""Audit: one line for each request that leads to a pod, and for each that was refused.

It says who, from where, which pod and container, the hash of the command, how many bytes went each
way, how long it took and how it ended. Commands and contents are the users' own and are not in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kubeocean.proxier.callers import Caller
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.routes import Logs, Page, Route, Run, Session
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.logs import get_logger

__all__ = ["Entry", "command_hash"]

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
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    def close(self) -> None:
        """Write the line, unless nobody would want to read it."""
        status = self.exchange.status
        if isinstance(self.route, Page) and status < 400:
            return
        caller, head = self.caller, self.exchange.head
        _log.info(
            "Served kubelet request" if status < 400 else "Refused kubelet request",
            user=caller.user if caller else "",
            by=caller.by if caller else "",
            peer=self.exchange.peer,
            node=self.vnode or self.exchange.vnode,
            method=head.method,
            status=status,
            outcome=self.outcome or "ended",
            seconds=round(self.clock.monotonic() - self._began, 3),
            received_bytes=self.received,
            sent_bytes=self.exchange.sent,
            **_about(self.route, head.target),
        )


def command_hash(command: tuple[str, ...]) -> str:
    """Tells commands apart without showing them."""
    return hashlib.sha256("\0".join(command).encode()).hexdigest()[:16] if command else ""


def _about(route: Route | None, target: str) -> dict[str, str]:
    match route:
        case Session() | Run():
            kind = route.kind.value if isinstance(route, Session) else "run"
            return {
                "what": kind,
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
            return {"what": "unknown", "path": target.partition("?")[0][:200]}
