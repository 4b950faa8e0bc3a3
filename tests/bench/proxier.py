"""Measures sessions through a proxier to real containers: their number, speed and memory.

They take the path of users' sessions: API server of the computing cluster, proxier, API server of
the worker, kubelet, container. 200 logs are followed and 100 commands talked to at once, and each
checks every byte that it gets; then 100 MiB are sent through a command and back, by kubectl, in
turns straight to the worker and through the proxier. Needs root and containerd, as real nodes do.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.measure import cpu_s_of, peak_mib_of
from kubeocean.local.assets import CONTROL_PLANE, ensure
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes.config import MACHINE_ADDRESS
from kubeocean.local.real_nodes.node import RealNode, available
from kubeocean.proxier.websocket import Channel, handshake, messages
from kubeocean.runtime.objects import Key
from kubeocean.runtime.transport import Request
from kubeocean.runtime.tunnel import Tunnel
from support.crds import install_our_kinds
from support.proxier_env import ProxierEnv
from support.wait import until

__all__ = ["carry_sessions", "sessions_bars"]

LOGS: Final = 200
COMMANDS: Final = 100
MIB: Final = 1 << 20
BULK: Final = 100 * MIB
TURNS: Final = 3
TALKER: Final = "i=0; while true; do i=$((i+1)); echo line $i of a log; sleep 0.2; done"


async def carry_sessions(directory: Path, held_s: float) -> dict[str, float]:
    """Return all measurements; none where real nodes cannot run."""
    if (reason := available()) is not None:
        print(f"bench: proxier left out: {reason}", file=sys.stderr)
        return {}
    async with _harbour(directory) as proxier_env, proxier_env.proxier() as replica:
        pid = replica.process.pid
        assert pid is not None
        await proxier_env.run("talker", TALKER)
        echo = await proxier_env.run("echo", "while true; do sleep 1; done")
        print(f"bench: {LOGS} logs and {COMMANDS} commands for {held_s:g} s", file=sys.stderr)
        before = cpu_s_of(pid)
        figures = await _hold(proxier_env, held_s)
        figures |= {"peak_mib": peak_mib_of(pid), "held_cpu_s": cpu_s_of(pid) - before}
        print(f"bench: {BULK // MIB} MiB both ways, {TURNS} turns", file=sys.stderr)
        return figures | await _send(proxier_env, echo, directory, pid)


def sessions_bars(figures: dict[str, float]) -> list[Bar]:
    """Return the promises about sessions."""
    if not figures:
        return []
    return [
        Bar("sessions held at once", figures["sessions"], LOGS + COMMANDS, "", "≥"),
        Bar("bytes of theirs that were lost", figures["wrong"], 0, ""),
        Bar("peak memory of a proxier with them", figures["peak_mib"], 250, "MiB"),
        Bar("100 MiB both ways that came back changed", figures["changed"], 0, ""),
        Bar("throughput against a direct exec", figures["against_direct"], 0.4, "x", "≥"),
    ]


@asynccontextmanager
async def _harbour(directory: Path) -> AsyncIterator[ProxierEnv]:
    assets = await ensure((*CONTROL_PLANE, "kubectl", "kubelet"))
    async with (
        Cluster("above", directory / "above", assets, ephemeral=True) as computing,
        Cluster(
            "below", directory / "below", assets, sans=(MACHINE_ADDRESS,), ephemeral=True
        ) as worker,
        RealNode("bench", worker, assets) as node,
    ):
        computing_api, worker_api = computing.client(), worker.client()
        await install_our_kinds(computing_api)
        kubectl = assets.path("kubectl")
        proxier_env = ProxierEnv(
            computing, worker, node, computing_api, worker_api, kubectl, directory
        )
        await proxier_env.build()
        try:
            yield proxier_env
        finally:
            await proxier_env.demolish()
            await computing_api.close()
            await worker_api.close()


# Many at once


@dataclass
class _Tally:
    """Results of the sessions."""

    begun: int = 0
    pieces: int = 0
    wrong: int = 0


async def _hold(proxier_env: ProxierEnv, held_s: float) -> dict[str, float]:
    tally, ending = _Tally(), asyncio.Event()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(COMMANDS):
            group.create_task(_converse(proxier_env, number, tally, ending))
        for _ in range(LOGS):
            group.create_task(_follow(proxier_env, tally, ending))
        await until(
            lambda: tally.begun == LOGS + COMMANDS, within=180.0, waiting_for="all sessions"
        )
        begun_s = time.monotonic() - began
        await asyncio.sleep(held_s)
        ending.set()
    return {
        "sessions": tally.begun,
        "begun_s": begun_s,
        "pieces": tally.pieces,
        "wrong": tally.wrong,
    }


async def _follow(proxier_env: ProxierEnv, tally: _Tally, ending: asyncio.Event) -> None:
    """Read a log line by line, each of which has the next number."""
    path = f"/api/v1/namespaces/{proxier_env.name}/pods/talker/log"
    request = Request("GET", path, query=(("follow", "true"),), accept="*/*", timeout_s=120.0)
    expected, rest = 1, b""
    async with proxier_env.computing_api.transport.stream(request) as stream:
        while not ending.is_set():
            *lines, rest = (rest + await stream.read()).split(b"\n")
            for line in lines:
                tally.begun += expected == 1
                tally.wrong += line != b"line %d of a log" % expected
                expected += 1
            tally.pieces += len(lines)


async def _converse(
    proxier_env: ProxierEnv, number: int, tally: _Tally, ending: asyncio.Event
) -> None:
    """Send a message twice a second to a command that returns it."""
    query = [("command", "cat"), ("container", "main"), ("stdin", "true"), ("stdout", "true")]
    path = f"/api/v1/namespaces/{proxier_env.name}/pods/echo/exec"
    message = b""
    async with (
        proxier_env.computing_api.upgrade(
            "GET", path, protocol="websocket", query=query, headers=handshake()
        ) as tunnel,
        aclosing(messages(tunnel)) as received,
    ):
        turn = 0
        while not ending.is_set():
            turn += 1
            words = f"{number} says {turn}\n".encode()
            await _say(tunnel, words)
            message = b""
            while len(message) < len(words):
                channel, content = await anext(received)
                message += content if channel == Channel.STDOUT else b""
            tally.wrong += message != words
            tally.begun += turn == 1
            tally.pieces += 1
            await asyncio.sleep(0.5)


async def _say(tunnel: Tunnel, words: bytes) -> None:
    """Return a WebSocket message for the command's input, masked with zeros."""
    payload = bytes((Channel.STDIN,)) + words
    await tunnel.write(bytes((0x82, 0x80 | len(payload))) + bytes(4) + payload)


