"""A worker that issues tokens of its ServiceAccount for metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.proxier.kubelet_credentials import KubeletCredential
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, VirtualClock
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer

__all__ = ["ACCOUNT", "OWN", "EditedAccess", "TokenIssuer", "credential_of"]

ACCOUNT: Final = Key("m", "kubeocean-metrics")
OWN: Final = "token-of-the-binding"


class EditedAccess(StaticAccess):
    """A worker's credential that a test replaces."""

    def edit(self, access: Access) -> None:
        self._access = access


@dataclass
class TokenIssuer(Scripted):
    """Answers as an API server does; `status` is the response to a TokenRequest."""

    status: int = 201
    may_read: bool = False
    life_s: object = 600
    gate: asyncio.Event | None = None
    tokens: int = 0
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def send(self, request: Request) -> Response:
        self.paths.append(f"{request.method} {request.path}")
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


def credential_of(
    worker: TokenIssuer, source: StaticAccess | None = None, clock: Clock | None = None
) -> KubeletCredential:
    """Return the credential for kubelets of a worker that is reached with `source`."""
    own = source or StaticAccess(Access("https://w", token=Secret(OWN)))
    client = Client(worker, cluster="worker", retry=RetryPolicy(attempts=1))
    return KubeletCredential(client, own, ACCOUNT, clock=clock or VirtualClock())
