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

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.install.apply import Applier, resource_of
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.object_parts import title
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.rollout_env import binding_body
from support.wait import until

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
    computing_cluster: Cluster
    worker_cluster: Cluster

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.worker_cluster.kubeconfig}",
            f"--computing-kubeconfig={self.computing_cluster.kubeconfig}",
        )

    def join(self, *more: str) -> tuple[str, ...]:
        own = (f"--mount-namespace=m-{self.name}", "--isolated", "--lease=cpu=50%")
        return ("join", self.name, *self.flags, *own, *more)


@pytest.fixture
def pair(computing_applier: Applier, computing_cluster: Cluster, worker_cluster: Cluster) -> Pair:
    return Pair(f"c{uuid.uuid4().hex[:8]}", computing_cluster, worker_cluster)


async def test_a_worker_joins_and_leaves(
    pair: Pair, computing_applier: Applier, worker_applier: Applier
) -> None:
    code, output = await run(*pair.join("--timeout=0"))
    assert (code, "not ready after 0 s: the binding is new" in output) == (3, True), output
    assert "the manager is not running" in output
    assert f"doctor {pair.name}" in output
    assert f"{' '.join(pair.join('--timeout=0'))} --renew" in output
    assert f"computing: ClusterBinding {pair.name} created" in output
    assert f"worker: ResourceLeasingPolicy {pair.name} created" in output
    # The status that manager and syncer would write.
    ready = MergePatch({"status": {"phase": "Ready"}})
    await computing_applier.client.patch(CLUSTER_BINDINGS, pair.name, ready, subresource="status")
    closed = MergePatch({"status": {"phase": "Inactive"}})
    await worker_applier.client.patch(
        RESOURCE_LEASING_POLICIES, pair.name, closed, subresource="status"
    )
    code, output = await run(*pair.join())
    assert (code, "window is closed" in output) == (0, True), output
    assert "created" not in output
    assert "The credential is kept" in output
    assert "Changes" not in output
    wider = ("join", pair.name, *pair.flags, "--lease=all", "--no-wait")
    code, output = await run(*wider)
    assert (code, "limits: cpu=50% -> none" in output) == (2, True), output
    assert "would change 1 of its values; --yes makes these changes" in output
    spec = (await worker_applier.client.get(RESOURCE_LEASING_POLICIES, pair.name)).spec
    assert spec.resource_limits is not None
    code, output = await run(*wider, "--yes")
    assert code == 0, output
    spec = (await worker_applier.client.get(RESOURCE_LEASING_POLICIES, pair.name)).spec
    assert spec.resource_limits is None

    code, output = await run("uninstall", "--kubeconfig", pair.computing_cluster.kubeconfig)
    assert (code, pair.name in output) == (2, True), output
    wrong = f"--kubeconfig={pair.computing_cluster.kubeconfig}"
    code, output = await run("leave", pair.name, wrong, pair.flags[1])
    assert (code, "is the computing cluster itself" in output) == (2, True), output
    code, output = await run("leave", pair.name, *pair.flags)
    assert (code, f"{pair.name} has left" in output) == (0, True), output
    for kind in ("NetworkPolicy", "ResourceQuota", "Role", "ServiceAccount"):
        assert f"worker: {kind} m-{pair.name}/kubeocean-syncer removed" in output
    with pytest.raises(NotFound):
        await computing_applier.client.get(CLUSTER_BINDINGS, pair.name)


async def test_an_install_refuses_to_drop_the_namespace_of_a_bound_kubeconfig(
    pair: Pair, computing_applier: Applier
) -> None:
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
    stored = await computing_applier.client.create(CLUSTER_BINDINGS, body)
    install = ("install", "--kubeconfig", pair.computing_cluster.kubeconfig, "--no-wait")
    try:
        code, output = await run(*install)
        assert (code, f"holds the kubeconfig of binding {pair.name}" in output) == (2, True), output
        assert "--kubeconfig-namespace: must also name namespace team-a, which" in output
        code, output = await run(*install, "--kubeconfig-namespace=team-a")
        assert code == 0, output
    finally:
        await computing_applier.client.delete(CLUSTER_BINDINGS, pair.name, uid=stored.uid)
    code, output = await run(*install)
    assert code == 0, output


async def test_an_interrupted_wait_leaves_the_worker_bound(
    pair: Pair, computing_applier: Applier
) -> None:
    process = await start(*pair.join())
    assert process.stdout is not None
    output = b""
    while b"waiting for" not in output:
        chunk = await process.stdout.read(4096)
        assert chunk, output.decode()
        output += chunk
    process.send_signal(signal.SIGINT)
    output, _ = await process.communicate()
    assert process.returncode == 130
    assert f"{pair.name} is bound; the manager continues. To continue, run the same" in str(output)
    assert (
        await computing_applier.client.get(CLUSTER_BINDINGS, pair.name)
    ).spec.cluster_id == pair.name


