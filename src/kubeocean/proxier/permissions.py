"""Permissions: which right a request takes.

The rights are those of a kubelet: subresources of the node. Whatever leads into a pod takes
`create`, also where a WebSocket begins with GET: who may only read must not get a shell. Some pages
have a finer right of their own, which is enough where it is granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from kubeocean.proxier.routes import Logs, NodePage, Page, Route, Run, Session

__all__ = ["Right", "needed"]


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a subresource of the node."""

    verb: str
    subresource: str


_GET_STATS: Final = Right("get", "stats")
_GET_METRICS: Final = Right("get", "metrics")
_READ: Final = Right("get", "proxy")
_ENTER: Final = Right("create", "proxy")
_PAGES: Final = {
    NodePage.STATS: (_GET_STATS,),
    NodePage.METRICS: (_GET_METRICS,),
    NodePage.CADVISOR: (_GET_METRICS,),
    NodePage.RESOURCE: (_GET_METRICS,),
    NodePage.PROBES: (_GET_METRICS,),
    NodePage.PODS: (Right("get", "pods"), _READ),
    NodePage.RUNNING_PODS: (Right("get", "pods"), _READ),
    NodePage.HEALTH: (Right("get", "healthz"), _READ),
    NodePage.CONFIG: (Right("get", "configz"), _READ),
}


def needed(route: Route) -> tuple[Right, ...]:
    """What the caller must be allowed to do: any one of these."""
    match route:
        case Session() | Run():
            return (_ENTER,)
        case Logs():
            return (_READ,)
        case Page():
            return _PAGES.get(route.page, (_READ,))
        case _:
            assert_never(route)
