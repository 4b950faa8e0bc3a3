from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError, Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.credentials import (
    InClusterAccess,
    KubeconfigAccess,
    StaticAccess,
    default_access,
)
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import HttpTransport, Request
from support.certificates import encoded, identity, kubeconfig, write
from support.servers import Server, head_of, serving
from support.wait import until

V1 = "client.authentication.k8s.io/v1"
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
someone, other = identity(), identity("other")


def token(source: Any) -> str:
    held = source.current().token
    assert held is not None
    return str(held.reveal())


def message(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


# --- static


async def test_a_static_access_stays_as_it_is() -> None:
    source = StaticAccess(Access("https://a"))
    before = source.current()
    assert not await source.refresh(rejected=True)
    assert source.current() is before
    assert source.interval_s > 60


# --- kubeconfig files


async def test_nothing_changed_gives_the_same_object(tmp_path: Path) -> None:
    source = KubeconfigAccess(write(tmp_path / "config", kubeconfig({"token": "a"})))
    before = source.current()
    assert not await source.refresh()
    assert not await source.refresh(rejected=True)
    assert source.current() is before
    assert source.interval_s == 10


async def test_a_changed_kubeconfig_is_read_again(tmp_path: Path) -> None:
    source = KubeconfigAccess(write(tmp_path / "config", kubeconfig({"token": "a"})))
    write(tmp_path / "config", kubeconfig({"token": "bb"}))
    assert token(source) == "a"
    assert await source.refresh()
    assert token(source) == "bb"
    assert not await source.refresh()


async def test_a_change_of_nothing_is_no_change(tmp_path: Path) -> None:
    source = KubeconfigAccess(str(write(tmp_path / "config", kubeconfig({"token": "a"}))))
    before = source.current()
    write(tmp_path / "config", kubeconfig({"token": "a"}) | {"preferences": {"colors": True}})
    assert not await source.refresh()
    assert source.current() is before


async def test_the_context_that_was_asked_for_is_followed(tmp_path: Path) -> None:
    document: Any = kubeconfig({"token": "a"})
    document["contexts"].append({"name": "there", "context": {"cluster": "sea", "user": "admin"}})
    source = KubeconfigAccess([write(tmp_path / "config", document)], "there")
    document["contexts"][1]["context"]["namespace"] = "new"
    write(tmp_path / "config", document)
    assert await source.refresh()
    assert source.current().namespace == "new"


async def test_a_file_that_comes_before_the_others_is_noticed(tmp_path: Path) -> None:
    second = write(tmp_path / "second", kubeconfig({"token": "second"}))
    source = KubeconfigAccess([tmp_path / "first", second])
    write(tmp_path / "first", kubeconfig({"token": "first"}))
    assert await source.refresh()
    assert token(source) == "first"


async def test_new_certificates_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "crt").write_bytes(someone.certificate)
    (tmp_path / "key").write_bytes(someone.key)
    user = {"client-certificate": "crt", "client-key": "key"}
    source = KubeconfigAccess(write(tmp_path / "config", kubeconfig(user)))
    (tmp_path / "crt").write_bytes(other.certificate)
    (tmp_path / "key").write_bytes(other.key)
    assert await source.refresh()
    assert source.current().certificate == other.certificate


async def test_half_a_rotation_keeps_the_old_pair_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "crt").write_bytes(someone.certificate)
    (tmp_path / "key").write_bytes(someone.key)
    user = {"client-certificate": "crt", "client-key": "key"}
    source = KubeconfigAccess(write(tmp_path / "config", kubeconfig(user)))
    before = source.current()

    (tmp_path / "crt").write_bytes(other.certificate)
    for _ in range(3):
        assert not await source.refresh()
    assert source.current() is before
    assert len(message(caplog)) == 1
    assert "Could not reload credentials, kept the old ones" in message(caplog)[0]
    assert "does not match the client certificate" in message(caplog)[0]

    (tmp_path / "key").unlink()
    assert not await source.refresh()
    assert len(message(caplog)) == 2

    (tmp_path / "key").write_bytes(other.key)
    assert await source.refresh()
    assert source.current().certificate == other.certificate
    assert "Reloaded credentials after earlier failure" in message(caplog)[2]
    assert not await source.refresh()
    assert len(message(caplog)) == 3


