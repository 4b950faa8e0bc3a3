"""The credential that the proxier sends to kubelets of a worker.

Root on a node can read the credentials that its kubelet receives. The binding's own token, which
may create pods in the worker and exec into them, must not be among those. So kubelets are sent

- the binding's client certificate, if it has one, without any token: TLS does not reveal the key;
- else a token of the worker's ServiceAccount for metrics, which may read metrics and nothing else,
  and expires after some minutes;
- else the binding's own token, if it may read metrics itself and the worker has no such account or
  does not permit requests for its tokens, as in workers that joined with an earlier version. This
  is logged once, and is not done after a token of that account was obtained.

If the worker fails or does not answer, kubelets are sent no credential, and are not requested.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from kubeocean.errors import ApiError, Forbidden, InvariantError, NotFound, Refusal
from kubeocean.install.access_reviews import granted
from kubeocean.install.roles import READ_METRICS
from kubeocean.runtime.access import Access, token_problem
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.redaction import Secret

__all__ = ["KubeletCredential"]

_TOKEN_S: Final = 600  # the shortest life that API servers give to a token
_RENEWED_AT: Final = 0.8  # of a token's life
_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 5.0  # after the worker failed
_RECHECK_S: Final = 60.0  # of a missing account, or of a token that kubelets refused
_NEVER: Final = float("inf")
_NO_CREDENTIAL: Final = (
    "the worker has no usable account for metrics, and its credential may not read them; "
    "kubeocean join with the add-on metrics grants it"
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _KubeletCredential:
    """A credential for kubelets, and the worker's credential with which it was obtained."""

    access: Access
    obtained_with: Access
    expires_at: float
    replaceable_at: float  # earliest replacement after a refusal by kubelets


class KubeletCredential:
    """The credential for a worker's kubelets; `account` is its ServiceAccount for metrics."""

    def __init__(
        self,
        client: Client,
        worker: AccessSource,
        account: Key,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._worker = worker
        self._account = account
        self._clock = clock or RealClock()
        self._renewing = asyncio.Lock()
        self._refresh_at = self._clock.monotonic()  # of the worker's own credential
        self._shown: _KubeletCredential | None = None
        self._tried_with: Access | None = None  # the worker's credential of the last attempt…
        self._next_at = 0.0  # …and the time of the next attempt with it
        self._error = ""  # of the last attempt
        self._account_worked = False  # the account has given a token, with whatever credential
        self._logged_own_token = False

    def current(self) -> Access:
        """Return the credential for kubelets; `ensure` must have returned before."""
        if self._shown is None:
            raise InvariantError(
                "a request to a kubelet was made before `ensure` had obtained a credential"
            )
        return self._shown.access

    async def ensure(self) -> None:
        """Return once there is a valid credential for kubelets; mostly at once.

        :raises Refusal: there is none.
        """
        await self._refresh_worker()
        if self._is_due() and not (self._renewing.locked() and self._is_valid()):
            # Held while the worker is requested: all waiters need the same answer.
            async with self._renewing:
                if self._is_due():
                    await self._renew()
        if not self._is_valid():
            raise Refusal(502, self._error or "the worker's credentials changed meanwhile")

    async def replace(self) -> None:
        """Obtain another credential after a kubelet refused the present one, unless it is new."""
        shown, now = self._shown, self._clock.monotonic()
        await self._worker.refresh(rejected=True)
        if shown is not None and shown is self._shown and now >= shown.replaceable_at:
            self._next_at = now
        with suppress(Refusal):  # the present one stays
            await self.ensure()

    def _is_due(self) -> bool:
        """Whether to renew: the worker's credential has changed, or the next attempt is due."""
        tried = self._tried_with is self._worker.current()
        return not tried or self._clock.monotonic() >= self._next_at

    def _is_valid(self) -> bool:
        shown = self._shown
        if shown is None or shown.obtained_with is not self._worker.current():
            return False
        return self._clock.monotonic() < shown.expires_at

    async def _refresh_worker(self) -> None:
        """Refresh the worker's own credential, at the interval of its source."""
        now = self._clock.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + self._worker.interval_s
            await self._worker.refresh()

    def _show(self, access: Access, own: Access, *, valid_s: float, renew_s: float) -> None:
        now = self._clock.monotonic()
        self._shown = _KubeletCredential(access, own, now + valid_s, now + _RECHECK_S)
        self._tried_with, self._next_at, self._error = own, now + renew_s, ""

    def _fail(self, own: Access, error: str, *, retry_s: float = _RETRY_S) -> None:
        if error != self._error:
            _log.warning(
                "Could not obtain token for reading kubelet metrics",
                account=str(self._account),
                error=error,
            )
        self._tried_with, self._next_at = own, self._clock.monotonic() + retry_s
        self._error = error

    # `_show` and `_fail` store a result without an await: a renewal that is cancelled before
    # leaves everything to the next waiter.

    async def _renew(self) -> None:
        own = self._worker.current()
        if own.certificate is not None:
            bare = replace(own, token=None, username=None, password=None)
            self._show(bare, own, valid_s=_NEVER, renew_s=_NEVER)
            return
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._request_token(own)
        except TimeoutError:
            self._fail(own, "the worker issued no token for metrics in time")
        except ApiError as error:
            self._fail(own, f"the worker issued no token for metrics: {error.reason}")

    async def _request_token(self, own: Access) -> None:
        began = self._clock.monotonic()
        namespace, name = self._account
        try:
            response = await self._client.post(
                SERVICE_ACCOUNTS, name, "token", _token_request(), namespace
            )
        except (Forbidden, NotFound) as error:
            if self._account_worked:
                raise
            await self._show_own_token(own, error)
            return
        token, life_s = _read_token(response)
        if token is None:
            self._fail(own, "the worker issued no token for metrics: its answer contains none")
            return
        self._account_worked = True
        spent_s = self._clock.monotonic() - began
        access = Access(own.server, ca=own.ca, token=token, origin=f"account {self._account}")
        renew_s = life_s * _RENEWED_AT - spent_s
        self._show(access, own, valid_s=life_s - spent_s, renew_s=renew_s)

    async def _show_own_token(self, own: Access, error: ApiError) -> None:
        if not await granted(self._client, READ_METRICS):
            self._fail(own, _NO_CREDENTIAL, retry_s=_RECHECK_S)
            return
        if not self._logged_own_token:
            self._logged_own_token = True
            _log.warning(
                "Used the binding's own token for kubelet metrics",
                account=str(self._account),
                error=str(error),
                remedy="run the same kubeocean join again, which creates an account for metrics",
            )
        self._show(own, own, valid_s=_NEVER, renew_s=_RECHECK_S)


def _token_request() -> Json:
    """Return a TokenRequest for the API server's audience; kubelets send the token there for
    review.
    """
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_S},
    }


def _read_token(response: Json) -> tuple[Secret[str] | None, float]:
    """Return the token in a TokenRequest's response, if any, and its life in seconds.

    A duration is used, since clocks differ.
    """
    spec, status = response.get("spec"), response.get("status")
    token = status.get("token") if isinstance(status, dict) else None
    if not isinstance(token, str) or token_problem(token):
        return None, 0.0
    life_s = spec.get("expirationSeconds") if isinstance(spec, dict) else None
    return Secret(token), float(life_s if isinstance(life_s, int) and life_s > 0 else _TOKEN_S)
