"""Badges: what the kubelets of a worker are shown of who asks them.

Whoever is root on a node can read what its kubelet is shown. The binding's own token must not be
that: it may create pods in the worker, and enter them. So kubelets are shown

- the binding's client certificate, if it has one, and nothing beside it: TLS shows nobody its key;
- else a token of the worker's account for metrics, which may read these and nothing else, and ends
  after some minutes;
- else, in a worker that has no such account or does not let us ask for its tokens, as those that
  were joined before there was one, the binding's own token, if it may read metrics itself. That is
  said once. Who has got a token of the account never falls back to this.

Where the worker says anything else, or nothing, kubelets are shown nothing, and are not asked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from kubeocean.errors import ApiError, Forbidden, InvariantError, NotFound, Refusal
from kubeocean.installation.reviews import granted
from kubeocean.installation.roles import READ_METRICS
from kubeocean.runtime.access import Access, token_problem
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.secrets import Secret

__all__ = ["Badge"]

_LIFE_S: Final = 600  # of a token: the least that API servers give
_SHARE: Final = 0.8  # of its life; then it is time for another
_PATIENCE_S: Final = 10.0
_AGAIN_S: Final = 5.0  # until a worker that failed is asked again
_LOOK_S: Final = 60.0  # until an account that is not there, or was refused, is looked for again
_EVER: Final = float("inf")
_WITHOUT: Final = (
    "the worker lets us use no account for metrics, and our own credential may not read them; "
    "kubeocean join with the add-on metrics grants it"
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Shown:
    access: Access
    of: Access  # the worker's credential that it was got with
    ends_at: float
    may_be_replaced_at: float = 0.0  # when kubelets do not take it


class Badge:
    """Who asks the kubelets of one worker; `account` is that worker's account for metrics."""

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
        self._asking = asyncio.Lock()
        self._look_at = self._clock.monotonic()
        self._shown: _Shown | None = None
        self._tried: Access | None = None  # the worker's credential of the last try…
        self._next_at = 0.0  # …and when there is a reason for another
        self._met = False  # whether the account ever gave a token, whatever it was got with
        self._trouble = ""
        self._confessed = False

    def current(self) -> Access:
        """What to show; its server is the worker's. Somebody has awaited `ensure` before."""
        if self._shown is None:
            raise InvariantError("a kubelet was to be asked before anybody knew as whom")
        return self._shown.access

    async def ensure(self) -> None:
        """Return once there is something that kubelets may see; mostly at once.

        :raises Refusal: there is nothing.
        """
        await self._follow()
        if self._due() and not (self._asking.locked() and self._holds()):
            # Held while the worker is asked: all who wait here want the same answer.
            async with self._asking:
                if self._due():
                    await self._renew()
        if not self._holds():
            raise Refusal(502, self._trouble or "the worker's credentials changed meanwhile")

    async def replace(self) -> None:
        """A kubelet does not take what it was shown: get another, if that was not a moment ago."""
        shown, now = self._shown, self._clock.monotonic()
        await self._worker.refresh(rejected=True)
        if shown is not None and shown is self._shown and now >= shown.may_be_replaced_at:
            self._next_at = now
        with suppress(Refusal):  # then it stays as it is
            await self.ensure()

    # State

    def _due(self) -> bool:
        tried = self._tried is self._worker.current()
        return not tried or self._clock.monotonic() >= self._next_at

    def _holds(self) -> bool:
        shown = self._shown
        if shown is None or shown.of is not self._worker.current():
            return False
        return self._clock.monotonic() < shown.ends_at

    async def _follow(self) -> None:
        """Look for another credential of the worker, as often as that makes sense."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._worker.interval_s
            await self._worker.refresh()

    def _show(self, access: Access, of: Access, *, for_s: float, next_s: float) -> None:
        now = self._clock.monotonic()
        self._shown = _Shown(access, of, now + for_s, now + _LOOK_S)
        self._tried, self._next_at, self._trouble = of, now + next_s, ""

    def _fail(self, of: Access, why: str, *, again_s: float = _AGAIN_S) -> None:
        if why != self._trouble:
            _log.warning("Got no token for metrics", account=str(self._account), error=why)
        self._tried, self._next_at, self._trouble = of, self._clock.monotonic() + again_s, why

    # The question. What is decided is written down without an await: who is cancelled before that
    # leaves everything to the next in line.

    async def _renew(self) -> None:
        of = self._worker.current()
        if of.certificate is not None:
            bare = replace(of, token=None, username=None, password=None)
            self._show(bare, of, for_s=_EVER, next_s=_EVER)
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._ask(of)
        except TimeoutError:
            self._fail(of, "the worker gave no token for metrics in time")
        except ApiError as error:
            self._fail(of, f"the worker gave no token for metrics: {error.reason}")

    async def _ask(self, of: Access) -> None:
        began = self._clock.monotonic()
        namespace, name = self._account
        try:
            answer = await self._client.post(SERVICE_ACCOUNTS, name, "token", _request(), namespace)
        except (Forbidden, NotFound) as error:
            if self._met:
                raise
            await self._do_without(of, error)
            return
        token, life_s = _read(answer)
        if token is None:
            self._fail(of, "the worker gave no token for metrics: its answer holds none")
            return
        self._met = True
        spent_s = self._clock.monotonic() - began
        access = Access(of.server, ca=of.ca, token=token, origin=f"account {self._account}")
        self._show(access, of, for_s=life_s - spent_s, next_s=life_s * _SHARE - spent_s)

    async def _do_without(self, of: Access, error: ApiError) -> None:
        if not await granted(self._client, READ_METRICS):
            self._fail(of, _WITHOUT, again_s=_LOOK_S)
            return
        if not self._confessed:
            self._confessed = True
            _log.warning(
                "Kubelets are shown the binding's own token",
                account=str(self._account),
                error=str(error),
                remedy="say the same kubeocean join again, which makes an account for metrics",
            )
        self._show(of, of, for_s=_EVER, next_s=_LOOK_S)


def _request() -> Json:
    """Without an audience the token is for the API server, which kubelets ask about it."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _LIFE_S},
    }


def _read(answer: Json) -> tuple[Secret[str] | None, float]:
    """A token, if there is one, and its life; by the worker's own count, for clocks differ."""
    spec, status = answer.get("spec"), answer.get("status")
    token = status.get("token") if isinstance(status, dict) else None
    if not isinstance(token, str) or token_problem(token):
        return None, 0.0
    life = spec.get("expirationSeconds") if isinstance(spec, dict) else None
    return Secret(token), float(life if isinstance(life, int) and life > 0 else _LIFE_S)