async def test_uninstall_deletes_the_objects_and_keeps_crds(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    cluster = await new_cluster()
    where = ("--kubeconfig", cluster.kubeconfig)
    code, output = await run("install", *where, "--no-wait")
    assert (code, "To bind a worker, run: " in output) == (0, True), output
    code, output = await run("install", *where, "--timeout=0")
    assert (code, "the manager: not ready after 0 s: 0 of 2 replicas" in output) == (3, True), (
        output
    )
    code, output = await run("uninstall", *where)
    assert (code, "To delete also CustomRes" in output) == (0, True), output
    assert "absent" not in output
    code, output = await run("uninstall", *where)
    assert (code, output.startswith("There was nothing to remove; --purge")) == (0, True), output
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


MONITORING = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}


def monitoring_crd(kind: str, plural: str) -> Json:
    """Return a definition of a kind of the Prometheus operator, which accepts any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def titles(values: Values) -> set[str]:
    return set(map(title, computing_objects(values)))


async def installed(client: Client) -> set[str]:
    """Return the titles of all objects of the kinds of an install that have a name of ours."""
    everything = computing_objects(Values(monitoring=True, shard_syncers=True))
    expected = set(map(title, everything))
    found = set()
    for resource in {resource_of(each) for each in everything}:
        try:
            listing = await client.list(resource)
        except NotFound:
            continue  # the kind is not served any more
        for each in listing.items:
            name = f"{resource.kind} {each.key if resource.namespaced else each.name}"
            if name in expected or "kubeocean" in each.name:
                found.add(name)
    return found


async def test_an_install_withdraws_what_an_option_made_and_a_purge_leaves_nothing(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    components = ("etcd", "kube-apiserver", "kube-controller-manager")  # it deletes namespaces
    cluster = await new_cluster(components=components)
    where = ("--kubeconfig", cluster.kubeconfig)
    client = cluster.client()
    for kind, plural in MONITORING.items():
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, monitoring_crd(kind, plural))
    for kind, plural in MONITORING.items():
        resource = Resource("monitoring.coreos.com", "v1", plural, kind, True, Untyped)

        async def served(resource: Resource[Untyped] = resource) -> bool:
            try:
                await client.list(resource)
            except NotFound:
                return False
            return True

        await until(served)
    assert await installed(client) == set()
    options = ("--monitoring", "--shard-syncers")
    code, output = await run("install", *where, "--no-wait", *options)
    assert code == 0, output
    whole = titles(Values(monitoring=True, shard_syncers=True))
    assert await installed(client) == whole

    code, output = await run("install", *where, "--no-wait")
    assert code == 0, output
    usual = titles(Values())
    assert await installed(client) == usual
    assert whole - usual
    for each in whole - usual:
        assert f"computing: {each} removed" in output

    code, output = await run("install", *where, "--no-wait", "--no-network-policies")
    assert code == 0, output
    least = titles(Values(network_policies=False))
    assert await installed(client) == least
    assert {each.split()[0] for each in usual - least} == {"NetworkPolicy"}

    code, output = await run("uninstall", *where, "--purge")
    assert (code, "Kubeocean is removed" in output) == (0, True), output

    async def gone() -> bool:
        return not await installed(client)

    await until(gone)
    code, output = await run("uninstall", *where, "--purge")
    assert (code, output) == (0, "There was nothing to remove\n")
    await client.close()


async def test_the_check_of_an_uninstall_deletes_nothing(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    cluster = await new_cluster()
    where = ("--kubeconfig", cluster.kubeconfig)
    code, output = await run("uninstall", *where, "--check")
    assert (code, output) == (0, "No worker is bound.\n")
    code, output = await run("install", *where, "--no-wait")
    assert code == 0, output
    client = cluster.client()
    before = await installed(client)
    assert before == titles(Values())
    binding = await client.create(CLUSTER_BINDINGS, binding_body("berlin", "berlin"))
    for words in (("--check",), ("--check", "--purge"), ("--purge",)):
        code, output = await run("uninstall", *where, *words)
        assert (code, "workers are bound: berlin; unbind them first" in output) == (2, True), output
        assert await installed(client) == before
    await client.delete(CLUSTER_BINDINGS, "berlin", uid=binding.uid)
    for words in (("--check",), ("--check", "--purge")):
        code, output = await run("uninstall", *where, *words)
        assert (code, output) == (0, "No worker is bound.\n")
        assert await installed(client) == before
    await client.close()
