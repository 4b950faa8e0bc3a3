"""Constancy: that a binding's kubeconfig still leads to the worker that it was made for.

A kubeconfig is edited by people, and may come to lead to another cluster. Who took that for the
first one would find all its pods gone, and make them again among strangers. So before anything is
sent to another address than before, and before the first request of all, the cluster there is asked
who it is. If it is another one, nothing is sent there: requests are `Unreachable`, and those who
listen are told why. When the kubeconfig is right again, all goes on.

Which cluster is the right one stands on the binding, where the syncer has written it when it met
the worker first; else on the Secret, where `join` writes it; else it is the first that this process
met. An address and an authority that stay the same are the same cluster. One that will not say who
it is, because the credential has no right to ask, is believed while its address or its authority
stays the same, and at the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import SYSTEM_NAMESPACE, Domain
from kubeocean.bound.identities import identity_of
from kubeocean.bound.workers import SecretAccess
from kubeocean.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport, Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["Constancy", "ConstantTransport", "recorded_worker"]

_PATIENCE_S: Final = 5.0
_NOBODY: Final = "nobody"  # is who does not say it, where that is not enough

_log = get_logger(__name__)


def recorded_worker(binding: ClusterBinding, access: SecretAccess, domain: Domain) -> str:
    """Which cluster a binding is for, as far as that is written anywhere."""
    key = domain.worker_cluster_id
    return binding.annotations.get(key, "") or access.annotations.get(key, "")


class Constancy:
    """An `AccessSource` that has what leads to the right worker; `recorded` says which that is,
    if anybody knows."""

    def __init__(
        self,
        source: AccessSource,
        recorded: Callable[[], str],
        *,
        connect: Callable[[AccessSource], Transport] = HttpTransport,
    ) -> None:
        self._source = source
        self._recorded = recorded
        self._connect = connect
        self._good: Access | None = None  # the last one that led to the right worker…
        self._worker = ""  # …and which that is
        self._judged: Access | None = None  # the last one that was asked about…
        self._found = ""  # …and where it leads to; empty if nobody says
        self._error = ""
        self._asking = asyncio.Lock()
        self._handlers: list[Callable[[str], None]] = []

    @property
    def worker_id(self) -> str:
        """The worker that is served; empty if nobody knows yet."""
        return self._worker

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call with the reason when the kubeconfig leads elsewhere, with none when it is right."""
        self._handlers.append(handler)

    # What a transport asks for

    @property
    def interval_s(self) -> float:
        return self._source.interval_s

    def current(self) -> Access:
        return self._good or self._source.current()

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self.current()
        await self._source.refresh(rejected=rejected)
        self._follow()
        return self.current() is not before

    # The question

    async def check(self) -> None:
        """Return if requests go to the right worker.

        :raises Unreachable: they would not, or nobody knows yet.
        """
        while not self._follow():
            # All who wait here want to go to that very server.
            async with self._asking:
                if not self._follow():
                    await self._ask(self._source.current())
        self._judge()
        if self._error:
            if self._found == _NOBODY:
                self._judged = None  # it may say so the next time
            raise Unreachable(self._error, sent=False)

    def _follow(self) -> bool:
        """Whether what the source has now was judged, or need not be."""
        access = self._source.current()
        if access is self._judged:
            return True
        if self._good is None or _whereabouts(access) != _whereabouts(self._good):
            return False
        self._judged = self._good = access
        self._found = self._worker
        return True

    async def _ask(self, access: Access) -> None:
        client = Client(
            self._connect(StaticAccess(access)),
            cluster="worker",
            timeout_s=_PATIENCE_S,
            retry=RetryPolicy(attempts=1),
        )
        try:
            found = await identity_of(client)
        except (Forbidden, NotFound, Unauthorized) as error:
            _log.warning(
                "Could not tell which cluster it is", server=access.server, error=str(error)
            )
            found = self._believed(access)
        except Unreachable:
            raise
        except ApiError as error:
            raise Unreachable(f"could not tell which cluster it is: {error}", sent=False) from error
        finally:
            await client.close()
        self._judged, self._found = access, found

    def _believed(self, access: Access) -> str:
        """Which one it is, of one that does not say."""
        good = self._good
        if good is None or not (self._recorded() or self._worker):
            return ""
        alike = access.server == good.server or (access.ca is not None and access.ca == good.ca)
        return self._worker if alike else _NOBODY

    def _judge(self) -> None:
        assert self._judged is not None
        right, error = self._recorded() or self._worker, ""
        if right and self._found not in ("", right):
            error = self._told(self._judged.server, right)
        else:
            self._good, self._worker = self._judged, self._found or self._worker
        if error == self._error:
            return
        self._error = error
        if error:
            _log.error("Kubeconfig leads to another cluster", error=error)
        else:
            _log.info("Kubeconfig leads to the worker again")
        for handler in self._handlers:
            handler(error)

    def _told(self, server: str, right: str) -> str:
        said = f"is {self._found}"
        if self._found == _NOBODY:
            said = f"does not let us read namespace {SYSTEM_NAMESPACE}, which tells who it is"
        return f"the cluster at {server} {said}, and the binding is for {right}"


def _whereabouts(access: Access) -> tuple[object, ...]:
    return access.server, access.ca, access.insecure, access.tls_server_name, access.proxy_url


class ConstantTransport:
    """Sends nothing to another worker than the right one; `inner` has its access of `constancy`."""

    def __init__(self, inner: Transport, constancy: Constancy) -> None:
        self._inner = inner
        self._constancy = constancy

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        await self._constancy.check()
        return await self._inner.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await self._constancy.check()
        async with self._inner.stream(request) as stream:
            yield stream

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        await self._constancy.check()
        async with self._inner.upgrade(request, protocol) as tunnel:
            yield tunnel

    async def close(self) -> None:
        await self._inner.close()
