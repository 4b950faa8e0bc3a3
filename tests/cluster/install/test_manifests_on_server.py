"""Tests that a real API server accepts all shipped files with strict field validation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster

NewCluster = Callable[..., Awaitable[Cluster]]
ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SIDES = {
    "computing": ("kubeocean",),
    "worker": ("kubeocean-worker",),
    "fleet-hub": ("kubeocean-fleet-hub",),
    "fleet-member": (
        "kubeocean-fleet-member",
        "--set=name=berlin,hub.url=https://hub.example,hub.token=secret",
    ),
}


async def output(*words: str | Path, stdin: bytes = b"") -> bytes:
    command = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await command.communicate(stdin)
    assert command.returncode == 0, err.decode()
    assert b"Warning" not in err, err.decode()
    return out


@pytest.mark.parametrize("way", ["kustomize", "helm"])
async def test_an_api_server_accepts_all_shipped_objects(new_cluster: NewCluster, way: str) -> None:
    kubectl = (await ensure(["kubectl"])).path("kubectl")
    for side, (chart, *settings) in SIDES.items():
        server = await new_cluster(name=side)
        if way == "helm":
            helm = (await output(ROOT / "scripts" / "helm")).decode().strip()
            where = DEPLOY / "charts" / chart
            words = ("template", "r", where, "--kube-version", "1.34.0", *settings)
            objects = await output(helm, *words)
        else:
            objects = await output(kubectl, "kustomize", DEPLOY / "kustomize" / side)
        apply = (kubectl, f"--kubeconfig={server.kubeconfig}", "apply", "--validate=strict")
        printed = await output(*apply, "--server-side", "-f", "-", stdin=objects)
        assert printed.count(b"serverside-applied") == objects.count(b"\nkind: ")
        # And again: nothing is in its own way.
        await output(*apply, "--server-side", "-f", "-", stdin=objects)
