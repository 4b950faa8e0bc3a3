"""Health and metrics pages: named checks in kube-apiserver's words, over a real socket."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from kubeocean.errors import InvariantError
from kubeocean.runtime import logs
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.health import Health, metrics_app
from kubeocean.runtime.metrics import Family, Metrics, Readings
from kubeocean.runtime.server import Server
from support.wait import until


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[ClientSession]:
    async with Server(app, BindAddress("127.0.0.1", 0)) as server:
        base = f"http://127.0.0.1:{server.address.port}"
        async with ClientSession(base, auto_decompress=False) as session:
            yield session


async def ask(session: ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as response:
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        return response.status, await response.text()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    out = io.StringIO()
    restore = logs.configure("json", "info", out)
    yield out
    restore()


async def test_a_program_without_checks_is_healthy_and_ready() -> None:
    async with served(Health().app()) as session:
        assert await ask(session, "/healthz") == (200, "ok")
        assert await ask(session, "/readyz/") == (200, "ok")
        assert await ask(session, "/readyz?verbose") == (200, "[+]ping ok\nreadyz check passed\n")


async def test_head_is_answered_without_a_body() -> None:
    async with served(Health().app()) as session, session.head("/healthz") as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_a_failed_check_fails_the_whole_and_says_why() -> None:
    health = Health()
    health.add_readiness("informers", lambda: "pods of w1 not synced")
    async with served(health.app()) as session:
        assert await ask(session, "/readyz") == (
            500,
            "[+]ping ok\n[-]informers failed: pods of w1 not synced\nreadyz check failed\n",
        )
        assert await ask(session, "/healthz") == (200, "ok")


async def test_async_checks_are_awaited() -> None:
    async def bad() -> str:
        await asyncio.sleep(0)
        return "not yet"

    async def good() -> None:
        await asyncio.sleep(0)

    health = Health()
    health.add_readiness("bad", bad)
    health.add_readiness("good", good)
    report = await health.readiness()
    assert report.reasons == {"ping": None, "bad": "not yet", "good": None}
    assert not report.ok


async def test_one_check_can_be_asked_alone() -> None:
    health = Health()
    health.add_readiness("a", lambda: "broken")
    health.add_readiness("b", lambda: None)
    async with served(health.app()) as session:
        assert await ask(session, "/readyz/a") == (500, "a failed: broken\n")
        assert await ask(session, "/readyz/b") == (200, "ok")
        assert await ask(session, "/readyz/c") == (404, "readyz has no check 'c'\n")
        assert (await ask(session, "/healthz/b"))[0] == 404


async def test_a_check_can_be_excluded() -> None:
    health = Health()
    health.add_readiness("a", lambda: "broken")
    health.add_readiness("b", lambda: None)
    async with served(health.app()) as session:
        assert await ask(session, "/readyz?exclude=a") == (200, "ok")
        assert await ask(session, "/readyz?exclude=a&exclude=z&verbose") == (
            200,
            "[+]a excluded: ok\n[+]ping ok\n[+]b ok\n"
            'warn: some health checks cannot be excluded: no matches for "z"\n'
            "readyz check passed\n",
        )


async def test_what_a_check_raises_is_logged_and_not_shown(log: io.StringIO) -> None:
    def raises() -> None:
        raise ValueError("the password of the database is wrong")

    health = Health()
    health.add_readiness("database", raises)
    async with served(health.app()) as session:
        status, text = await ask(session, "/readyz")
    assert (status, "[-]database failed: reason withheld" in text) == (500, True)
    assert "password" not in text
    assert "password of the database" in log.getvalue()


async def test_a_secret_in_a_reason_is_hashed() -> None:
    health = Health()
    health.add_readiness("a", lambda: "refused: Bearer canary4711canary")
    assert "canary" not in (await health.readiness()).text(verbose=True)


async def test_a_check_that_hangs_fails_at_the_deadline() -> None:
    clock = VirtualClock()
    health = Health(clock=clock, deadline_s=2)
    ended = asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    health.add_readiness("stuck", hangs)
    requested = asyncio.create_task(health.readiness())
    await clock.advance(1.9)
    assert not requested.done()
    await clock.advance(0.2)
    assert (await requested).reasons["stuck"] == "no answer within 2 s"
    assert ended.is_set()


async def test_a_failure_is_logged_when_it_starts_and_when_it_ends(log: io.StringIO) -> None:
    reason: list[str] = ["down"]
    health = Health()
    health.add_readiness("upstream", lambda: reason[0] if reason else None)
    for _ in range(3):
        await health.readiness()
    reason.clear()
    for _ in range(3):
        await health.readiness()
    message = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["msg"] for line in message] == ["Health check failed", "Health check passed again"]
    assert (message[0]["check"], message[0]["reason"]) == ("upstream", "down")


@pytest.mark.parametrize("name", ["", "a/b", "ping", "twice"])
def test_a_check_needs_a_name_of_its_own(name: str) -> None:
    health = Health()
    health.add_readiness("twice", lambda: None)
    with pytest.raises(InvariantError, match="the name of a check"):
        health.add_readiness(name, lambda: None)


async def test_metrics_are_served_as_text() -> None:
    metrics = Metrics()
    metrics.counter("jobs_total", "Jobs").inc()
    plain = {"Accept-Encoding": "identity"}
    async with (
        served(metrics_app(metrics)) as session,
        session.get("/metrics", headers=plain) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b"jobs_total 1.0" in await response.read()


async def test_metrics_are_served_as_openmetrics_and_gzip_where_asked() -> None:
    metrics = Metrics()
    metrics.counter("jobs_total", "Jobs").inc()
    requested = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    async with served(metrics_app(metrics)) as session:
        async with session.get("/metrics", headers=requested) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert response.headers["Content-Type"].startswith("application/openmetrics-text")
            assert gzip.decompress(await response.read()).endswith(b"# EOF\n")
        async with session.get("/other") as response:
            assert response.status == 404
        async with session.post("/metrics") as response:
            assert response.status == 405


async def test_metrics_are_rendered_at_most_once_a_second() -> None:
    clock, metrics, renderings = VirtualClock(), Metrics(), []

    def read() -> Readings:
        renderings.append(1)
        return {"jobs": [((), float(len(renderings)))]}

    metrics.read_gauges([Family("jobs", "Jobs")], read)
    renderings.clear()  # registration may read once

    async def scrape(session: ClientSession) -> str:
        async with session.get("/metrics", headers={"Accept-Encoding": "identity"}) as response:
            return await response.text()

    async with served(metrics_app(metrics, clock=clock)) as session:
        pages = await asyncio.gather(*(scrape(session) for _ in range(15)))
        assert len(renderings) == 1
        assert set(pages) == {pages[0]}
        await clock.advance(1.0)
        assert await scrape(session) != pages[0]
        assert len(renderings) == 2


async def test_many_requests_for_metrics_at_a_time_are_refused() -> None:
    metrics, slow = Metrics(), threading.Event()

    def read() -> Readings:
        slow.wait(30)
        return {}

    slow.set()
    metrics.read_gauges([Family("jobs", "Jobs")], read)
    slow.clear()

    async def scrape(session: ClientSession) -> int:
        async with session.get("/metrics") as response:
            return response.status

    async with served(metrics_app(metrics)) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(scrape(session)) for _ in range(30)]
        await until(lambda: sum(task.done() for task in tasks) >= 10, waiting_for="refusals")
        slow.set()
    assert sorted(task.result() for task in tasks) == [200] * 20 + [503] * 10