# Much at once


async def _send(proxier_env: ProxierEnv, echo: Key, directory: Path, pid: int) -> dict[str, float]:
    source = directory / "source"
    source.write_bytes(os.urandom(BULK))
    direct, tunnel, changed, cpu = [], [], 0, []
    worker_api = (f"--kubeconfig={proxier_env.worker.kubeconfig}", "-n", echo.namespace, echo.name)
    computing_api = (
        f"--kubeconfig={proxier_env.computing.kubeconfig}",
        "-n",
        proxier_env.name,
        "echo",
    )
    for _ in range(TURNS):
        for words, spent in ((worker_api, direct), (computing_api, tunnel)):
            used = cpu_s_of(pid)
            seconds, same = await _through(proxier_env.kubectl_path, words, source)
            spent.append(seconds)
            changed += not same
            if spent is tunnel:
                cpu.append(cpu_s_of(pid) - used)
    spdy = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
    older_s, same = await _through(proxier_env.kubectl_path, computing_api, source, **spdy)
    return {
        "spdy_tunnel_mib_s": BULK / MIB / older_s,
        "direct_mib_s": BULK / MIB / min(direct),
        "tunnel_mib_s": BULK / MIB / min(tunnel),
        "against_direct": min(direct) / min(tunnel),
        "cpu_s_per_100_mib_both_ways": min(cpu),
        "changed": changed + (not same),
    }


async def _through(
    kubectl: Path, words: tuple[str, ...], source: Path, **environ: str
) -> tuple[float, bool]:
    """Measure until all bytes have come back, and compare them with the bytes that were sent."""
    kubeconfig, *where, pod = words
    back = source.with_suffix(".back")
    with source.open("rb") as given, back.open("wb") as taken:
        began = time.monotonic()
        command = await asyncio.create_subprocess_exec(
            *(kubectl, kubeconfig, *where, "exec", "-i", pod, "--", "cat"),
            stdin=given,
            stdout=taken,
            env=os.environ | environ,
        )
        code = await command.wait()
        seconds = time.monotonic() - began
    return seconds, code == 0 and filecmp.cmp(source, back, shallow=False)
