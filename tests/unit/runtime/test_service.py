"""Services: the order of starting and ending, exit codes, signals to real processes."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from kubeocean.errors import InvariantError
from kubeocean.runtime import logs
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.components import Component, ServicePart
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.service import Service, freeze, run
from support.wait import until


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    out = io.StringIO()
    restore = logs.configure("json", "info", out)
    yield out
    restore()


def reported(log: io.StringIO, message: str) -> list[dict[str, Any]]:
    return [x for x in map(json.loads, log.getvalue().splitlines()) if x["msg"] == message]


class Diary:
    """Creates components that record their events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def part(self, name: str, *, ready: bool = True, **how: Any) -> Component:
        async def live() -> None:
            self.lines.append(f"{name} started")
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.lines.append(f"{name} ended")

        return Component(name, how.pop("run", live), ready=lambda: ready, **how)


def service(*parts: ServicePart, **settings: Any) -> Service:
    return Service("test", parts, **{"signals": False, "on_ready": lambda: None} | settings)


async def test_components_start_in_order_and_end_in_reverse() -> None:
    diary = Diary()
    it = service(*(diary.part(name) for name in "abc"))
    running = asyncio.create_task(it.run())
    await until(lambda: len(diary.lines) == 3)
    it.stop()
    assert await running == 0
    assert diary.lines == [
        "a started", "b started", "c started", "c ended", "b ended", "a ended",
    ]  # fmt: skip


class Drained:
    """A component whose `stop`, plain or async, lets `run` end."""

    ready = True

    def __init__(self, seen: list[str], *, waits: bool) -> None:
        self.name = "async" if waits else "plain"
        self.seen = seen
        self.requested = asyncio.Event()
        self.stop = self.wait if waits else self.requested.set

    async def wait(self) -> None:
        self.requested.set()
        await asyncio.sleep(0)

    async def run(self) -> None:
        await self.requested.wait()
        self.seen.append(self.name)


async def test_a_component_with_stop_ends_by_itself() -> None:
    seen: list[str] = []
    it = service(Drained(seen, waits=True), Drained(seen, waits=False))
    running = asyncio.create_task(it.run())
    await until(lambda: it.ready)
    it.stop()
    assert await running == 0
    assert seen == ["plain", "async"]


async def test_a_component_that_has_ended_is_not_asked_to() -> None:
    requested: list[str] = []

    async def breaks() -> None:
        raise ValueError("at once")

    parts = [Component("bad", breaks, stop=lambda: requested.append("bad")), Diary().part("a")]
    assert await service(*parts).run() == 1
    assert requested == []


async def test_a_component_that_fails_ends_the_service_with_code_1(log: io.StringIO) -> None:
    diary = Diary()

    async def breaks() -> None:
        await asyncio.sleep(0)
        raise InvariantError("broken", evidence=1)

    it = service(diary.part("a"), Component("bad", breaks), diary.part("c"))
    assert await it.run() == 1
    assert diary.lines[-2:] == ["c ended", "a ended"]
    (line,) = reported(log, "Component failed")
    assert (line["component"], line["level"]) == ("bad", "error")
    assert line["error"].startswith("InvariantError: broken")
    assert "Traceback" in line["exception"]
    assert reported(log, "Stopped service")[0]["code"] == 1


async def test_a_component_that_ends_unasked_ends_the_service_with_code_1(
    log: io.StringIO,
) -> None:
    async def returns() -> None:
        await asyncio.sleep(0)

    assert await service(Component("short", returns), Diary().part("a")).run() == 1
    assert reported(log, "Component ended by itself")[0]["component"] == "short"


async def test_a_component_that_cancels_itself_ends_the_service_with_code_1(
    log: io.StringIO,
) -> None:
    async def cancels() -> None:
        raise asyncio.CancelledError

    assert await service(Component("odd", cancels), Diary().part("a")).run() == 1
    assert reported(log, "Component was cancelled")[0]["component"] == "odd"


async def test_a_component_that_fails_while_ending_makes_code_1() -> None:
    async def breaks() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("while ending")

    it = service(Component("bad", breaks), Diary().part("a"))
    running = asyncio.create_task(it.run())
    await until(lambda: it.ready)
    await asyncio.sleep(0)
    it.stop()
    assert await running == 1