async def test_a_file_that_is_put_right_as_it_was_is_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "config", kubeconfig({"token": "a"}))
    source = KubeconfigAccess(path)
    before = source.current()
    os.rename(path, tmp_path / "aside")
    assert not await source.refresh()
    os.rename(tmp_path / "aside", path)
    assert not await source.refresh()
    assert source.current() is before
    assert ["Reloaded" in line for line in message(caplog)] == [False, True]


async def test_a_token_file_is_read_again_every_minute_and_when_rejected(tmp_path: Path) -> None:
    clock = VirtualClock()
    file = tmp_path / "token"
    file.write_text("a")
    path = write(tmp_path / "config", kubeconfig({"tokenFile": "token"}))
    source = KubeconfigAccess(path, clock=clock)
    look = os.stat(file)

    def rewrite(text: str) -> None:
        """Rewrite a file without a change of its times, as on a file system with coarse times."""
        file.write_text(text)
        os.utime(file, ns=(look.st_atime_ns, look.st_mtime_ns))

    rewrite("b")
    await clock.advance(59)
    assert not await source.refresh()
    await clock.advance(1)
    assert await source.refresh()
    assert token(source) == "b"

    rewrite("c")
    assert not await source.refresh()
    assert await source.refresh(rejected=True)
    assert token(source) == "c"


async def test_the_swap_of_a_mounted_secret_is_followed(tmp_path: Path) -> None:
    def mount(version: str, document: object) -> None:
        (tmp_path / version).mkdir()
        write(tmp_path / version / "kubeconfig", document)
        (tmp_path / "..data_tmp").symlink_to(version)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    mount("..2026_01", kubeconfig({"tokenFile": "token"}))
    (tmp_path / "..2026_01" / "token").write_text("a")
    for name in ("kubeconfig", "token"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    source = KubeconfigAccess(tmp_path / "kubeconfig")
    assert token(source) == "a"

    mount("..2026_02", kubeconfig({"tokenFile": "token"}, context={"namespace": "new"}))
    (tmp_path / "..2026_02" / "token").write_text("b")
    assert await source.refresh()
    assert (token(source), source.current().namespace) == ("b", "new")


def test_the_constructor_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        KubeconfigAccess(tmp_path / "none")


async def test_a_plugin_that_appears_without_being_allowed_is_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "config", kubeconfig({"token": "a"}))
    source = KubeconfigAccess(path)
    write(path, kubeconfig({"exec": {"command": "aws"}}))
    assert not await source.refresh()
    assert token(source) == "a"
    assert "'aws'" in message(caplog)[0]
    assert "allow_exec=True" in message(caplog)[0]


# --- plugins


