"""A worker that is asked for tokens of its account for metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.proxier.badges import Badge
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, VirtualClock
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import Request, Response
from scripted import Scripted, answer

__all__ = ["ACCOUNT", "OWN", "Edited", "Granting", "badge_of"]

ACCOUNT: Final = Key("m", "kubeocean-metrics")
OWN: Final = "token-of-the-binding"


class Edited(StaticAccess):
    """A credential that somebody replaces."""

    def edit(self, access: Access) -> None:
        self._access = access


@dataclass
class Granting(Scripted):
    """Answers as an API server does; `status` is what it says to who asks for a token."""

    status: int = 201
    may_read: bool = False
    life_s: object = 600
    gate: asyncio.Event | None = None
    tokens: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def send(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.gate is not None:
            await self.gate.wait()
        if request.path.endswith("/selfsubjectaccessreviews"):
            return answer(201, msgspec.json.encode({"status": {"allowed": self.may_read}}))
        self.requests.append(request)
        if self.status != 201:
            return answer(self.status)
        self.tokens += 1
        body: Json = {
            "spec": {"expirationSeconds": self.life_s},
            "status": {"token": f"token-{self.tokens}"},
        }
        return answer(201, msgspec.json.encode(body))


def badge_of(
    worker: Granting, source: StaticAccess | None = None, clock: Clock | None = None
) -> Badge:
    """What kubelets are shown by somebody who has that credential."""
    own = source or StaticAccess(Access("https://w", token=Secret(OWN)))
    client = Client(worker, cluster="worker", retry=RetryPolicy(attempts=1))
    return Badge(client, own, ACCOUNT, clock=clock or VirtualClock())