async def test_a_component_that_cannot_be_asked_is_cancelled(log: io.StringIO) -> None:
    def stop() -> None:
        raise ValueError("no")

    diary = Diary()
    it = service(diary.part("a"), diary.part("b", stop=stop))
    running = asyncio.create_task(it.run())
    await until(lambda: len(diary.lines) == 2)
    it.stop()
    assert await running == 1
    assert diary.lines[2:] == ["b ended", "a ended"]
    assert reported(log, "Component could not be stopped")


async def test_the_end_takes_no_longer_than_the_deadline(log: io.StringIO) -> None:
    clock = VirtualClock()
    diary = Diary()
    it = service(diary.part("a"), diary.part("slow", stop=lambda: None), clock=clock, deadline_s=10)
    running = asyncio.create_task(it.run())
    await clock.advance(1)
    it.stop()
    await clock.advance(5.9)
    assert diary.lines[2:] == []
    await clock.advance(0.2)
    assert await running == 0, "a component that ends when cancelled ended in time"
    assert diary.lines[2:] == ["slow ended", "a ended"]
    assert reported(log, "Cancelled component that did not stop in time")[0]["component"] == "slow"


async def test_what_cannot_be_ended_is_left_behind(log: io.StringIO) -> None:
    clock = VirtualClock()
    release = asyncio.Event()
    codes: list[int] = []

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    def leave(code: int) -> None:
        codes.append(code)
        release.set()  # a test cannot leave it behind

    it = service(
        Diary().part("a"), Component("stubborn", stubborn), clock=clock, deadline_s=10, exit=leave
    )
    running = asyncio.create_task(it.run())
    await clock.advance(1)
    it.stop()
    await clock.advance(10)
    assert codes == []
    await clock.advance(2.1)
    assert (await running, codes) == (1, [1])
    assert reported(log, "Ended process before components of service stopped")[0]["components"] == [
        "stubborn"
    ]


async def test_a_second_stop_ends_everything_at_once(log: io.StringIO) -> None:
    clock = VirtualClock()
    diary = Diary()
    it = service(*(diary.part(name, stop=lambda: None) for name in "ab"), clock=clock)
    running = asyncio.create_task(it.run())
    await clock.advance(1)
    it.stop()
    await clock.advance(1)
    assert not running.done()
    it.stop()
    it.stop()
    await clock.advance(0)
    assert await running == 1
    assert sorted(diary.lines[2:]) == ["a ended", "b ended"]
    assert len(reported(log, "Skipped the shutdown of service")) == 1
    it.stop()  # nothing is left to stop


async def test_readiness_goes_before_the_work_does() -> None:
    clock = VirtualClock()
    diary = Diary()
    it = service(diary.part("a"), clock=clock, drain_s=5)
    assert (await it.health.readiness()).reasons["service"] == "starting"
    running = asyncio.create_task(it.run())
    await clock.advance(1)
    assert it.ready
    assert (await it.health.readiness()).ok
    it.stop()
    await clock.advance(4.9)
    assert not it.ready
    reasons = (await it.health.readiness()).reasons
    assert reasons == {"ping": None, "service": "stopping", "a": None}
    assert diary.lines == ["a started"]
    await clock.advance(0.2)
    assert await running == 0


async def test_the_service_is_ready_when_all_components_are(log: io.StringIO) -> None:
    clock = VirtualClock()
    ready: dict[str, bool] = {"a": False, "b": False}
    calls: list[str] = []
    diary = Diary()
    parts = [
        Component(name, diary.part(name).run, ready=lambda name=name: ready[name]) for name in ready
    ]
    it = service(*parts, clock=clock, on_ready=lambda: calls.append("ready"))
    running = asyncio.create_task(it.run())
    await clock.advance(5)
    ready["a"] = True
    await clock.advance(5)
    assert (it.ready, calls) == (False, [])
    assert (await it.health.readiness()).reasons["b"] == "not ready yet"
    ready["b"] = True
    await clock.advance(1)
    assert (it.ready, calls) == (True, ["ready"])
    ready["a"] = False
    await clock.advance(1)
    ready["a"] = True
    await clock.advance(1)
    assert calls == ["ready"], "once"
    it.stop()
    assert await running == 0
    assert len(reported(log, "Service became ready")) == 1