class Plugin:
    """A real plugin that counts its runs and prints the content of a file."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        self.directory = directory
        self.clock = clock
        self.path = directory / "config"
        script = (
            f"#!/bin/sh\necho run >> {directory}/runs\n"
            f"while [ -e {directory}/hold ]; do sleep 0.05; done\n"
            f"cat {directory}/answer || exit 7\n"
        )
        self.program = directory / "plugin"
        self.program.write_text(script)
        self.program.chmod(0o755)
        self.describe()

    def describe(self, *, cluster: Mapping[str, object] | None = None, **more: object) -> None:
        exec_ = {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"}
        write(self.path, kubeconfig({"exec": exec_ | more}, cluster))

    def gives(self, token: str | None, lives_s: float | None = None, **status: object) -> None:
        if lives_s is not None:
            moment = self.clock.now() + timedelta(seconds=lives_s)
            status["expirationTimestamp"] = moment.isoformat()
        answer = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": token, **status}}
        (self.directory / "answer").write_text(json.dumps(answer))

    def fails(self) -> None:
        (self.directory / "answer").unlink(missing_ok=True)

    def hold(self) -> None:
        """Let the next run last until `resume`."""
        (self.directory / "hold").touch()

    def resume(self) -> None:
        (self.directory / "hold").unlink(missing_ok=True)

    @property
    def runs(self) -> int:
        file = self.directory / "runs"
        return len(file.read_text().split()) if file.exists() else 0

    def source(self) -> KubeconfigAccess:
        return KubeconfigAccess(self.path, allow_exec=True, clock=self.clock)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path, VirtualClock())


async def test_a_plugin_runs_at_the_first_refresh(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    assert source.interval_s == 0
    assert source.current().token is None
    assert await source.refresh()
    assert token(source) == "a"
    assert source.interval_s == 10


async def test_what_does_not_expire_is_asked_for_once(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    await source.refresh()
    before = source.current()
    await plugin.clock.advance(100_000)
    assert not await source.refresh()
    assert source.current() is before
    assert plugin.runs == 1


async def test_what_expires_is_replaced_a_minute_before(plugin: Plugin) -> None:
    plugin.gives("a", lives_s=3600)
    source = plugin.source()
    await source.refresh()
    plugin.gives("b", lives_s=7200)
    await plugin.clock.advance(3535)
    assert not await source.refresh()
    assert source.interval_s == 5
    await plugin.clock.advance(5)
    assert source.interval_s == 0
    assert await source.refresh()
    assert token(source) == "b"
    assert source.interval_s == 10


async def test_what_lives_shortly_is_replaced_in_its_last_fifth(plugin: Plugin) -> None:
    plugin.gives("a", lives_s=20)
    source = plugin.source()
    await source.refresh()
    plugin.gives("b", lives_s=20)
    await plugin.clock.advance(15)
    assert not await source.refresh()
    await plugin.clock.advance(1)
    assert await source.refresh()


async def test_what_has_expired_already_is_not_asked_for_all_the_time(plugin: Plugin) -> None:
    plugin.gives("a", lives_s=-100)
    source = plugin.source()
    assert await source.refresh()
    assert not await source.refresh()
    assert plugin.runs == 1
    assert source.interval_s == 5
    await plugin.clock.advance(5)
    await source.refresh()
    assert plugin.runs == 2


@asynccontextmanager
async def server_for(plugin: Plugin) -> AsyncIterator[tuple[Server, HttpTransport]]:
    """Yield a server that answers every request, and a transport to it with the plugin's
    credential."""

    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    (plugin.directory / "pair").write_bytes(someone.certificate + someone.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(plugin.directory / "pair")
    async with serving(handle, tls=tls) as server:
        plugin.describe(cluster={"server": server.url, "insecure-skip-tls-verify": True})
        transport = HttpTransport(plugin.source(), clock=plugin.clock)
        try:
            yield server, transport
        finally:
            plugin.resume()
            await transport.close()


async def test_a_slow_plugin_runs_beside_requests_while_its_old_credential_holds(
    plugin: Plugin,
) -> None:
    request = Request("GET", "/version", timeout_s=10.0)
    plugin.gives("old", lives_s=3600)
    async with server_for(plugin) as (server, transport):
        await transport.send(request)
        plugin.gives("new", lives_s=7200)
        plugin.hold()
        await plugin.clock.advance(3550)  # the last minute
        async with asyncio.timeout(5):
            for _ in range(3):
                await transport.send(request)
        await until(lambda: plugin.runs == 2)
        assert all("Bearer old" in head for head in server.heads)
        plugin.resume()

        async def sent_with_new() -> bool:
            await transport.send(request)
            return "Bearer new" in server.heads[-1]

        await until(sent_with_new)
        assert plugin.runs == 2


async def test_requests_wait_for_a_plugin_whose_credential_ended_no_longer_than_they_may(
    plugin: Plugin,
) -> None:
    plugin.gives("old", lives_s=3600)
    async with server_for(plugin) as (server, transport):
        await transport.send(Request("GET", "/version"))
        plugin.gives("new", lives_s=7200)
        plugin.hold()
        await plugin.clock.advance(3600)
        with pytest.raises(Unreachable, match=r"not renewed within 0\.3 s") as error:
            await transport.send(Request("GET", "/version", timeout_s=0.3))
        assert not error.value.sent
        plugin.resume()
        await transport.send(Request("GET", "/version"))
        assert ["Bearer new" in head for head in server.heads] == [False, True]
        assert plugin.runs == 2


async def test_a_rejected_credential_is_replaced_at_once(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    await source.refresh()
    plugin.gives("b")
    await plugin.clock.advance(5)
    assert await source.refresh(rejected=True)
    assert token(source) == "b"


async def test_a_server_that_rejects_everything_does_not_keep_the_plugin_busy(
    plugin: Plugin,
) -> None:
    plugin.gives("a")
    source = plugin.source()
    await source.refresh()
    for _ in range(20):
        assert not await source.refresh(rejected=True)
        await plugin.clock.advance(1)
    assert plugin.runs == 4


async def test_many_tasks_share_one_run(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    answers = await asyncio.gather(*(source.refresh(rejected=True) for _ in range(20)))
    assert answers == [True] * 20
    assert plugin.runs == 1


async def test_many_tasks_share_one_failure(plugin: Plugin) -> None:
    plugin.fails()
    source = plugin.source()
    answers = await asyncio.gather(*(source.refresh() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(answer, ConfigError) for answer in answers)
    assert plugin.runs == 1


async def test_one_task_that_gives_up_does_not_take_the_others_along(plugin: Plugin) -> None:
    plugin.gives("a")
    plugin.program.write_text(
        f"#!/bin/sh\necho run >> {plugin.directory}/runs\n"
        f"[ -e {plugin.directory}/second ] || exec sleep 1000\ncat {plugin.directory}/answer\n"
    )
    source = plugin.source()
    first = asyncio.ensure_future(source.refresh())
    await until(lambda: plugin.runs == 1)
    second = asyncio.ensure_future(source.refresh())
    (plugin.directory / "second").touch()
    first.cancel()
    assert await second
    assert token(source) == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_first_failure_is_raised_and_tried_again(plugin: Plugin) -> None:
    plugin.fails()
    source = plugin.source()
    with pytest.raises(ConfigError, match="failed with exit code 7"):
        await source.refresh()
    assert source.interval_s == 0
    plugin.gives("a")
    with pytest.raises(ConfigError):
        await source.refresh()
    await plugin.clock.advance(5)
    assert await source.refresh()
    assert plugin.runs == 2


async def test_a_later_failure_keeps_the_old_credential_and_is_logged_once(
    plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.gives("a", lives_s=100)
    source = plugin.source()
    await source.refresh()
    plugin.fails()
    for _ in range(3):
        await plugin.clock.advance(80)
        assert not await source.refresh()
    assert token(source) == "a"
    assert plugin.runs == 4
    assert len(message(caplog)) == 1
    assert "failed with exit code 7" in message(caplog)[0]

    plugin.gives("b")
    await plugin.clock.advance(5)
    assert await source.refresh()
    assert token(source) == "b"
    assert "Reloaded credentials after earlier failure" in message(caplog)[1]


async def test_a_plugin_may_give_a_certificate(plugin: Plugin) -> None:
    plugin.gives(
        None,
        clientCertificateData=someone.certificate.decode(),
        clientKeyData=someone.key.decode(),
    )
    source = plugin.source()
    assert await source.refresh()
    assert source.current().certificate == someone.certificate
    assert source.current().private_key == Secret(someone.key)
    assert source.current().token is None


async def test_another_plugin_in_the_kubeconfig_is_asked_at_once(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    await source.refresh()
    plugin.gives("b")
    plugin.describe(args=["other"])
    assert await source.refresh()
    assert token(source) == "b"


async def test_another_server_in_the_kubeconfig_needs_no_new_token(plugin: Plugin) -> None:
    plugin.gives("a")
    source = plugin.source()
    await source.refresh()
    text = plugin.path.read_text()
    plugin.path.write_text(text.replace("https://api.example", "https://other.example"))
    assert await source.refresh()
    assert source.current().server == "https://other.example:6443"
    assert (token(source), plugin.runs) == ("a", 1)


async def test_a_change_of_the_file_while_the_plugin_runs_wins(plugin: Plugin) -> None:
    plugin.gives("a")
    plugin.program.write_text(
        f"#!/bin/sh\necho run >> {plugin.directory}/runs\n"
        f"while [ ! -e {plugin.directory}/go ]; do sleep 0.01; done\n"
        f"cat {plugin.directory}/answer\n"
    )
    source = plugin.source()
    first = asyncio.ensure_future(source.refresh())
    await until(lambda: plugin.runs == 1)
    write(plugin.path, kubeconfig({"token": "b"}))
    (plugin.directory / "go").touch()
    assert await first
    assert token(source) == "a"
    assert await source.refresh()
    assert token(source) == "b"


async def test_a_plugin_that_goes_is_forgotten(plugin: Plugin) -> None:
    plugin.gives("a", lives_s=100)
    source = plugin.source()
    await source.refresh()
    write(plugin.path, kubeconfig({"token": "b"}))
    assert await source.refresh()
    assert token(source) == "b"
    assert source.interval_s == 10


# --- in a cluster


def mount(root: Path, **files: bytes) -> Path:
    content = {"token": b"a\n", "ca.crt": someone.certificate, "namespace": b"team-a"} | files
    for name, data in content.items():
        (root / name).write_bytes(data)
    return root


async def test_a_pod_finds_its_service_account(tmp_path: Path) -> None:
    source = InClusterAccess(mount(tmp_path), environ=IN_POD)
    assert source.current() == Access(
        "https://10.0.0.1:443",
        ca=someone.certificate,
        token=Secret("a"),
        namespace="team-a",
        origin=f"in-cluster {tmp_path}",
    )
    assert source.interval_s == 10
    assert not await source.refresh()


def test_a_pod_may_have_an_ipv6_service(tmp_path: Path) -> None:
    environ = IN_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    source = InClusterAccess(str(mount(tmp_path)), environ=environ)
    assert source.current().server == "https://[fd00::1]:443"


def test_a_pod_without_a_namespace_file_is_in_the_default_one(tmp_path: Path) -> None:
    (mount(tmp_path) / "namespace").unlink()
    assert InClusterAccess(tmp_path, environ=IN_POD).current().namespace == "default"


async def test_a_new_token_and_a_new_authority_are_followed(tmp_path: Path) -> None:
    clock = VirtualClock()
    source = InClusterAccess(mount(tmp_path), environ=IN_POD, clock=clock)
    mount(tmp_path, token=b"bb", **{"ca.crt": other.certificate})
    assert await source.refresh()
    assert token(source) == "bb"
    assert source.current().ca == other.certificate
    look = os.stat(tmp_path / "token")
    (tmp_path / "token").write_bytes(b"cc")
    os.utime(tmp_path / "token", ns=(look.st_atime_ns, look.st_mtime_ns))
    assert not await source.refresh()
    await clock.advance(60)
    assert await source.refresh()


async def test_an_empty_token_keeps_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = InClusterAccess(mount(tmp_path), environ=IN_POD)
    (tmp_path / "token").write_bytes(b"")
    assert not await source.refresh(rejected=True)
    assert token(source) == "a"
    assert "token: is empty" in message(caplog)[0]


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, {}, "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not"),
        ({"KUBERNETES_SERVICE_HOST": "a"}, {}, "not in a cluster"),
        (IN_POD | {"KUBERNETES_SERVICE_PORT": "x"}, {}, "do not make a URL (got 'https://10."),
        (IN_POD, {"token": None}, "/token: cannot be read: No such file or directory"),
        (IN_POD, {"token": b"\xff"}, "/token: has characters that an HTTP header cannot carry"),
        (IN_POD, {"ca.crt": None}, "/ca.crt: cannot be read: No such file or directory"),
        (IN_POD, {"ca.crt": b"x"}, "/ca.crt: is not a PEM certificate"),
    ],
)
def test_outside_a_cluster_the_error_says_what_is_missing(
    tmp_path: Path, environ: dict[str, str], files: dict[str, bytes | None], expected: str
) -> None:
    mount(tmp_path, **{name: data or b"" for name, data in files.items()})
    for name, data in files.items():
        if data is None:
            (tmp_path / name).unlink()
    with pytest.raises(ConfigError) as caught:
        InClusterAccess(tmp_path, environ=environ)
    assert expected in str(caught.value)


# --- the default


async def test_an_explicit_kubeconfig_comes_first(tmp_path: Path) -> None:
    given_ = write(tmp_path / "given", kubeconfig({"token": "given"}))
    environ = IN_POD | {"KUBECONFIG": str(tmp_path / "none")}
    source = default_access(str(given_), environ=environ, root=mount(tmp_path))
    assert token(source) == "given"


def test_then_comes_the_variable(tmp_path: Path) -> None:
    named = write(tmp_path / "named", kubeconfig({"token": "named"}))
    environ = IN_POD | {"KUBECONFIG": f"{tmp_path}/none:{named}"}
    assert token(default_access(environ=environ, root=mount(tmp_path))) == "named"


def test_then_comes_the_pod(tmp_path: Path) -> None:
    home(tmp_path)
    environ = IN_POD | {"HOME": str(tmp_path), "KUBECONFIG": ""}
    source = default_access(environ=environ, root=mount(tmp_path))
    assert isinstance(source, InClusterAccess)


def test_then_comes_the_home(tmp_path: Path) -> None:
    home(tmp_path)
    environ = IN_POD | {"HOME": str(tmp_path)}
    assert token(default_access(environ=environ, root=tmp_path / "none")) == "home"


def test_a_context_is_looked_for_in_kubeconfigs_only(tmp_path: Path) -> None:
    home(tmp_path)
    environ = IN_POD | {"HOME": str(tmp_path)}
    source = default_access(context="here", environ=environ, root=mount(tmp_path))
    assert token(source) == "home"


def test_if_there_is_nothing_the_error_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        default_access(environ={"HOME": str(tmp_path)}, root=tmp_path)
    text = str(caught.value)
    assert "no kubeconfig was given" in text
    assert "KUBECONFIG is not set" in text
    assert f"{tmp_path}/token" in text
    assert f"{tmp_path}/.kube/config" in text


def test_a_variable_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    home(tmp_path)
    environ = IN_POD | {"HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/none"}
    with pytest.raises(ConfigError, match="/none: there is no such file"):
        default_access(environ=environ, root=mount(tmp_path))


async def test_plugins_are_allowed_by_the_caller_only(plugin: Plugin) -> None:
    plugin.gives("a")
    with pytest.raises(ConfigError, match="allow_exec=True"):
        default_access(plugin.path)
    source = default_access(plugin.path, allow_exec=True, clock=plugin.clock)
    assert await source.refresh()
    assert token(source) == "a"


def home(directory: Path) -> None:
    (directory / ".kube").mkdir()
    write(directory / ".kube/config", kubeconfig({"token": "home"}))


# --- properties


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.__dict__!r}")


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.text(st.characters(codec="utf-8"), min_size=8, max_size=40).map("S3same~{}".format),
    st.sampled_from(["token", "password", "client-key-data", "nonsense", "exec"]),
)
async def test_no_secret_is_ever_logged(secret: str, place: str) -> None:
    users: dict[str, Any] = {
        "token": {"token": secret, "username": "a"},
        "password": {"username": ["a"], "password": secret},
        "client-key-data": {
            "client-certificate-data": encoded(someone.certificate),
            "client-key-data": encoded(secret.encode()),
        },
        "nonsense": {"token": {secret: [secret]}},
        "exec": {"exec": {"command": "aws", "args": [secret]}},
    }
    lines = _Lines()
    logger = logging.getLogger("kubeocean.runtime.credentials")
    logger.addHandler(lines)
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = write(Path(directory) / "config", kubeconfig({"token": "a"}))
            source = KubeconfigAccess(path)
            write(path, kubeconfig(users[place]))
            assert not await source.refresh()
            path.write_text(f"token: {secret}\n\t*{secret}")
            assert not await source.refresh()
    finally:
        logger.removeHandler(lines)
    assert len(lines.lines) == 2
    for form in (secret, repr(secret)[1:-1], ascii(secret)[1:-1], encoded(secret.encode())):
        assert form not in "".join(lines.lines)
