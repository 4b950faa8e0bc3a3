"""Pod accounts: a kubeconfig with a token of a pod's ServiceAccount, which is renewed in time.

The token is bound to the pod: it expires with the pod, or after an hour without renewal. A program
that reads the file again gets the new token.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from kubeocean.errors import ApiError
from kubeocean.local import accounts
from kubeocean.local.files import write_private
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json

__all__ = ["PodAccount"]

_LIFE_S: Final = 3607  # as kubelets request; from an hour on, clusters may grant more
_SPENT: Final = 0.8  # share of a token's life after which the token is renewed
_AGAIN_S: Final = 5.0

_log = get_logger(__name__)


class PodAccount:
    """Writes and renews the kubeconfig of one pod at `path`, for the API server at `server`."""

    def __init__(
        self,
        pod: Json,
        client: Client,
        path: Path,
        *,
        server: str,
        authority: bytes,
        clock: Clock | None = None,
    ) -> None:
        meta = pod["metadata"]
        self.path = path
        self._pod = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        self._namespace: str = meta["namespace"]
        self._account: str = pod["spec"].get("serviceAccountName") or "default"
        self._client = client
        self._server = server
        self._authority = authority
        self._clock = clock or RealClock()
        self._renew_s = 0.0

    async def renew(self) -> None:
        """Request a new token for the pod, and write a kubeconfig with it.

        :raises ApiError: the server does not issue a token.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _LIFE_S, "boundObjectRef": self._pod},
        }
        answer = await self._client.post(
            SERVICE_ACCOUNTS, self._account, "token", body, self._namespace
        )
        ends = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        self._renew_s = (ends - self._clock.now()).total_seconds() * _SPENT
        content = accounts.kubeconfig(
            self._client.cluster,
            self._server,
            self._authority,
            user=f"system:serviceaccount:{self._namespace}:{self._account}",
            credential=answer["status"]["token"],
            namespace=self._namespace,
        )
        write_private(self.path, content)

    async def run(self) -> None:
        """Renew the pod's token before it expires, until cancelled."""
        while True:
            await self._clock.sleep(max(self._renew_s, _AGAIN_S))
            try:
                await self.renew()
            except ApiError as error:
                self._renew_s = _AGAIN_S
                _log.warning(
                    "Could not renew token of pod", pod=self._pod["name"], error=str(error)
                )
