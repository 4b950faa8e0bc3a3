"""`kubectl top` on virtual nodes, with the real metrics-server.

metrics-server is not among the programs that tests build: `make top-proof` builds it and runs this
module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.process import Process
from support.metrics_server import metrics_server, node_address
from support.proxier_env import ProxierEnv
from support.wait import until

SPIN = "i=0; while true; do i=$((i+1)); [ $((i % 20000)) = 0 ] && sleep 0.1; done"


@pytest.fixture
async def server(proxier_env: ProxierEnv, tmp_path: Path) -> AsyncIterator[Process]:
    """metrics-server of the computing cluster."""
    near = await node_address(proxier_env.worker_api, proxier_env.node.name)
    computing, client = proxier_env.computing, proxier_env.computing_api
    async with metrics_server(computing, client, near=near, directory=tmp_path) as process:
        yield process


async def test_top_shows_virtual_nodes_and_pods(
    proxier_env: ProxierEnv, server: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    async with proxier_env.proxier():
        await proxier_env.run("busy", SPIN)

        async def pod() -> list[str]:
            answer = await proxier_env.kubectl("top", "pod", "busy", "--no-headers")
            assert answer.code == 0, (answer.err, server.tail())
            return answer.text.split()

        name, cpu, memory = await until(pod, within=90.0)
        assert name == "busy"
        assert int(cpu.removesuffix("m")) > 10
        assert memory.endswith("Mi")
        shown = (
            await proxier_env.kubectl("top", "pod", "busy", "--containers", "--no-headers")
        ).text
        assert shown.split()[:2] == ["busy", "main"]

        async def node() -> list[str]:
            answer = await proxier_env.kubectl("top", "node", proxier_env.vnode, "--no-headers")
            assert answer.code == 0, answer.err
            return answer.text.split()

        row = await until(node, within=60.0)
        assert row[0] == proxier_env.vnode
        assert int(row[1].removesuffix("m")) > 10
        with capsys.disabled():
            for what in (("pod", "busy", "--containers"), ("node", proxier_env.vnode)):
                print(f"\nkubectl top {' '.join(what)}")
                print((await proxier_env.kubectl("top", *what)).text, end="")
