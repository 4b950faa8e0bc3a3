"""Health: whether this program is alive, and whether requests may be sent to the program.

`/healthz` and `/readyz` run named checks and answer 200 or 500 in kube-apiserver's text form:
`?verbose` lists the checks, `?exclude=NAME` leaves one out, `/readyz/NAME` runs one alone.

A check is a callable, plain or async. None means success; a returned text is the reason of a
failure, and is shown. A check that raises or takes too long has failed, too; its exception is
logged and not shown to the client, since these pages require no authentication.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from aiohttp import web

from kubeocean.errors import InvariantError, Refusal
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.metrics_access import SecureMetrics
from kubeocean.runtime.redaction import redact_text

__all__ = ["Check", "Health", "HealthReport", "metrics_app"]

Check: TypeAlias = Callable[[], "str | Awaitable[str | None] | None"]

_DEADLINE_S = 2.0  # kubelets probe more often; a check that hangs must not delay the answer
_FRESH_S: Final = 1.0  # a rendered metrics page is served again for so long
_SCRAPES: Final = 20  # at a time; Prometheus scrapes once in many seconds
_WITHHELD = "reason withheld"
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache, no-store"}

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Results of the readiness or health checks: name and failure reason, None if passed."""

    kind: str
    reasons: dict[str, str | None]
    excluded: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(reason is None for reason in self.reasons.values())

    def text(self, *, verbose: bool) -> str:
        """Return the page in the format of kube-apiserver; a failure is always verbose."""
        if self.ok and not verbose:
            return "ok"
        lines = [f"[+]{name} excluded: ok" for name in self.excluded]
        for name, reason in self.reasons.items():
            lines.append(f"[+]{name} ok" if reason is None else f"[-]{name} failed: {reason}")
        if self.unmatched:
            names = ", ".join(f'"{name}"' for name in self.unmatched)
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        lines.append(f"{self.kind} check {'passed' if self.ok else 'failed'}")
        return "\n".join(lines) + "\n"


