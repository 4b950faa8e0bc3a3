"""Bad arguments, kubeconfigs and servers of every command for a fleet.

Each ends with one message that names the argument, its value and a remedy, exit code 2 for wrong
usage and 1 for a failure; no request is sent if an argument is wrong, and no traceback is printed.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kubeocean.cli.commands import app
from support.certificates import kubeconfig, write
from support.commands import Home
from support.servers import Server, head_of, serving
from support.wait import until

# Commands that connect to the hub; NAME stands for the name of an object.
OF_ONE_OBJECT = (
    ("fleet", "leave", "NAME"),
    ("fleet", "cordon", "NAME"),
    ("fleet", "uncordon", "NAME"),
    ("fleet", "clusters", "NAME"),
    ("fleet", "tree", "NAME"),
    ("explain", "placement", "NAME"),
    ("explain", "work", "NAME"),
    ("explain", "member", "NAME"),
)
OF_ALL_OBJECTS = (("fleet", "clusters"), ("fleet", "placements"))
JOIN = ("fleet", "join", "NAME", "--kubeconfig", "MEMBER")
EVERY = (*OF_ONE_OBJECT, *OF_ALL_OBJECTS, JOIN)
PRINTING = tuple(each for each in EVERY if each[1] not in ("leave", "cordon", "uncordon", "join"))
LONGEST_MESSAGE = 1500

NAMES = {
    "empty": "",
    "parent directory": "..",
    "unicode": "Ünïcode",
    "space": "a b",
    "uppercase": "Berlin",
    "query": "a?watch=true",
    "selector": "a,metadata.namespace=b",
    "control characters": "a\x1b[2J",
    "very long": "x" * 100_000,
    "empty namespace": "/a",
    "empty name": "a/",
    "three parts": "a/b/c",
}


class _Refusing(BaseHTTPRequestHandler):
    """Answers every request with the status of its server, and counts the requests."""

    requests: ClassVar[list[str]] = []
    status: ClassVar[int] = 401  # 404: as an API server answers for kinds that it does not serve

    def do_GET(self) -> None:
        self.requests.append(self.path)
        message = "\u001b[2Jrefused"
        body = json.dumps({"kind": "Status", "code": self.status, "message": message}).encode()
        if self.status == 404:
            body = b"404 page not found\n"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """A server that refuses every request; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def config(tmp_path: Path, refusing: str) -> str:
    """Kubeconfig of a server that refuses every request."""
    _Refusing.requests.clear()
    _Refusing.status = 401
    return str(write(tmp_path / "config", kubeconfig({}, {"server": refusing})))


def run(
    words: tuple[str, ...], hub: str, *more: str, name: str = "berlin", member: str = ""
) -> Result:
    values = {"NAME": name, "MEMBER": member or hub}
    arguments = [values.get(word, word) for word in words]
    return CliRunner().invoke(app, [*arguments, "--hub-kubeconfig", hub, *more])


