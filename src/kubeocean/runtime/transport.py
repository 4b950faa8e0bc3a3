"""Transport: requests to one API server as data, answers as bytes.

`Transport` is the seam: `HttpTransport` is the real one, and fault injection wraps any other. A
transport does not interpret objects, and raises `Unreachable` and nothing else; every HTTP status
is an answer.

Credentials may change at any time. A new token is used from the next request on. A new certificate
gets new connections, while watches on the old connections run until the server ends them. A new
server, or a new CA or name of the server, closes the old connections at once and begins a new
`generation`. So a change never drops a watch more than once.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from kubeocean import __version__
from kubeocean.errors import KubeoceanError, ResponseTooLarge, Unauthorized, Unreachable
from kubeocean.runtime import tracing
from kubeocean.runtime.access import Access, ssl_context
from kubeocean.runtime.answer_budget import AnswerBudget
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.retries import explain, never_sent
from kubeocean.runtime.sockets import request_socket
from kubeocean.runtime.tunnel import HANDSHAKE_S, Tunnel, open_tunnel

__all__ = ["HttpTransport", "Request", "Response", "Stream", "Transport"]

USER_AGENT: Final = f"kubeocean/{__version__}"
CONNECT_S: Final = 10.0
# A watch's answer starts at once; a server that does not even send the head is stopped or
# unreachable.
STREAM_HEAD_S: Final = 15.0
UNARY_CONNECTIONS: Final = 64
# A TLS handshake costs as much as many requests. API servers close an idle connection after 90 s,
# some load balancers after 60 s.
KEEP_S: Final = 55.0
# Large, because pausing and resuming a connection costs more than a small buffer saves; a full
# buffer is decoded in some milliseconds.
STREAM_BUFFER: Final = 1 << 20
# Of each connection to a server whose answers are limited; twice as many bytes may wait there.
LIMITED_BUFFER: Final = 1 << 17
LARGEST_REFUSAL: Final = 1 << 18  # bytes of such a server's answer that is no success
LARGE: Final = 1 << 19
_log: Final = get_logger(__name__)

# Most requests have the query of the one before: the field manager.
_encoded: Final = lru_cache(maxsize=64)(urlencode)


@dataclass(slots=True, frozen=True)
class Request:
    """HTTP request, without host and credentials."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)  # may be a Secret
    content_type: str = "application/json"
    accept: str = "application/json"
    timeout_s: float | None = 30.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    buffer: int = STREAM_BUFFER  # bytes of a streamed answer that may wait to be read

    @property
    def writes(self) -> bool:
        """Whether the request may change an object in the cluster."""
        return self.method not in ("GET", "HEAD", "OPTIONS")

    @property
    def watches(self) -> bool:
        """Whether the answer to the request is a stream of watch events."""
        return self.method == "GET" and ("watch", "true") in self.query

    @property
    def target(self) -> str:
        """Path and query of the request, as in the request line."""
        return f"{self.path}?{_encoded(self.query)}" if self.query else self.path


@dataclass(slots=True, frozen=True)
class Response:
    """Complete answer to a request: status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class Stream(Protocol):
    """Answer to a request that is read in pieces."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """Return the next bytes, of any number; empty at the end.

        :raises Unreachable: the connection broke.
        """


class Transport(Protocol):
    """Interface for requests to one API server."""

    @property
    def generation(self) -> int:
        """Number that grows when requests begin to go to another server: resourceVersions from
        before are void then."""

    async def send(self, request: Request) -> Response:
        """Send one request and return its answer.

        :raises Unreachable: the server did not answer.
        """

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Send a request and stream its answer; leaving the context closes the stream."""

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        """Switch protocols, and yield a tunnel of bytes in both directions after the server's 101.

        :raises ApiError: the server answered with anything else.
        """

    async def close(self) -> None:
        """Close every connection."""