async def test_a_cancelled_service_ends_its_components_in_order() -> None:
    diary = Diary()
    it = service(*(diary.part(name) for name in "ab"))
    running = asyncio.create_task(it.run())
    await until(lambda: len(diary.lines) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert diary.lines[2:] == ["b ended", "a ended"]


async def test_a_service_that_was_stopped_before_it_ran_starts_nothing() -> None:
    diary = Diary()
    it = service(diary.part("a"))
    it.stop()
    assert (await it.run(), diary.lines) == (0, [])


async def test_a_service_without_components_runs_until_it_is_stopped() -> None:
    it = service()
    running = asyncio.create_task(it.run())
    await until(lambda: it.ready)
    it.stop()
    assert await running == 0


async def test_pages_are_served_while_it_runs(log: io.StringIO) -> None:
    here = BindAddress("127.0.0.1", 0)
    it = service(Diary().part("a"), metrics_address=here, health_address=here)
    it.metrics.counter("jobs_total", "Jobs").inc()
    running = asyncio.create_task(it.run())
    (started,) = await until(lambda: reported(log, "Started service"))
    async with ClientSession() as session:
        async with session.get(f"http://{started['metrics']}/metrics") as response:
            assert "jobs_total 1.0" in await response.text()
        async with session.get(f"http://{started['health']}/readyz?verbose") as response:
            assert "[+]a ok" in await response.text()
    it.stop()
    assert await running == 0


async def test_a_port_in_use_ends_the_start_with_code_1(log: io.StringIO) -> None:
    diary = Diary()
    first = service(diary.part("a"), health_address=BindAddress("127.0.0.1", 0))
    running = asyncio.create_task(first.run())
    (started,) = await until(lambda: reported(log, "Started service"))
    port = int(started["health"].rpartition(":")[2])
    taken = BindAddress("127.0.0.1", port, "--health-probe-bind-address")
    assert await service(diary.part("b"), health_address=taken).run() == 1
    (line,) = reported(log, "Could not start service")
    assert "--health-probe-bind-address: cannot listen on" in line["error"]
    assert "b started" not in diary.lines
    first.stop()
    assert await running == 0


async def test_signals_end_the_service_and_are_given_back(log: io.StringIO) -> None:
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.getsignal(number) for number in numbers]
    it = service(Diary().part("a"), signals=True)
    running = asyncio.create_task(it.run())
    await until(lambda: it.ready)
    os.kill(os.getpid(), signal.SIGUSR1)
    await until(lambda: reported(log, "Changed log level"))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert reported(log, "Began to stop service")[0]["why"] == "SIGTERM"
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_heap_is_frozen() -> None:
    gc.unfreeze()
    freeze()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


# Real processes, real signals

PROGRAM = """
    import asyncio, sys
    from kubeocean.runtime import logs
    from kubeocean.runtime.flags import BindAddress
    from kubeocean.runtime.clock import RealClock
    from kubeocean.runtime.service import Service, run

    {parts}

    async def main():
        service = Service(
            "program", parts, deadline_s={deadline_s},
            health_address=BindAddress.parse("127.0.0.1:0", flag="--health-probe-bind-address"),
        )
        return await service.run()

    logs.configure("json", "info")
    sys.exit(run(main))
"""
WELL_BEHAVED = """
async def live():
    await asyncio.get_running_loop().create_future()

parts = [("a", live), ("b", live)]
"""
STUBBORN = """
async def live():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

parts = [("stubborn", live)]
"""
SLOW = """
class Slow:
    name = "slow"
    async def run(self):
        await asyncio.get_running_loop().create_future()
    def stop(self):
        pass

parts = [Slow()]
"""
FAILING = """
async def fails():
    await asyncio.sleep(0.1)
    raise ValueError("out of luck")

parts = [("bad", fails)]
"""