def the_message(result: Result) -> str:
    """Return the only message of a command that failed on purpose."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr) <= LONGEST_MESSAGE
    assert result.stderr.rstrip("\n").isprintable()
    return result.stderr


def titled(words: object) -> str:
    return "-".join(map(str, words[:2])) if isinstance(words, tuple) else str(words)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("words", (*OF_ONE_OBJECT, JOIN), ids=titled)
def test_a_name_that_no_object_can_have_is_refused_without_a_request(
    words: tuple[str, ...], name: str, config: str
) -> None:
    result = run(words, config, name=name)
    message = the_message(result)
    assert result.exit_code == 2
    assert re.match(r"error: (NAME|placement|work): ", message)
    assert "(got " in message
    assert _Refusing.requests == []


@pytest.mark.parametrize("words", EVERY, ids=titled)
def test_the_kubeconfig_of_the_hub_that_cannot_be_used_is_named(
    words: tuple[str, ...], tmp_path: Path, config: str
) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    for name, problem in (
        ("absent", "there is no such file"),
        ("directory", "cannot be read: Is a directory"),
        ("binary", "is not a YAML document"),
        ("empty", "current-context: is not set"),
    ):
        path = str(tmp_path / name)
        result = run(words, path, member=config)
        message = the_message(result)
        assert result.exit_code == 2
        assert f"{path}: {problem}" in message
    result = run(words, config, "--hub-context", "nowhere")
    assert result.exit_code == 2
    assert "there is no context named 'nowhere'; known contexts: here" in the_message(result)
    assert _Refusing.requests == []


@pytest.mark.parametrize("words", [*OF_ALL_OBJECTS, OF_ONE_OBJECT[0], JOIN], ids=titled)
def test_without_any_kubeconfig_the_message_names_the_option_and_the_local_clusters(
    words: tuple[str, ...], tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    message = the_message(run(words, "", member=config))
    assert "name the hub with --hub-kubeconfig" in message
    assert "export KUBECONFIG=$(" in message


@pytest.mark.parametrize("problem", ["absent", "", "context"])
def test_the_kubeconfig_of_a_member_that_cannot_be_used_is_named(
    problem: str, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", config)  # never that of the environment
    path = {"absent": str(tmp_path / "absent"), "context": config}.get(problem, "")
    more = ("--context", "nowhere") if problem == "context" else ()
    arguments = ["fleet", "join", "berlin", "--kubeconfig", path, *more]
    result = CliRunner().invoke(app, arguments)
    message = the_message(result)
    assert result.exit_code == 2
    assert message.startswith("error: --kubeconfig")
    assert _Refusing.requests == []


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "has expired, so renew it"), (403, "refused")]
)
@pytest.mark.parametrize("words", EVERY, ids=titled)
def test_a_refused_credential_is_a_failure_without_escape_sequences(
    words: tuple[str, ...], status: int, remedy: str, config: str
) -> None:
    _Refusing.status = status
    result = run(words, config)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert _Refusing.requests
    assert "\x1b" not in result.output
    assert "refused" in result.output
    assert remedy in result.output
    if words[0] == "fleet" and words[1] not in ("placements",):
        assert remedy in the_message(result)


@pytest.mark.parametrize("words", EVERY, ids=titled)
def test_a_cluster_that_is_no_hub_is_told_from_an_object_that_does_not_exist(
    words: tuple[str, ...], config: str
) -> None:
    _Refusing.status = 404
    result = run(words, config)
    about_members = words[0] == "fleet" and words[1] not in ("placements", "tree")
    assert result.exit_code == (2 if about_members else 1)
    assert re.search("no hub of a fleet|not the hub of a fleet", result.output)
    assert "there is no such" not in result.output


@pytest.mark.parametrize("words", EVERY, ids=titled)
def test_a_server_that_does_not_answer_is_a_failure(words: tuple[str, ...], tmp_path: Path) -> None:
    config = write(tmp_path / "config", kubeconfig({}, {"server": "http://127.0.0.1:9"}))
    result = run(words, str(config))
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert "could not reach http://127.0.0.1:9" in result.output
    remedy = "check that the API server runs, and its address"
    assert remedy in result.output
    assert "connection refused (127.0.0.1:9)" in result.output
    if words[0] == "fleet" and words[1] not in ("placements",):
        assert remedy in the_message(result)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("surplus", "surplus"), "unexpected extra argument"),
        (("--no-such-option",), "No such option: --no-such-option"),
    ],
)
@pytest.mark.parametrize("words", EVERY, ids=titled)
def test_an_unknown_argument_is_wrong_usage(
    words: tuple[str, ...], more: tuple[str, ...], message: str, config: str
) -> None:
    result = run(words, config, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert _Refusing.requests == []


@pytest.mark.parametrize("words", PRINTING, ids=titled)
def test_an_unknown_format_is_wrong_usage(words: tuple[str, ...], config: str) -> None:
    result = run(words, config, "-o", "xml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'xml' is not one of" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--hub-url", "nonsense"),
        ("--hub-url", "http://hub:6443"),
        ("--hub-url", "https://hub:port"),
        ("--label-domain", "Not A Domain"),
        ("--heartbeat", "0"),
        ("--heartbeat", "an hour"),
        ("--timeout", "-1"),
        ("--timeout", "nan"),
    ],
)
def test_a_wrong_value_of_join_is_refused_with_its_option(
    option: str, value: str, config: str
) -> None:
    result = run(JOIN, config, option, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert option in result.stderr
    assert _Refusing.requests == []


@pytest.mark.parametrize("words", [("fleet", "clusters"), ("explain", "member", "NAME")])
def test_the_hub_may_be_named_as_in_other_commands(words: tuple[str, ...], config: str) -> None:
    arguments = ["berlin" if word == "NAME" else word for word in words]
    result = CliRunner().invoke(app, [*arguments, "--kubeconfig", config, "--context", "here"])
    assert result.exit_code == 1
    assert _Refusing.requests


@pytest.mark.parametrize("process", ["hub", "member"])
@pytest.mark.parametrize("flag", ["--no-such-flag", "surplus", "--hub-api-qps=many", "--v"])
def test_a_wrong_flag_of_a_process_is_followed_by_a_command_that_works(
    process: str, flag: str
) -> None:
    result = CliRunner().invoke(app, ["fleet", process, flag])
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert second.endswith(f"kubeocean fleet {process} --help")
    assert CliRunner().invoke(app, ["fleet", process, "--help"]).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_command_that_waits_for_the_hub(
    number: signal.Signals, tmp_path: Path
) -> None:
    async def never_answer(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        await asyncio.Event().wait()

    async with serving(never_answer) as server:
        path = str(write(tmp_path / "config", kubeconfig({}, {"server": server.url})))
        home = Home(tmp_path / "home")
        async with home.running("fleet", "clusters", "--hub-kubeconfig", path) as command:
            await until(lambda: server.heads, waiting_for="a request")
            command.signal(number)
            assert await command.ended() == 128 + number
    assert command.output == ""
