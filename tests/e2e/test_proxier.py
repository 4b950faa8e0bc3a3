"""kubectl logs, exec, attach, port-forward and cp on a virtual node, with real containers below."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from harbours import Harbour
from kubeocean.runtime.kinds import PODS
from syncers import SyncerProcess
from waiting import until

WEBSOCKETS = {
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true",
    "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true",
}
SPDY = {
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false",
    "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false",
}


@pytest.fixture(scope="module")
async def proxier(harbour: Harbour) -> AsyncIterator[SyncerProcess]:
    async with harbour.proxier() as replica:
        yield replica


@pytest.fixture(scope="module")
async def web(harbour: Harbour, proxier: SyncerProcess) -> str:
    """A pod that says lines and serves a page."""
    script = (
        "echo first; echo second >&2; mkdir /www; echo hello > /www/index.html; "
        "httpd -p 8080 -h /www; i=0; while true; do sleep 0.2; i=$((i+1)); echo tick $i; done"
    )
    await harbour.run("web", script)
    return "web"


async def test_logs_are_read_with_every_option(harbour: Harbour, web: str) -> None:
    whole = await harbour.kubectl("logs", web)
    # Two streams: nothing says which of the two comes first.
    assert (whole.code, set(whole.text.splitlines()[:2])) == (0, {"first", "second"}), whole.err
    assert len((await harbour.kubectl("logs", web, "--tail=1")).text.splitlines()) == 1
    assert (await harbour.kubectl("logs", web, "--tail=0")).text == ""
    assert (await harbour.kubectl("logs", web, "--limit-bytes=3")).text in ("fir", "sec")
    stamped = (await harbour.kubectl("logs", web, "--timestamps", "--limit-bytes=40")).text
    assert stamped.startswith("20") and "T" in stamped[:12]

    async def recent() -> bool:
        return "first" not in (await harbour.kubectl("logs", web, "--since=1s")).text

    await until(recent)
    missing = await harbour.kubectl("logs", web, "--previous")
    assert missing.code != 0


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_exec_carries_input_output_and_the_exit_code(
    harbour: Harbour, web: str, protocol: dict[str, str]
) -> None:
    words = ("exec", "-i", web, "--", "sh", "-c", "cat; echo bad >&2; exit 7")
    answer = await harbour.kubectl(*words, stdin=b"some\nlines\n", environ=protocol)
    assert answer.out == b"some\nlines\n"
    assert "bad" in answer.err
    assert answer.code == 7


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_many_bytes_come_through_unchanged(
    harbour: Harbour, web: str, protocol: dict[str, str]
) -> None:
    data = os.urandom(8 << 20)
    answer = await harbour.kubectl("exec", "-i", web, "--", "cat", stdin=data, environ=protocol)
    assert answer.out == data


async def test_a_directory_is_copied_there_and_back(
    harbour: Harbour, web: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for n in range(5):
        (there / f"f{n}").write_bytes(os.urandom(1000 * n))
    sent = await harbour.kubectl("cp", str(there), f"{web}:/tmp/there")
    assert sent.code == 0, sent.err
    back = await harbour.kubectl("cp", f"{web}:/tmp/there", str(tmp_path / "back"))
    assert back.code == 0, back.err
    for n in range(5):
        assert (tmp_path / "back" / f"f{n}").read_bytes() == (there / f"f{n}").read_bytes()


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_many_connections_go_through_one_port_forward(
    harbour: Harbour, web: str, protocol: dict[str, str]
) -> None:
    async with harbour.talking("port-forward", web, ":8080", environ=protocol) as forward:
        line = await forward.says("Forwarding from 127.0.0.1:")
        url = f"http://127.0.0.1:{line.split(':')[1].split()[0]}/"

        async def fetch(session: aiohttp.ClientSession) -> str:
            async with session.get(url, headers={"Connection": "close"}) as answer:
                return await answer.text()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            pages = await asyncio.gather(*(fetch(session) for _ in range(50)))
    assert pages == ["hello\n"] * 50


@pytest.mark.parametrize("protocol", [WEBSOCKETS, SPDY], ids=["websocket", "spdy"])
async def test_attach_hears_and_speaks(harbour: Harbour, protocol: dict[str, str]) -> None:
    name = f"parrot-{'ws' if protocol is WEBSOCKETS else 'spdy'}"
    script = "while read line; do echo heard $line; done; sleep 100"
    await harbour.run(name, script, stdin=True)
    async with harbour.talking("attach", "-i", name, environ=protocol) as attached:
        attached.write(b"one\n")
        await attached.says("heard one")
        attached.write(b"two\n")
        await attached.says("heard two")


async def test_a_terminal_is_one(harbour: Harbour, web: str) -> None:
    # The size comes in a message of its own, which the command may be ahead of.
    sized = "until stty size 2>/dev/null | grep '31 97'; do sleep 0.1; done"
    script = f'{harbour.kubectl_line} exec -it {web} -- timeout 20 sh -c "tty; {sized}"'
    command = await asyncio.create_subprocess_exec(
        *("script", "-qec", f"stty rows 31 cols 97; {script}", "/dev/null"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await command.communicate()
    assert b"/dev/pts/" in out
    assert b"31 97" in out


async def test_a_log_is_followed_across_a_restart(harbour: Harbour, web: str) -> None:
    script = "echo began; while [ ! -f /tmp/end ]; do sleep 0.1; done; echo ended"
    physical = await harbour.run("again", script)
    async with harbour.talking("logs", "-f", "again") as first:
        await first.says("began")
        await harbour.kubectl("exec", "again", "--", "touch", "/tmp/end")
        await first.says("ended")
        await first.ended()

    async def restarted() -> bool:
        pod = await harbour.below.get(PODS, physical.name, physical.namespace, keep_raw=True)
        return bool(pod.content()["status"]["containerStatuses"][0]["restartCount"])

    await until(restarted)
    assert "ended" in (await harbour.kubectl("logs", "again", "--previous")).text
    async with harbour.talking("logs", "-f", "again") as second:
        await second.says("began")


async def test_each_session_leaves_a_line(
    harbour: Harbour, web: str, proxier: SyncerProcess
) -> None:
    await harbour.kubectl("exec", web, "--", "echo", "very-private")

    def told() -> bool:
        lines = proxier.lines("Served kubelet request")
        return any(line["what"] == "exec" and line["pod"].endswith("/web") for line in lines)

    await until(told)
    assert "very-private" not in proxier.process.log.read_text()
