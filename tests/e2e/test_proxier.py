"""kubectl logs, exec, attach, port-forward and cp on a virtual node, with real containers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from kubeocean.runtime.kinds import PODS
from support.proxier_env import ProxierEnv
from support.syncer_process import SyncerProcess
from support.wait import until

WEBSOCKETS = {
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true",
    "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true",
}
SPDY = {
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false",
    "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false",
}


@pytest.fixture(scope="module")
async def proxier(proxier_env: ProxierEnv) -> AsyncIterator[SyncerProcess]:
    async with proxier_env.proxier() as replica:
        yield replica


@pytest.fixture(scope="module")
async def web(proxier_env: ProxierEnv, proxier: SyncerProcess) -> str:
    """A pod that prints lines and serves a page."""
    script = (
        "echo first; echo second >&2; mkdir /www; echo hello > /www/index.html; "
        "httpd -p 8080 -h /www; i=0; while true; do sleep 0.2; i=$((i+1)); echo tick $i; done"
    )
    await proxier_env.run("web", script)
    return "web"


async def test_logs_are_read_with_every_option(proxier_env: ProxierEnv, web: str) -> None:
    whole = await proxier_env.kubectl("logs", web)
    # Two streams: their order is not determined.
    assert (whole.code, set(whole.text.splitlines()[:2])) == (0, {"first", "second"}), whole.err
    assert len((await proxier_env.kubectl("logs", web, "--tail=1")).text.splitlines()) == 1
    assert (await proxier_env.kubectl("logs", web, "--tail=0")).text == ""
    assert (await proxier_env.kubectl("logs", web, "--limit-bytes=3")).text in ("fir", "sec")
    stamped = (await proxier_env.kubectl("logs", web, "--timestamps", "--limit-bytes=40")).text
    assert stamped.startswith("20") and "T" in stamped[:12]

    async def recent() -> bool:
        return "first" not in (await proxier_env.kubectl("logs", web, "--since=1s")).text

    await until(recent)
    missing = await proxier_env.kubectl("logs", web, "--previous")
    assert missing.code != 0


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_exec_relays_input_output_and_the_exit_code(
    proxier_env: ProxierEnv, web: str, protocol: dict[str, str]
) -> None:
    words = ("exec", "-i", web, "--", "sh", "-c", "cat; echo bad >&2; exit 7")
    answer = await proxier_env.kubectl(*words, stdin=b"some\nlines\n", environ=protocol)
    assert answer.out == b"some\nlines\n"
    assert "bad" in answer.err
    assert answer.code == 7


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_many_bytes_are_relayed_unchanged(
    proxier_env: ProxierEnv, web: str, protocol: dict[str, str]
) -> None:
    data = os.urandom(8 << 20)
    answer = await proxier_env.kubectl("exec", "-i", web, "--", "cat", stdin=data, environ=protocol)
    assert answer.out == data


async def test_a_directory_is_copied_to_a_pod_and_back(
    proxier_env: ProxierEnv, web: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for n in range(5):
        (source / f"f{n}").write_bytes(os.urandom(1000 * n))
    sent = await proxier_env.kubectl("cp", str(source), f"{web}:/tmp/copy")
    assert sent.code == 0, sent.err
    back = await proxier_env.kubectl("cp", f"{web}:/tmp/copy", str(tmp_path / "back"))
    assert back.code == 0, back.err
    for n in range(5):
        assert (tmp_path / "back" / f"f{n}").read_bytes() == (source / f"f{n}").read_bytes()


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_many_connections_go_through_one_port_forward(
    proxier_env: ProxierEnv, web: str, protocol: dict[str, str]
) -> None:
    async with proxier_env.talking("port-forward", web, ":8080", environ=protocol) as forward:
        line = await forward.wait_for_output("Forwarding from 127.0.0.1:")
        url = f"http://127.0.0.1:{line.split(':')[1].split()[0]}/"

        async def fetch(session: aiohttp.ClientSession) -> str:
            async with session.get(url, headers={"Connection": "close"}) as answer:
                return await answer.text()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            pages = await asyncio.gather(*(fetch(session) for _ in range(50)))
    assert pages == ["hello\n"] * 50


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_attach_relays_input_and_output(
    proxier_env: ProxierEnv, protocol: dict[str, str]
) -> None:
    name = f"echo-{'ws' if protocol is WEBSOCKETS else 'spdy'}"
    script = "while read line; do echo got $line; done; sleep 100"
    await proxier_env.run(name, script, stdin=True)
    async with proxier_env.talking("attach", "-i", name, environ=protocol) as attached:
        attached.write(b"one\n")
        await attached.wait_for_output("got one")
        attached.write(b"two\n")
        await attached.wait_for_output("got two")


async def test_exec_with_a_tty_has_a_terminal_of_the_callers_size(
    proxier_env: ProxierEnv, web: str
) -> None:
    # The size comes in a message of its own, which may arrive after the command has started.
    sized = "until stty size 2>/dev/null | grep '31 97'; do sleep 0.1; done"
    script = f'{proxier_env.kubectl_line} exec -it {web} -- timeout 20 sh -c "tty; {sized}"'
    command = await asyncio.create_subprocess_exec(
        *("script", "-qec", f"stty rows 31 cols 97; {script}", "/dev/null"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await command.communicate()
    assert b"/dev/pts/" in out
    assert b"31 97" in out


async def test_a_log_is_followed_across_a_restart(proxier_env: ProxierEnv, web: str) -> None:
    script = "echo began; while [ ! -f /tmp/end ]; do sleep 0.1; done; echo ended"
    physical = await proxier_env.run("again", script)
    async with proxier_env.talking("logs", "-f", "again") as first:
        await first.wait_for_output("began")
        await proxier_env.kubectl("exec", "again", "--", "touch", "/tmp/end")
        await first.wait_for_output("ended")
        await first.ended()

    async def restarted() -> bool:
        pod = await proxier_env.worker_api.get(
            PODS, physical.name, physical.namespace, keep_raw=True
        )
        return bool(pod.content()["status"]["containerStatuses"][0]["restartCount"])

    await until(restarted)
    assert "ended" in (await proxier_env.kubectl("logs", "again", "--previous")).text
    async with proxier_env.talking("logs", "-f", "again") as second:
        await second.wait_for_output("began")


async def test_each_session_leaves_an_audit_line(
    proxier_env: ProxierEnv, web: str, proxier: SyncerProcess
) -> None:
    await proxier_env.kubectl("exec", web, "--", "echo", "very-private")

    def audited() -> bool:
        lines = proxier.lines("Served kubelet request")
        return any(line["what"] == "exec" and line["pod"].endswith("/web") for line in lines)

    await until(audited)
    assert "very-private" not in proxier.process.log.read_text()