class HttpTransport:
    """Transport with HTTP/1.1, usually over TLS, and a pool of connections.

    Answers of more than `largest` bytes are refused as `ResponseTooLarge`, so that no foreign
    server can fill the memory of this process. `answers` limits incomplete answers together.
    """

    def __init__(
        self,
        source: AccessSource,
        *,
        clock: Clock | None = None,
        largest: int | None = None,
        answers: AnswerBudget | None = None,
    ) -> None:
        self.generation = 0
        self._source = source
        self._largest = largest
        self._answers = answers or AnswerBudget()
        self._clock = clock or RealClock()
        self._link: _Link | None = None
        self._old: set[_Link] = set()
        self._refresh_at = self._clock.monotonic()
        self._refreshing: asyncio.Task[None] | None = None  # ended by `close`
        self._closed = False

    async def send(self, request: Request) -> Response:
        link = await self._current(request)
        used = link.access
        response = await link.send(request)
        if response.status == 401 and await self._has_newer(used):
            # A server answers 401 before it executes the request, so repeating is safe for any
            # verb.
            response = await (await self._current(request)).send(request)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        link = await self._current(request)
        used = link.access
        async with link.stream(request) as stream:
            if stream.status != 401 or not await self._has_newer(used):
                yield stream
                return
        async with (await self._current(request)).stream(request) as stream:
            yield stream

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        link = await self._current(request)
        used = link.access
        # A stack, so that exceptions of the block are not handled as the server's.
        async with AsyncExitStack() as stack:
            try:
                tunnel = await stack.enter_async_context(link.upgrade(request, protocol))
            except Unauthorized:
                if not await self._has_newer(used):
                    raise
                again = (await self._current(request)).upgrade(request, protocol)
                tunnel = await stack.enter_async_context(again)
            yield tunnel

    async def close(self) -> None:
        self._closed = True
        links = [*self._old, *([self._link] if self._link else [])]
        self._link = None
        self._old.clear()
        # A stack: a cancellation while one link is closed still closes the others.
        async with AsyncExitStack() as stack:
            for link in links:
                stack.push_async_callback(link.cut)
            if self._refreshing is not None:
                self._refreshing.cancel()
                await asyncio.wait([self._refreshing])

    async def _current(self, request: Request) -> _Link:
        await self._renew_credentials(request)
        if self._closed:
            raise Unreachable("this client was closed", sent=False)
        access = self._source.current()
        link = self._link
        if link is not None and link.access is access:
            return link
        # No await between this line and the assignment: two requests must not both create a link.
        if link is not None and link.reaches(access):
            link.speak_as(access)
            return link
        self._link = _Link(access, self._answers, self._largest)
        if link is None:
            return self._link
        await self._retire(link, access)
        return await self._current(request)  # the access may have changed meanwhile

    async def _renew_credentials(self, request: Request) -> None:
        """Start a refresh of the credentials if one is due; wait for its end only if requests must
        wait."""
        if self._clock.monotonic() < self._refresh_at or self._closed:
            return
        task = self._refreshing
        if task is None or task.done():
            # One task for all requests, so that the cancellation of a request does not end the
            # refresh.
            task = self._refreshing = asyncio.create_task(self._refresh())
        if not self._source.refresh_first:
            return
        done, _ = await asyncio.wait([task], timeout=request.timeout_s)
        if not done:
            server, limit = self._source.current().server, f"{request.timeout_s:g} s"
            message = f"could not reach {server}: its credentials were not renewed within {limit}"
            raise Unreachable(message, sent=False)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _refresh(self) -> None:
        try:
            await self._source.refresh()
        except KubeoceanError as error:
            if self._source.refresh_first:
                raise
            _log.warning("Could not renew credentials for API server", error=str(error))
        self._refresh_at = self._clock.monotonic() + self._source.interval_s

    async def _has_newer(self, rejected: Access) -> bool:
        """Return whether there are other credentials than the rejected ones, after a refresh if
        necessary."""
        if self._source.current() is rejected:
            await self._source.refresh(rejected=True)
        return self._source.current() is not rejected

    async def _retire(self, link: _Link, successor: Access) -> None:
        elsewhere = _whereabouts(link.access) != _whereabouts(successor)
        self.generation += elsewhere
        if elsewhere or link.idle:
            await link.cut()
            return
        self._old.add(link)
        link.on_idle = self._old.discard


def _whereabouts(access: Access) -> tuple[object, ...]:
    """Return the server, CA and server name of an access; if they change, old connections are
    closed.
    """
    return access.server, access.ca, access.insecure, access.tls_server_name


