"""The document's usage example, as `make up` users run it: two processes that share the pods."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.process import Process
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS
from kubeocean.runtime.objects import Json
from support.wait import until

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "sharded.py"
DATABASES = ROOT / "examples" / "databases.py"
PAGE = ROOT / "docs" / "extend" / "sharding.md"
MANIFEST = ROOT / "deploy" / "sharded-controller.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DATABASE_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "databases.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "databases", "kind": "Database"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def configured(path: Path, namespace: str, **sections: Json) -> Path:
    document = {
        "sharding": {"ring": "example", "namespace": namespace, "settlePeriod": "500ms"},
        "state": {"leaseDuration": "10s", "renewDeadline": "7s", "retryPeriod": "1s"},
        "metrics": {"port": 0},
        **sections,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def replica(name: str, cluster: Cluster, config: Path) -> Process:
    return Process(
        name,
        [sys.executable, EXAMPLE, "--kubeconfig", cluster.kubeconfig],
        log=config.with_name(f"{name}.log"),
        env={"PATH": os.environ["PATH"], "CONFIG_FILE": str(config), "POD_NAME": name},
    )


def lines_of(process: Process, message: str) -> list[Json]:
    if not process.log.exists():
        return []
    whole = process.log.read_text().split("\n")[:-1]  # the last line may be on its way
    lines = [json.loads(line) for line in whole if line[:1] == "{"]
    return [line for line in lines if line["msg"] == message]


async def test_the_example_shares_pods_among_its_replicas(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    config = configured(tmp_path / "config.yaml", namespace)
    one, two = replica("one", cluster, config), replica("two", cluster, config)
    containers = [{"name": "c", "image": "none"}]
    for number in range(12):
        body = {"metadata": {"name": f"p{number}"}, "spec": {"containers": containers}}
        await client.create(PODS, body, namespace=namespace)
    names = {f"{namespace}/p{number}" for number in range(12)}
    try:
        await one.start()
        await two.start()

        def added(process: Process) -> set[str]:
            found = {line["pod"] for line in lines_of(process, "Processing pod add")}
            return found & names

        seen = [0]

        def shared() -> bool:
            """Whether both replicas own pods, and the same ones as at the last call: a replica that
            gets a pod while the pod changes sees only its new state."""
            held = [lines_of(process, "Shard assignment changed") for process in (one, two)]
            before, seen[0] = seen[0], sum(map(len, held))
            return all(held) and len(held[0][-1]["new_assignment"]) == 2 and before == seen[0]

        await until(shared, every=2.0)
        await until(lambda: added(one) | added(two) == names)
        # A change and a deletion reach the replica that owns the pod.
        patch = MergePatch({"metadata": {"labels": {"changed": "yes"}}})
        await client.patch(PODS, "p3", patch, namespace)
        pod = await client.get(PODS, "p4", namespace)
        await client.delete(PODS, "p4", namespace, uid=pod.uid, grace_s=0)

        def logged(message: str, name: str) -> bool:
            lines = lines_of(one, message) + lines_of(two, message)
            return any(line["pod"] == f"{namespace}/{name}" for line in lines)

        await until(lambda: logged("Processing pod update", "p3"))
        await until(lambda: logged("Processing pod delete", "p4"))
        # One ends, and the other has everything.
        assert await one.stop(within_s=30) == 0, one.tail()
        await until(lambda: added(two) >= names - {f"{namespace}/p4"})
        assert await two.stop(within_s=30) == 0, two.tail()
    finally:
        await asyncio.gather(one.kill(), two.kill())


async def test_the_example_says_at_once_what_is_wrong_with_its_configuration(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    state = {"leaseDuration": "3s", "renewDeadline": "3s"}
    config = configured(tmp_path / "config.yaml", namespace, state=state)
    process = replica("wrong", cluster, config)
    await process.start()
    assert await process.wait() != 0
    assert "state.renewDeadline: must be shorter than state.leaseDuration" in "".join(
        process.tail()
    )


async def test_the_example_says_at_once_what_is_wrong_with_its_kubeconfig(tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLE, "--kubeconfig", tmp_path / "none"]
    process = Process("lost", words, log=tmp_path / "log", env={"PATH": os.environ["PATH"]})
    await process.start()
    assert await process.wait() == 1
    assert process.tail() == [f"error: {tmp_path / 'none'}: there is no such file"]


@pytest.mark.parametrize(
    ("custom", "why"),
    [
        ("nowhere.at_all:Algorithm", "cannot be imported: No module named 'nowhere'"),
        ("json:Algorithm", "cannot be imported: AttributeError: module 'json' has no attribute"),
        ("json:JSONDecoder", "has no method get_shard"),
        ("antigravity_broken:X", "cannot be imported"),
    ],
)
async def test_an_algorithm_that_cannot_be_used_ends_the_example_with_one_line(
    cluster: Cluster, namespace: str, tmp_path: Path, custom: str, why: str
) -> None:
    sharding = {"ring": "example", "namespace": namespace, "algorithm": "custom", "custom": custom}
    config = configured(tmp_path / "config.yaml", namespace, sharding=sharding)
    process = replica("wrong", cluster, config)
    await process.start()
    assert await process.wait() == 1
    (line,) = process.tail()
    assert line.startswith(f"error: {config}: sharding.custom: ")
    assert why in line


async def test_without_a_kubeconfig_the_example_looks_for_the_credentials_of_its_pod(
    tmp_path: Path,
) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    process = Process("pod", [sys.executable, EXAMPLE], log=tmp_path / "log", env=environ)
    await process.start()
    assert await process.wait() == 1
    (line,) = process.tail()
    assert "this is not a pod with a ServiceAccount token" in line


async def test_the_example_of_a_custom_resource_handles_deletions_though_it_was_killed(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    await client.request("POST", CRDS, body=DATABASE_CRD)
    config = configured(tmp_path / "config.yaml", namespace)
    path = f"/apis/example.com/v1/namespaces/{namespace}/databases"
    environ = {
        "PATH": os.environ["PATH"],
        "CONFIG_FILE": str(config),
        "KUBECONFIG": str(cluster.kubeconfig),
    }

    def start(name: str) -> Process:
        environ_of = {**environ, "POD_NAME": name}
        command = [sys.executable, DATABASES]
        return Process(name, command, log=tmp_path / f"{name}.log", env=environ_of)

    async def served() -> bool:
        try:
            await client.request_json("GET", path)
        except NotFound:
            return False
        return True

    async def addresses() -> set[str]:
        listing = await client.list(CONFIG_MAPS, namespace)
        return {item.name for item in listing.items if item.name.endswith("-address")}

    await until(served)
    one, two = start("one"), start("two")
    try:
        await one.start()
        for name in ("users", "orders"):
            body = {
                "apiVersion": "example.com/v1",
                "kind": "Database",
                "metadata": {"name": name},
                "spec": {"engine": "postgres"},
            }
            await client.request("POST", path, body=body)

        async def created() -> bool:
            return await addresses() == {"users-address", "orders-address"}

        await until(created)
        await one.kill()
        await client.request("DELETE", f"{path}/users")
        await two.start()

        async def deleted() -> bool:
            left = await client.request_json("GET", path)
            names = {item["metadata"]["name"] for item in left["items"]}
            return names == {"orders"} and await addresses() == {"orders-address"}

        await until(deleted)
        assert await two.stop(within_s=30) == 0, two.tail()
    finally:
        await asyncio.gather(one.kill(), two.kill())


@pytest.mark.parametrize("example", [EXAMPLE, DATABASES])
def test_the_page_shows_the_examples_as_they_are(example: Path) -> None:
    assert example.read_text().strip() in PAGE.read_text()


@pytest.mark.parametrize("example", [EXAMPLE, DATABASES])
def test_one_import_of_the_package_is_all_that_an_example_needs(example: Path) -> None:
    lines = [line for line in example.read_text().splitlines() if "kubeocean" in line]
    assert [line for line in lines if "import" in line] == ["from kubeocean.sharding import ("]


@pytest.mark.parametrize("kind", ["Deployment", "Service", "Role"])
async def test_the_manifest_is_what_an_api_server_takes(
    client: Client, namespace: str, kind: str
) -> None:
    paths = {
        "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
        "Service": "/api/v1/namespaces/{}/services",
        "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    }
    documents = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == kind]
    for body in documents:
        query = [("dryRun", "All"), ("fieldValidation", "Strict")]
        await client.request("POST", paths[kind].format(namespace), query=query, body=body)
    assert documents
