"""The command line: exit codes, one clear message, and nothing left behind.

The programs of the control planes are stand-ins that never serve: the tests are about failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubeocean import __version__
from kubeocean.cli.commands import app
from kubeocean.local.assets import EVERYTHING
from kubeocean.local.lifecycle import Lifecycle
from support.certificates import kubeconfig, write
from support.commands import Home
from support.servers import Server, head_of, serving
from support.wait import until


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    await until(lambda: not home.processes(), within=10, waiting_for="the end of all processes")


def _programs(home: Home, script: str) -> None:
    """Let every program be this piece of shell."""
    directory = home.root / "programs"
    directory.mkdir()
    for name in EVERYTHING:
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    home.environ["KUBEOCEAN_ASSETS"] = str(directory)


async def test_help_and_version_exit_with_zero(home: Home) -> None:
    assert (await home.run("--version")).out == f"kubeocean {__version__}\n"
    result = await home.run("up", "--help")
    assert result.code == 0
    for option in ("--workers", "--nodes", "--real-nodes", "--ephemeral", "--name", "--port"):
        assert option in result.out


async def test_a_closed_stdout_is_no_failure(home: Home) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kubeocean", "install", "--dry-run"),
            env=home.environ,
            stdout=write,
            stderr=asyncio.subprocess.PIPE,
        )
    finally:
        os.close(write)
    _, stderr = await process.communicate()
    assert stderr == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["up", "--nodes", "-1"], "--nodes"),
        (["up", "--port", "70000"], "--port"),
        (["up", "--name", "Not/A/Name"], "name: must be lower-case letters"),
        (["down", "--name", ""], "name: must be lower-case letters"),
        (
            ["install", "--server", "https://computing:6443"],
            "--server: has no effect without --management-kubeconfig (got",
        ),
        (
            ["install", "--management-context", "x", "--dry-run"],
            "--management-context: has no effect without --management-kubeconfig (got",
        ),
        (
            ["install", "--management-kubeconfig", "m.yaml", "--server", "computing:6443"],
            "--server: must be a URL such as https://",
        ),
        (["install", "--max-syncers", "4", "--dry-run"], "(--shard-syncers)"),
    ],
)
async def test_wrong_usage_exits_with_two(home: Home, words: list[str], message: str) -> None:
    result = await home.run(*words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


async def test_a_failure_prints_one_line_and_exits_with_one(home: Home) -> None:
    result = await home.run("kubeconfig")
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("error: ocean is not up; to start it, run: ")
    assert result.err.count("\n") == 1


async def test_escape_sequences_of_a_server_do_not_reach_the_terminal(
    home: Home, tmp_path: Path
) -> None:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        body = b'{"kind": "Status", "message": "\\u001b[2Jall is well"}'
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with serving(handle) as server:
        config = write(tmp_path / "config", kubeconfig({}, {"server": server.url}))
        result = await home.run("doctor", "--kubeconfig", str(config))
    assert result.code == 1
    assert "[2Jall is well" in result.err
    assert "\x1b" not in result.err


async def test_a_traceback_is_printed_only_on_request(home: Home) -> None:
    home.environ["KUBEOCEAN_DEBUG"] = "1"
    result = await home.run("kubeconfig")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "error: ocean is not up" in result.err


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colour_is_printed_only_to_terminals_without_no_color(home: Home, no_color: str) -> None:
    shown, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "kubeocean", "kubeconfig"],
            stderr=terminal,
            env={**home.environ, "NO_COLOR": no_color, "TERM": "xterm"},
            check=False,
            timeout=30,
        )
        text = os.read(shown, 4096)
    finally:
        os.close(terminal)
        os.close(shown)
    assert (b"\x1b[31m" in text) is (no_color == "")
    assert b"error: ocean is not up" in text


async def test_down_without_an_ocean_prints_that_it_was_not_up(home: Home) -> None:
    result = await home.run("down")
    assert (result.code, result.out) == (0, "ocean was not up\n")


async def test_stored_files_are_private_whatever_the_umask(home: Home) -> None:
    _programs(home, "exit 3")
    wrapper = ("sh", "-c", 'umask 000 && exec "$@"', "sh")
    assert (await home.run("up", "--workers", "0", wrapper=wrapper)).code == 1
    top = home.directory().path.parent
    assert top.stat().st_mode & 0o077 == 0
    files = [path for path in home.directory().path.rglob("*") if path.is_file()]
    assert home.directory().log in files
    assert [path for path in files if path.stat().st_mode & 0o077] == []


async def test_a_damaged_state_file_is_named_and_removed_by_down(home: Home) -> None:
    directory = home.directory()
    directory.make()
    (directory.path / "state.json").write_text('{"name": "oc')
    result = await home.run("up")
    assert result.code == 1
    assert f"could not read {directory.path / 'state.json'}" in result.err
    assert (await home.run("down")).code == 0
    assert directory.read() is None


async def test_up_without_go_and_network_names_a_remedy(home: Home) -> None:
    home.environ |= {
        "PATH": str(home.root),
        "XDG_CACHE_HOME": str(home.root / "cache"),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    for name in ("KUBEOCEAN_ASSETS", "KUBEBUILDER_ASSETS", "PIP_FIND_LINKS", "NO_PROXY"):
        home.environ.pop(name, None)
    result = await home.run("up", "--workers", "1")
    assert (result.code, result.out) == (1, "")
    assert "error: could not get etcd" in result.err
    assert "there is no go in PATH" in result.err
    assert "What to do:" in result.err
    assert "Traceback" not in result.err
    assert list((home.root / "cache").rglob("*.tmp-*")) == []


async def test_a_port_in_use_is_reported(home: Home) -> None:
    _programs(home, "exec sleep 600")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for mode in ((), ("--ephemeral",)):
            result = await home.run("up", "--workers", "0", "--port", port, *mode)
            assert (result.code, result.out) == (1, "")
            assert f"port {port} of 127.0.0.1 is in use" in result.err
            assert "choose another port" in result.err
    assert list(home.temporary.iterdir()) == []


async def test_a_component_that_fails_is_reported_with_the_end_of_its_log(home: Home) -> None:
    _programs(home, "echo 'the moon is in the wrong phase' >&2; exit 3")
    result = await home.run("up", "--workers", "1")
    assert (result.code, result.out) == (1, "")
    assert "ended with exit code 3" in result.err
    assert "the moon is in the wrong phase" in result.err
    assert (await home.run("kubeconfig")).code == 1


@pytest.mark.parametrize("mode", [(), ("--ephemeral",)])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
async def test_an_interrupted_start_leaves_no_process_and_no_file(
    home: Home, mode: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    _programs(home, "exec sleep 600")
    async with home.running("up", "--workers", "1", *mode) as up:
        await until(lambda: len(_sleepers(home)) >= 2, waiting_for="two etcds")
        up.signal(number)
        assert await up.ended() == code
    assert "Traceback" not in up.output
    await until(lambda: not _sleepers(home), within=10)
    assert list(home.temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_does_not_interrupt_the_cleanup(
    home: Home, number: signal.Signals
) -> None:
    # An etcd that writes until it is stopped, and does not end before there is a file `go`.
    ends = "touch stopping; until [ -e go ]; do sleep 0.1; done; exit"
    _programs(home, f"trap '{ends}' TERM; while :; do mktemp -p . >/dev/null; done")
    async with home.running("up", "--ephemeral", "--workers", "0") as up:
        await until(lambda: list(home.temporary.glob("*/computing/tmp.*")), waiting_for="an etcd")
        up.signal(number)
        (stopping,) = await until(lambda: list(home.temporary.glob("*/computing/stopping")))
        up.signal(number)
        await up.wait_for_output("already stopping")
        stopping.with_name("go").touch()
        assert await up.ended() == 128 + number
    assert list(home.temporary.iterdir()) == []


@pytest.mark.parametrize("module", ["typer", "asyncio", "kubeocean.local.lifecycle"])
def test_ctrl_c_before_the_command_starts_exits_without_a_message(home: Home, module: str) -> None:
    script = (
        "import sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.argv[1:] = ['down']\n"
        "from kubeocean.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=home.environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_during_an_import_that_turns_it_into_another_error(home: Home) -> None:
    script = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'typer': return None\n"
        "        try: os.kill(os.getpid(), signal.SIGINT)\n"
        "        except KeyboardInterrupt: raise RuntimeError('Error calling __set_name__')\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.argv[1:] = ['down']\n"
        "from kubeocean.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=home.environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_during_the_import_of_the_module_exits_without_a_message(home: Home) -> None:
    script = (
        "import runpy, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kubeocean.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "runpy.run_module('kubeocean', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=home.environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    ("running", "message"),
    [
        (["worker-1"], "stopped: not stopped yet: worker-1 of ocean. To continue, run: "),
        ([], "stopped: the clusters of ocean have ended. To continue, run: "),
    ],
    ids=["with a process", "without processes"],
)
def test_an_interrupted_stop_names_the_clusters_that_are_left(
    home: Home, monkeypatch: pytest.MonkeyPatch, running: list[str], message: str
) -> None:
    async def take_down(lifecycle: Lifecycle, *, purge: bool = False) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return True

    monkeypatch.setenv("XDG_STATE_HOME", home.environ["XDG_STATE_HOME"])
    monkeypatch.setattr(Lifecycle, "take_down", take_down)
    data = home.directory().data
    with contextlib.ExitStack() as stack:
        for name in ("computing", "worker-1"):
            (data / name).mkdir(parents=True)
        for name in running:
            words = ["etcd", "600"]  # a program's name decides whether it is of a cluster
            process = subprocess.Popen(words, executable="/bin/sleep", cwd=data / name)
            stack.enter_context(process)
            stack.callback(process.kill)
        result = CliRunner().invoke(app, ["down"])
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.endswith(" down\n")


@pytest.mark.parametrize(("words", "code"), [("down", 0), ("up --workers 100", 2)])
def test_closed_streams_change_nothing(home: Home, words: str, code: int) -> None:
    for closed in ("2>&-", ">&-", "<&- >&- 2>&-"):
        command = f'exec "$0" -m kubeocean {words} {closed}'
        done = subprocess.run(["sh", "-c", command, sys.executable], env=home.environ, check=False)
        assert done.returncode == code


def _sleepers(home: Home) -> list[str]:
    return [line for line in home.processes().values() if line.startswith("sleep")]


async def test_a_full_disk_is_reported_with_the_path(home: Home) -> None:
    _programs(home, "exec sleep 600")
    disk = home.root / "state"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=20m tmpfs "{disk}" && exec "$@"'
    wrapper = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    with contextlib.suppress(FileNotFoundError):
        trial = await asyncio.create_subprocess_exec(*wrapper, "true", stderr=subprocess.DEVNULL)
        if await trial.wait() == 0:
            result = await home.run("up", wrapper=wrapper)
            assert (result.code, result.out) == (1, "")
            assert f"too little space in {disk}" in result.err
            assert "are needed" in result.err
            return
    pytest.skip("a small disk needs mount namespaces")


async def test_an_ascii_terminal_of_the_starter_does_not_break_the_log(home: Home) -> None:
    _programs(home, "exit 3")
    home.environ["PYTHONIOENCODING"] = "ascii"
    result = await home.run("up", "--workers", "0")
    assert result.code == 1
    assert "etcd of cluster computing ended with exit code 3" in result.err


async def test_programs_may_be_named_by_a_relative_path(home: Home) -> None:
    _programs(home, "echo 'the moon is in the wrong phase'; exit 3")
    home.environ["KUBEOCEAN_ASSETS"] = os.path.relpath(home.environ["KUBEOCEAN_ASSETS"])
    result = await home.run("up", "--workers", "0")
    assert "the moon is in the wrong phase" in result.err


async def test_a_paused_supervisor_is_stopped_too(home: Home) -> None:
    _programs(home, "exec sleep 600")
    async with home.running("up", "--workers", "0") as up:
        await until(lambda: len(_sleepers(home)) == 1, waiting_for="one etcd")
        state = home.directory().read()
        assert state is not None
        os.kill(state.process.pid, signal.SIGSTOP)
        up.signal(signal.SIGINT)
        assert await up.ended() == 130
    assert "did not stop" not in up.output
    assert home.processes() == {}


async def test_two_concurrent_starts_start_one_ocean(home: Home) -> None:
    _programs(home, "exec sleep 600")
    async with home.running("up", "--workers", "0") as first:
        await until(lambda: len(_sleepers(home)) == 1, waiting_for="one etcd")
        async with home.running("up", "--workers", "0") as second:
            await second.wait_for_output("waiting for another start or stop of ocean")
            assert len(_sleepers(home)) == 1
            second.signal(signal.SIGINT)
            assert await second.ended() == 130
        assert len(_sleepers(home)) == 1  # the waiting start has stopped nothing
        first.signal(signal.SIGINT)
        assert await first.ended() == 130


def test_the_command_is_imported_quickly(home: Home) -> None:
    script = (
        # CPU time, so that other processes of the machine do not count.
        "import sys, time; start = time.process_time(); import kubeocean.cli.main;"
        "print(time.process_time() - start);"
        "print([m for m in ('aiohttp', 'cryptography', 'yaml', 'msgspec', 'asyncio')"
        " if m in sys.modules])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(3)
    ]
    assert min(float(run[0]) for run in runs) < 0.150
    assert runs[0][1] == "[]"