class Program:
    """A child process that runs a service, and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def wait_for_output(self, message: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while line := await self.process.stderr.readline():
                self.lines.append(json.loads(line))
                if self.lines[-1]["msg"] == message:
                    return self.lines[-1]
        raise AssertionError(f"ended without saying {message!r}: {self.lines}")

    async def ends(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def program(tmp_path: Path, parts: str, *, deadline_s: float = 30) -> AsyncIterator[Program]:
    script = tmp_path / "program.py"
    body = textwrap.dedent(PROGRAM).format(parts=parts, deadline_s=deadline_s)
    script.write_text(body)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_process_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async with program(tmp_path, WELL_BEHAVED) as it:
        await it.wait_for_output("Service became ready")
        it.process.send_signal(number)
        assert await it.ends() == 0
        assert (await it.wait_for_output("Stopped service"))["code"] == 0


async def test_a_process_answers_probes_until_it_ends(tmp_path: Path) -> None:
    async with program(tmp_path, SLOW) as it:
        health = (await it.wait_for_output("Started service"))["health"]
        await it.wait_for_output("Service became ready")
        async with ClientSession() as session:
            async with session.get(f"http://{health}/readyz") as response:
                assert (response.status, await response.text()) == (200, "ok")
            it.process.send_signal(signal.SIGTERM)
            await it.wait_for_output("Began to stop service")
            async with session.get(f"http://{health}/readyz") as response:
                assert response.status == 500
                assert "[-]service failed: stopping" in await response.text()
            async with session.get(f"http://{health}/healthz") as response:
                assert response.status == 200


async def test_a_process_ends_within_its_deadline(tmp_path: Path) -> None:
    async with program(tmp_path, SLOW, deadline_s=0.5) as it:
        await it.wait_for_output("Service became ready")
        it.process.send_signal(signal.SIGTERM)
        assert await it.ends() == 0
        assert await it.wait_for_output("Cancelled component that did not stop in time")


async def test_a_second_signal_ends_a_process_at_once(tmp_path: Path) -> None:
    async with program(tmp_path, SLOW) as it:
        await it.wait_for_output("Service became ready")
        it.process.send_signal(signal.SIGTERM)
        await it.wait_for_output("Began to stop service")
        it.process.send_signal(signal.SIGTERM)
        assert await it.ends() == 1
        assert await it.wait_for_output("Skipped the shutdown of service")


async def test_a_process_ends_even_if_a_component_will_not(tmp_path: Path) -> None:
    async with program(tmp_path, STUBBORN, deadline_s=0.5) as it:
        await it.wait_for_output("Service became ready")
        it.process.send_signal(signal.SIGTERM)
        assert (await it.wait_for_output("Ended process before components of service stopped"))[
            "components"
        ] == ["stubborn"]
        assert await it.ends() == 1


async def test_a_process_whose_component_fails_ends_with_code_1(tmp_path: Path) -> None:
    async with program(tmp_path, FAILING) as it:
        line = await it.wait_for_output("Component failed")
        assert "out of luck" in line["exception"]
        assert await it.ends() == 1


async def test_the_log_level_of_a_process_follows_signals(tmp_path: Path) -> None:
    async with program(tmp_path, WELL_BEHAVED) as it:
        await it.wait_for_output("Service became ready")
        it.process.send_signal(signal.SIGUSR1)
        assert (await it.wait_for_output("Changed log level"))["now"] == "debug"
        it.process.send_signal(signal.SIGUSR2)
        assert (await it.wait_for_output("Changed log level"))["now"] == "info"
        it.process.send_signal(signal.SIGTERM)
        assert await it.ends() == 0


async def loop_module() -> int:
    return 1 if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else 0


async def test_uvloop_is_used_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert await asyncio.to_thread(run, loop_module) == 1


async def test_asyncio_is_used_where_uvloop_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert await asyncio.to_thread(run, loop_module) == 0


_MEASURE = """
import ctypes

from kubeocean.runtime.service import return_buffers

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
{call}
bytearray(16 << 20)  # freed at once: from now on glibc would take such buffers from the heap
before = libc.mallinfo2().hblkhd
kept = bytearray(8 << 20)
print(libc.mallinfo2().hblkhd - before >= 8 << 20)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc"
)
@pytest.mark.parametrize(("call", "outside"), [("return_buffers()", "True"), ("", "False")])
def test_large_buffers_are_outside_of_the_heap(call: str, outside: str) -> None:
    words = [sys.executable, "-c", _MEASURE.format(call=call)]
    assert (
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == outside
    )
