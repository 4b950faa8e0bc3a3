"""`kubeocean install`, `join`, `leave` and `uninstall` as their users run them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.installation.applying import Applier, resource_of
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.parts import title
from kubeocean.installation.values import Values
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.patches import MergePatch

PROGRAM = """
import typer
from kubeocean.cli.install import install
from kubeocean.cli.join import join
from kubeocean.cli.leave import leave
from kubeocean.cli.uninstall import uninstall
app = typer.Typer()
for command in (install, join, leave, uninstall):
    app.command()(command)
app()
"""


async def start(*words: str | os.PathLike[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *map(os.fspath, words)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )


async def run(*words: str | os.PathLike[str]) -> tuple[int, str]:
    process = await start(*words)
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


@dataclass(frozen=True)
class Pair:
    """A worker's name, and how a command reaches it and the computing cluster."""

    name: str
    computing: Cluster
    bare: Cluster

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.bare.kubeconfig}",
            f"--computing-kubeconfig={self.computing.kubeconfig}",
        )

    def join(self, *more: str) -> tuple[str, ...]:
        own = (f"--mount-namespace=m-{self.name}", "--isolated", "--lease=cpu=50%")
        return ("join", self.name, *self.flags, *own, *more)


@pytest.fixture
def pair(above: Applier, computing: Cluster, bare: Cluster) -> Pair:
    return Pair(f"c{uuid.uuid4().hex[:8]}", computing, bare)


async def test_a_worker_joins_and_leaves(pair: Pair, above: Applier, below: Applier) -> None:
    code, said = await run(*pair.join("--timeout=0"))
    assert (code, "gave up after 0 s: the binding is new" in said) == (3, True), said
    assert "the manager does not run" in said
    assert f"doctor {pair.name}" in said
    assert f"{' '.join(pair.join('--timeout=0'))} --renew" in said
    assert f"computing: ClusterBinding {pair.name} created" in said
    assert f"worker: ResourceLeasingPolicy {pair.name} created" in said
    # What manager and syncer would say.
    ready = MergePatch({"status": {"phase": "Ready"}})
    await above.client.patch(CLUSTER_BINDINGS, pair.name, ready, subresource="status")
    closed = MergePatch({"status": {"phase": "Inactive"}})
    await below.client.patch(RESOURCE_LEASING_POLICIES, pair.name, closed, subresource="status")
    code, said = await run(*pair.join())
    assert (code, "window is closed" in said) == (0, True), said
    assert "created" not in said
    assert "The credential is kept" in said

    code, said = await run("uninstall", "--kubeconfig", pair.computing.kubeconfig)
    assert (code, pair.name in said) == (2, True), said
    wrong = f"--kubeconfig={pair.computing.kubeconfig}"
    code, said = await run("leave", pair.name, wrong, pair.flags[1])
    assert (code, "is the computing cluster itself" in said) == (2, True), said
    code, said = await run("leave", pair.name, *pair.flags)
    assert (code, f"{pair.name} has left" in said) == (0, True), said
    for kind in ("NetworkPolicy", "ResourceQuota", "Role", "ServiceAccount"):
        assert f"worker: {kind} m-{pair.name}/kubeocean-syncer removed" in said
    with pytest.raises(NotFound):
        await above.client.get(CLUSTER_BINDINGS, pair.name)


async def test_a_kubeconfig_elsewhere_is_not_forgotten(pair: Pair, above: Applier) -> None:
    body = {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": CLUSTER_BINDINGS.kind,
        "metadata": {"name": pair.name},
        "spec": {
            "clusterID": pair.name,
            "secretRef": {"name": "worker", "namespace": "team-a"},
            "mountNamespace": "m",
        },
    }
    there = await above.client.create(CLUSTER_BINDINGS, body)
    install = ("install", "--kubeconfig", pair.computing.kubeconfig, "--no-wait")
    try:
        code, said = await run(*install)
        assert (code, f"the kubeconfig of binding {pair.name} is there" in said) == (2, True), said
        assert "--kubeconfig-namespace: must be named too" in said
        code, said = await run(*install, "--kubeconfig-namespace=team-a")
        assert code == 0, said
    finally:
        await above.client.delete(CLUSTER_BINDINGS, pair.name, uid=there.uid)
    code, said = await run(*install)
    assert code == 0, said


async def test_who_stops_waiting_has_lost_nothing(pair: Pair, above: Applier) -> None:
    process = await start(*pair.join())
    assert process.stdout is not None
    said = b""
    while b"waiting for" not in said:
        chunk = await process.stdout.read(4096)
        assert chunk, said.decode()
        said += chunk
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 130
    assert f"{pair.name} is bound; it becomes Ready by itself. To go on, say the same" in str(said)
    assert (await above.client.get(CLUSTER_BINDINGS, pair.name)).spec.cluster_id == pair.name


async def test_what_was_installed_is_removed_and_definitions_stay(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    cluster = await new_cluster()
    where = ("--kubeconfig", cluster.kubeconfig)
    code, said = await run("install", *where, "--no-wait")
    assert (code, "Bind a worker with" in said) == (0, True), said
    code, said = await run("install", *where, "--timeout=0")
    assert (code, "the manager: gave up after 0 s: 0 of 2 replicas" in said) == (3, True), said
    code, said = await run("uninstall", *where)
    assert (code, "What stays goes with --purge: CustomRes" in said) == (0, True), said
    assert "absent" not in said
    code, said = await run("uninstall", *where)
    assert (code, said.startswith("There was nothing to remove; a definition")) == (0, True), said
    client = cluster.client()
    left = []
    for body in computing_objects(Values()):
        meta = body["metadata"]
        try:
            await client.get(resource_of(body), meta["name"], meta.get("namespace", ""))
        except NotFound:
            continue
        left.append(title(body))
    await client.close()
    assert left == [
        "CustomResourceDefinition clusterbindings.cloud.tencent.com",
        "Namespace kubeocean-system",
        "Namespace kubeocean-fake",
    ]