class Health:
    """The health and readiness checks of a program, and the pages that show their results."""

    def __init__(self, *, clock: Clock | None = None, deadline_s: float = _DEADLINE_S) -> None:
        self._clock = clock or RealClock()
        self._deadline_s = deadline_s
        # As in kube-apiserver, `ping` succeeds if the process can answer at all.
        self._checks: dict[str, dict[str, Check]] = {
            "healthz": {"ping": _ping},
            "readyz": {"ping": _ping},
        }
        self._failing: set[tuple[str, str]] = set()

    def add_readiness(self, name: str, check: Check) -> None:
        """Add a readiness check; while the check fails, the program is not ready."""
        self._add("readyz", name, check)

    async def readiness(self, *, exclude: Collection[str] = ()) -> HealthReport:
        """Run the readiness checks."""
        return await self._report("readyz", exclude)

    def app(self) -> web.Application:
        """Return the web application with `/healthz`, `/readyz` and a page for each check."""
        app = web.Application()
        for kind in self._checks:
            app.router.add_get(f"/{{kind:{kind}}}", self._all)
            app.router.add_get(f"/{{kind:{kind}}}/", self._all)
            app.router.add_get(f"/{{kind:{kind}}}/{{name}}", self._one)
        return app

    def _add(self, kind: str, name: str, check: Check) -> None:
        if not name or "/" in name or name in self._checks[kind]:
            raise InvariantError(
                "the name of a check is empty, has a slash, or is in use", kind=kind, name=name
            )
        self._checks[kind][name] = check

    async def _report(self, kind: str, exclude: Collection[str]) -> HealthReport:
        checks = self._checks[kind]
        chosen = [name for name in checks if name not in exclude]
        async with asyncio.TaskGroup() as group:
            running = {name: group.create_task(self._run(kind, name)) for name in chosen}
        return HealthReport(
            kind,
            {name: task.result() for name, task in running.items()},
            excluded=tuple(name for name in checks if name in exclude),
            unmatched=tuple(sorted(set(exclude) - checks.keys())),
        )

    async def _run(self, kind: str, name: str) -> str | None:
        """Run a check and return the reason of its failure, or None; changes are logged."""
        check = self._checks[kind][name]
        detail: Exception | None = None
        try:
            reason = await within(self._clock, self._deadline_s, lambda: _ask(check))
        except TimeoutError as error:
            reason, detail = f"no answer within {self._deadline_s:g} s", error
        except Exception as error:  # any exception is a failure of the check
            reason, detail = _WITHHELD, error
        self._note(kind, name, reason, detail)
        return None if reason is None else redact_text(reason)

    def _note(self, kind: str, name: str, reason: str | None, detail: Exception | None) -> None:
        failing = (kind, name) in self._failing
        if reason is not None and not failing:
            self._failing.add((kind, name))
            _log.warning("Health check failed", kind=kind, check=name, reason=reason, error=detail)
        elif reason is None and failing:
            self._failing.discard((kind, name))
            _log.info("Health check passed again", kind=kind, check=name)

    async def _all(self, request: web.Request) -> web.Response:
        exclude = request.query.getall("exclude", [])
        report = await self._report(request.match_info["kind"], exclude)
        return _answer(report.ok, report.text(verbose="verbose" in request.query))

    async def _one(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        if name not in self._checks[kind]:
            raise web.HTTPNotFound(text=f"{kind} has no check {name!r}\n", headers=_HEADERS)
        reason = await self._run(kind, name)
        return _answer(reason is None, "ok" if reason is None else f"{name} failed: {reason}\n")


def metrics_app(
    metrics: Metrics, *, secure: SecureMetrics | None = None, clock: Clock | None = None
) -> web.Application:
    """Return the web application with `/metrics`; `secure` decides which callers may read
    metrics."""
    app = web.Application()
    page = _MetricsPage(metrics, clock or RealClock(), secure)
    app.router.add_get("/metrics", page.serve)
    return app


@dataclass(frozen=True, slots=True)
class _Rendered:
    """The metrics page in one format, plain and compressed."""

    at: float
    content_type: str
    plain: bytes
    compressed: bytes


class _MetricsPage:
    """The page `/metrics`, rendered at most once a second whatever the number of requests.

    The page costs CPU and may be open to every pod of the cluster, so requests within a second
    share a rendering, and only a few are served at a time.
    """

    def __init__(self, metrics: Metrics, clock: Clock, secure: SecureMetrics | None) -> None:
        self._metrics = metrics
        self._clock = clock
        self._secure = secure
        self._rendered: dict[str, _Rendered] = {}  # by format, of which there are two
        self._rendering = asyncio.Lock()
        self._serving = 0

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a request for metrics."""
        if self._serving >= _SCRAPES:
            text = "too many requests for metrics at a time\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})
        self._serving += 1
        try:
            if (refusal := await self._refusal(request)) is not None:
                return refusal
            page = await self._render(request.headers.get("Accept", ""))
        finally:
            self._serving -= 1
        headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
        if "gzip" not in request.headers.get("Accept-Encoding", "").lower():
            return web.Response(body=page.plain, headers=headers)
        return web.Response(body=page.compressed, headers=headers | {"Content-Encoding": "gzip"})

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """Return the answer to a caller that may not read metrics; None if the caller may."""
        if self._secure is None:
            return None
        self._secure.certificate.refresh()
        try:
            await self._secure.access.check(request.headers.get("Authorization", ""))
        except Refusal as refusal:
            text = f"{redact_text(str(refusal))}\n"
            return web.Response(status=refusal.status, text=text, headers=_HEADERS)
        return None

    async def _render(self, accept: str) -> _Rendered:
        content_type = self._metrics.content_type(accept)
        async with self._rendering:
            page = self._rendered.get(content_type)
            if page is None or self._clock.monotonic() - page.at >= _FRESH_S:
                # Rendering ten thousand series takes longer than the event loop may be blocked.
                plain, compressed = await asyncio.to_thread(self._bodies, accept)
                page = _Rendered(self._clock.monotonic(), content_type, plain, compressed)
                self._rendered[content_type] = page
            return page

    def _bodies(self, accept: str) -> tuple[bytes, bytes]:
        plain = self._metrics.render(accept)
        return plain, gzip.compress(plain, compresslevel=1)


def _ping() -> None:
    """Succeed always: a process that runs this check is alive."""


async def _ask(check: Check) -> str | None:
    answer = check()
    if inspect.isawaitable(answer):
        answer = await answer
    return answer or None


def _answer(ok: bool, text: str) -> web.Response:
    return web.Response(text=text, status=200 if ok else 500, headers=_HEADERS)
