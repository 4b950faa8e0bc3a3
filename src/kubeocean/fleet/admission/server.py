"""The webhook server: receives AdmissionReviews over TLS, and answers them in bounded time.

API servers do not authenticate at webhooks. The server therefore answers nothing but complete
AdmissionReviews, does not show errors of its own reads, and limits the size of a body, the time of
a review, and the number of concurrent reviews.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from aiohttp import web

from kubeocean.errors import KubeoceanError
from kubeocean.fleet.admission.handlers import AdmissionHandler, Handlers
from kubeocean.fleet.admission.reviews import (
    AdmissionDecision,
    AdmissionRequest,
    BadReview,
    Review,
    denied,
)
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import SECONDS, Metrics
from kubeocean.runtime.server import Server
from kubeocean.runtime.server_tls import CertificateTls

__all__ = ["CertificateSource", "WebhookServer"]

_LARGEST_BODY: Final = 8 << 20  # an object and its old version, each at most 3 MiB
_READING_S: Final = 3.0
_DECIDING_S: Final = 4.0  # API servers wait for 5 seconds
_ABREAST: Final = 64
_JSON: Final = "application/json"
_RETRY: Final = "could not be checked, because the hub's API server did not answer; try again"

_log = get_logger(__name__)


class CertificateSource(Protocol):
    """Keeps the certificate of a webhook server up to date."""

    async def run(self) -> None:
        """Load the certificate after each change, until cancelled."""


class WebhookServer:
    """HTTPS server of the admission webhooks of one hub replica."""

    def __init__(
        self,
        handlers: Handlers,
        tls: CertificateTls,
        certificates: CertificateSource,
        *,
        address: BindAddress,
        metrics: Metrics | None = None,
    ) -> None:
        self._handlers = handlers
        self._tls = tls
        self._certificates = certificates
        self._address = address
        self._listens = False
        self._slots = asyncio.Semaphore(_ABREAST)
        metrics = metrics or Metrics()
        self._reviews = metrics.counter(
            "kubeocean_fleet_admission_reviews",
            "Reviews of requests to the hub's API server",
            ["webhook", "result"],
        )
        self._seconds = metrics.histogram(
            "kubeocean_fleet_admission_seconds",
            "Seconds from the body of a review to its answer",
            ["webhook"],
            buckets=SECONDS,
        )

    @property
    def ready(self) -> bool:
        """Whether the server listens, has a valid certificate, and its handlers are ready."""
        return self._listens and self._tls.ready and self._handlers.ready

    async def run(self) -> None:
        """Serve webhooks until cancelled.

        :raises ConfigError: the server cannot listen on its address.
        """
        app = web.Application(client_max_size=_LARGEST_BODY)
        for path, handler in self._handlers.by_path.items():
            app.router.add_post(path, _Endpoint(self, path.removeprefix("/"), handler).serve)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._certificates.run())
            if self._handlers.members is not None:
                group.create_task(self._handlers.members.run())
            async with Server(app, self._address, tls=self._tls.context) as server:
                self._listens = True
                _log.info("Started webhook server", address=str(server.address))
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._listens = False

    async def review(self, webhook: str, handler: AdmissionHandler, body: bytes) -> bytes:
        """Return the answer of `handler` to the AdmissionReview in `body`.

        :raises BadReview: the body is not an AdmissionReview.
        """
        review = Review.parse(body)
        with self._seconds.labels(webhook).time():
            decision, result = await _decide(handler, review.request)
        self._reviews.labels(webhook, result).inc()
        if not decision.allowed:
            _log.info(
                "Denied admission request",
                webhook=webhook,
                operation=str(review.request.operation),
                kind=str(review.request.written_kind),
                namespace=review.request.namespace,
                name=review.request.name,
                user=review.request.user_info.username,
                message=decision.message,
            )
        return review.answer(decision)

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore that limits concurrent reviews."""
        return self._slots

    def count_bad(self, webhook: str) -> None:
        """Count a request body that was not an AdmissionReview."""
        self._reviews.labels(webhook, "bad").inc()


class _Endpoint:
    """The HTTP endpoint of one webhook."""

    def __init__(self, server: WebhookServer, webhook: str, handler: AdmissionHandler) -> None:
        self._server, self._webhook, self._handler = server, webhook, handler

    async def serve(self, request: web.Request) -> web.Response:
        try:
            # While all slots are taken, bodies stay in the sockets.
            async with asyncio.timeout(_READING_S + _DECIDING_S), self._server.slot():
                body = await self._body(request)
                answer = await self._server.review(self._webhook, self._handler, body)
        except BadReview as error:
            self._server.count_bad(self._webhook)
            return _text(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            self._server.count_bad(self._webhook)
            return _text(413, f"the body is larger than {_LARGEST_BODY >> 20} MiB")
        except TimeoutError:
            return _text(503, "too many reviews at a time, or the body did not arrive in time")
        except Exception as error:  # a defect must not end the server, nor be shown to clients
            _log.error("Could not answer AdmissionReview", webhook=self._webhook, exc_info=error)
            return _text(500, "the review failed; the log of the hub names the reason")
        return web.Response(body=answer, content_type=_JSON)

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != _JSON:
            raise BadReview(f"not an AdmissionReview: the content type must be {_JSON}")
        async with asyncio.timeout(_READING_S):
            return await request.read()


async def _decide(
    handler: AdmissionHandler, request: AdmissionRequest
) -> tuple[AdmissionDecision, str]:
    try:
        async with asyncio.timeout(_DECIDING_S):
            decision = await handler(request)
    except BadReview as error:
        return denied(str(error)), "bad"
    except (KubeoceanError, TimeoutError) as error:
        kind = request.written_kind.kind
        _log.error(
            "Could not decide on AdmissionReview, denied the request",
            kind=kind,
            namespace=request.namespace,
            name=request.name,
            error=str(error) or type(error).__name__,
        )
        return denied(f"{kind} {request.name} {_RETRY}"), "failed"
    return decision, "allowed" if decision.allowed else "denied"


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text)
