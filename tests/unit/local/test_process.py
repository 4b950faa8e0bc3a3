"""Processes: their life, their end with ours, their logs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from kubeocean.errors import InvariantError, LocalError
from kubeocean.local.process import Process
from support.wait import until


@pytest.fixture
async def sleeper(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process("sleeper", ["sleep", "1000"], log=tmp_path / "log")
    await process.start()
    await until(lambda: _program(process) == "sleep")
    yield process
    await process.kill()


def _shell(tmp_path: Path, script: str) -> Process:
    return Process("shell", ["sh", "-c", script], log=tmp_path / "log")


def _program(process: Process) -> str:
    assert process.pid is not None
    return psutil.Process(process.pid).name()


async def test_a_process_is_stopped_by_sigterm(sleeper: Process) -> None:
    assert sleeper.running
    assert await sleeper.stop() == -signal.SIGTERM
    assert not sleeper.running
    assert sleeper.pid is None


async def test_a_process_that_ignores_sigterm_is_killed_after_the_deadline(tmp_path: Path) -> None:
    process = _shell(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    await process.start()
    await until(lambda: process.tail() == ["deaf"])
    assert await process.stop(within_s=0.2) == -signal.SIGKILL


async def test_a_paused_process_can_be_stopped(sleeper: Process) -> None:
    sleeper.pause()
    assert await sleeper.stop(within_s=5) == -signal.SIGTERM


async def test_pause_and_resume_change_the_state_of_the_process(sleeper: Process) -> None:
    child = psutil.Process(sleeper.pid)
    sleeper.pause()
    await until(lambda: child.status() == psutil.STATUS_STOPPED)
    assert sleeper.running
    sleeper.resume()
    await until(lambda: child.status() == psutil.STATUS_SLEEPING)


async def test_ending_twice_does_no_harm(sleeper: Process) -> None:
    assert await sleeper.kill() == -signal.SIGKILL
    assert await sleeper.kill() == -signal.SIGKILL
    assert await sleeper.stop() == -signal.SIGKILL
    sleeper.pause()
    sleeper.resume()


async def test_a_process_that_was_never_started_stops_at_once(tmp_path: Path) -> None:
    process = _shell(tmp_path, "true")
    assert await process.stop() is None
    assert process.tail() == []
    with pytest.raises(InvariantError, match="never started"):
        await process.wait()


async def test_an_ended_process_leaves_no_zombie(tmp_path: Path) -> None:
    process = _shell(tmp_path, "exit 3")
    await process.start()
    pid = process.pid
    assert pid is not None
    assert await process.wait() == 3
    assert not psutil.pid_exists(pid)


async def test_several_waiters_see_the_end_and_one_may_give_up(sleeper: Process) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sleeper.wait(), 0.01)
    async with asyncio.TaskGroup() as group:
        waiters = [group.create_task(sleeper.wait()) for _ in range(3)]
        group.create_task(sleeper.kill())
    assert [waiter.result() for waiter in waiters] == [-signal.SIGKILL] * 3


async def test_a_process_can_be_started_again_and_the_tail_is_of_the_last_run(
    tmp_path: Path,
) -> None:
    process = _shell(tmp_path, "echo one; echo two; [ -e again ] && echo three; touch again")
    process = Process("shell", process.argv, log=tmp_path / "log", cwd=tmp_path)
    await process.start()
    await process.wait()
    assert process.tail() == ["one", "two"]
    await process.start()
    await process.wait()
    assert process.tail() == ["one", "two", "three"]
    assert process.tail(1) == ["three"]
    assert process.log.read_text().count("one") == 2


async def test_the_tail_of_a_long_log_is_short(tmp_path: Path) -> None:
    process = _shell(tmp_path, "seq 1 100000; printf 'no \\377 text'")
    await process.start()
    await process.wait()
    assert process.tail(2) == ["100000", "no \ufffd text"]


async def test_output_is_private(tmp_path: Path) -> None:
    process = _shell(tmp_path, "echo secret >&2")
    await process.start()
    await process.wait()
    assert process.tail() == ["secret"]
    assert process.log.stat().st_mode & 0o777 == 0o600


async def test_the_environment_is_exactly_what_was_given(tmp_path: Path) -> None:
    process = Process("env", ["env"], log=tmp_path / "log", env={"A": "b", "LC_ALL": "C.UTF-8"})
    await process.start()
    await process.wait()
    assert sorted(process.tail()) == ["A=b", "LC_ALL=C.UTF-8"]


async def test_a_program_starts_with_default_signals_and_in_its_own_session(
    tmp_path: Path,
) -> None:
    process = Process("status", ["cat", "/proc/self/status"], log=tmp_path / "log")
    await process.start()
    assert process.pid is not None
    assert os.getsid(process.pid) == process.pid
    await process.wait()
    ignored = next(line for line in process.tail(100) if line.startswith("SigIgn"))
    # The C library reserves two signals, whose handlers cannot be set.
    settable = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(ignored.split()[1], 16) & settable == 0


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    process = Process("ghost", [tmp_path / "ghost"], log=tmp_path / "log")
    with pytest.raises(LocalError, match=r"could not start ghost: .*there is no program .*ghost"):
        await process.start()
    assert not process.running


async def test_a_program_that_cannot_be_executed_ends_with_a_reason(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o700)
    process = Process("broken", [program], log=tmp_path / "log")
    await process.start()
    assert await process.wait() == 1
    assert "Exec format error" in process.tail()[-1]


async def test_a_missing_working_directory_is_an_error(tmp_path: Path) -> None:
    process = Process("lost", ["true"], log=tmp_path / "log", cwd=tmp_path / "nowhere")
    with pytest.raises(LocalError, match=r"could not start lost.*nowhere"):
        await process.start()


async def test_starting_twice_is_a_bug(sleeper: Process) -> None:
    with pytest.raises(InvariantError, match="is already running"):
        await sleeper.start()


def test_starting_outside_the_main_thread_is_a_bug(tmp_path: Path) -> None:
    process = Process("sleeper", ["sleep", "1000"], log=tmp_path / "log")
    errors: list[Exception] = []

    def run() -> None:
        try:
            asyncio.run(process.start())
        except InvariantError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread only" in str(errors[0])


_PARENT = """
import asyncio, os, sys
from pathlib import Path
from kubeocean.local.process import Process

async def main():
    child = Process("child", ["sleep", "1000"], log=Path(sys.argv[1]))
    await child.start()
    print(child.pid, flush=True)
    if sys.argv[2] == "crash":
        os._exit(1)
    await asyncio.sleep(1000)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.install()
asyncio.run(main())
"""


def _gone(pid: int) -> bool:
    """Whether a process has ended, also if its parent has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("end", ["kill", "crash", "interrupt", "uvloop"])
async def test_no_child_survives_its_parent(tmp_path: Path, end: str) -> None:
    if end == "uvloop":
        pytest.importorskip("uvloop")
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "log"), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if end != "crash":
            assert psutil.pid_exists(pid)
            parent.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
        parent.wait()
        await until(lambda: _gone(pid), within=5, waiting_for="the child to end")


def test_the_end_is_seen_under_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> int | None:
        process = Process("sleeper", ["sleep", "1000"], log=tmp_path / "log")
        await process.start()
        return await process.stop()

    assert uvloop.run(run()) == -signal.SIGTERM