class _Link:
    """Connections to one server with one client certificate and trust."""

    def __init__(self, access: Access, budget: AnswerBudget, largest: int | None) -> None:
        self.speak_as(access)
        self._budget = budget
        self._largest = largest
        self.on_idle: _OnIdle | None = None
        self._base = URL(access.server.rstrip("/"))
        self._prefix = self._base.raw_path.rstrip("/")
        self._origin = str(self._base.origin())
        self._ssl = ssl_context(access)
        self._busy = 0
        self._answers: set[aiohttp.ClientResponse] = set()
        self._tunnels: set[Tunnel] = set()
        self._unary = self._session(UNARY_CONNECTIONS)
        self._streams = self._session(0)

    def speak_as(self, access: Access) -> None:
        """Use the token or password of `access` from the next request on."""
        self.access = access
        self._identity = (("User-Agent", USER_AGENT), *access.headers())

    def reaches(self, access: Access) -> bool:
        """Return whether these connections also serve `access`: it differs in headers only."""
        return (
            replace(
                access,
                token=self.access.token,
                username=self.access.username,
                password=self.access.password,
                impersonate=self.access.impersonate,
                namespace=self.access.namespace,
                origin=self.access.origin,
            )
            == self.access
        )

    @property
    def idle(self) -> bool:
        return self._busy == 0

    async def send(self, request: Request) -> Response:
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CONNECT_S)
        self._busy += 1
        try:
            async with self._ask(self._unary, request, timeout) as answer:
                self._answers.add(answer)
                try:
                    body = await self._whole(request, answer)
                finally:
                    self._answers.discard(answer)
                return Response(answer.status, answer.headers, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._unreachable(request, error) from error
        finally:
            await self._release()

    async def _whole(self, request: Request, answer: aiohttp.ClientResponse) -> bytes:
        if self._largest is None:
            return await answer.read()
        doing = f"{request.method} {request.path} at {self.access.server}"
        whole = bytearray()
        try:
            async with self._budget.reading(doing) as reservation:
                while piece := await answer.content.readany():
                    whole += piece
                    if answer.status >= 300 and len(whole) > LARGEST_REFUSAL:
                        answer.close()
                        break  # the status is known, and its text is not worth more memory
                    if len(whole) > self._largest:
                        message = f"the response is larger than {self._largest} bytes"
                        raise ResponseTooLarge(f"could not {doing}: {message}")
                    await reservation.grow(len(whole))
                return bytes(whole)
        except ResponseTooLarge:
            answer.close()
            raise
        finally:
            whole.clear()  # an error refers to this frame

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self._busy += 1
        try:
            answer = await self._open(request)
            self._answers.add(answer)
            try:
                yield _HttpStream(answer, self.access.server)
            finally:
                self._answers.discard(answer)
                answer.close()
        finally:
            await self._release()

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        self._busy += 1
        try:
            async with open_tunnel(
                self._base,
                method=request.method,
                target=self._prefix + request.target,
                headers=self._headers(request),
                protocol=protocol,
                tls=self._ssl,
                tls_server_name=self.access.tls_server_name,
                proxy_url=self.access.proxy_url,
                timeout_s=request.timeout_s or HANDSHAKE_S,
            ) as tunnel:
                self._tunnels.add(tunnel)
                try:
                    yield tunnel
                finally:
                    self._tunnels.discard(tunnel)
        finally:
            await self._release()

    async def cut(self) -> None:
        """Close every connection, busy or not."""
        # aiohttp closes the connections of a session without notifying their readers.
        for answer in self._answers:
            answer.close()
        for tunnel in self._tunnels:
            tunnel.abort()
        try:
            await self._unary.close()
        finally:  # also on cancellation
            await self._streams.close()

    async def _release(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self.on_idle is not None:
            self.on_idle(self)
            await self.cut()

    async def _open(self, request: Request) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        try:
            async with asyncio.timeout(request.timeout_s or STREAM_HEAD_S):
                return await self._ask(self._streams, request, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._unreachable(request, error) from error

    def _ask(
        self, session: aiohttp.ClientSession, request: Request, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.client._RequestContextManager:
        return session.request(
            request.method,
            URL(self._origin + self._prefix + request.target, encoded=True),
            data=_payload(request.body),
            headers=self._headers(request),
            timeout=timeout,
            allow_redirects=False,
            read_bufsize=(
                min(request.buffer, LIMITED_BUFFER) if self._budget.limited else request.buffer
            ),
            proxy=self.access.proxy_url,
            server_hostname=self.access.tls_server_name,
        )

    def _headers(self, request: Request) -> CIMultiDict[str]:
        headers = CIMultiDict(self._identity)
        headers["Accept"] = request.accept
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if tracing.enabled():
            headers.update(tracing.trace_headers())
        headers.update(request.headers)
        return headers

    def _session(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._ssl if self._ssl is not None else True,
            limit=connections,
            keepalive_timeout=KEEP_S,
            ttl_dns_cache=30,
            socket_factory=request_socket,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=STREAM_BUFFER,
            # aiohttp's own guess of proxies from the environment would bypass the kubeconfig.
            trust_env=False,
        )
        # aiohttp would send PUT and DELETE again when a connection breaks, though the server may
        # have carried them out. Repeating is decided in one place, `retries`.
        session._retry_connection = False
        return session

    def _unreachable(self, request: Request, error: Exception) -> Unreachable:
        what = f"{request.method} {request.path}"
        return Unreachable(
            f"could not reach {self.access.server} to {what}: {explain(error)}",
            sent=not never_sent(error),
        )


class _OnIdle(Protocol):
    def __call__(self, link: _Link, /) -> None: ...


class _HttpStream:
    """Body of an aiohttp answer; a read returns at most the data that has arrived."""

    def __init__(self, answer: aiohttp.ClientResponse, server: str) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._content = answer.content
        self._server = server

    async def read(self) -> bytes:
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"lost the stream from {self._server}: {explain(error)}") from error


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a large body as a file: aiohttp writes bytes in one go, which would stall the event
    loop."""
    return io.BytesIO(body) if body is not None and len(body) > LARGE else body
