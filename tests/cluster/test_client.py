"""The client's verbs on a real kube-apiserver."""

from __future__ import annotations

import base64
import os
import time

import pytest

from kubeocean.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    InvariantError,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import ApplyPatch, Client, JsonPatch, MergePatch, StrategicPatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from support.faults import Faults, reads, writes


def config(name: str, namespace: str, **data: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "none"}]}}


async def test_an_object_goes_through_its_life(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, config("a", namespace, x="1"))
    assert made.key == (namespace, "a")
    with pytest.raises(AlreadyExists, match=f"create configmaps {namespace}/a"):
        await client.create(CONFIG_MAPS, config("a", namespace))

    read = await client.get(CONFIG_MAPS, "a", namespace, keep_raw=True)
    assert read.data == {"x": "1"}
    whole = read.content()
    whole["data"]["x"] = "2"
    updated = await client.update(CONFIG_MAPS, whole)
    assert updated.data == {"x": "2"}
    with pytest.raises(Conflict):
        await client.update(CONFIG_MAPS, whole)

    with pytest.raises(Conflict, match="UID"):
        await client.delete(CONFIG_MAPS, "a", namespace, uid="someone-elses")
    with pytest.raises(Conflict):
        await client.delete(
            CONFIG_MAPS, "a", namespace, uid=made.uid, resource_version=made.resource_version
        )
    await client.delete(CONFIG_MAPS, "a", namespace, uid=made.uid)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a", namespace)


async def test_four_kinds_of_patch(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config("p", namespace, keep="1", drop="1"))
    merged = await client.patch(
        CONFIG_MAPS, "p", MergePatch({"data": {"drop": None, "new": "1"}}), namespace
    )
    assert merged.data == {"keep": "1", "new": "1"}

    operations = [
        {"op": "test", "path": "/data/keep", "value": "1"},
        {"op": "replace", "path": "/data/keep", "value": "2"},
    ]
    tested = await client.patch(CONFIG_MAPS, "p", JsonPatch(operations), namespace)
    assert tested.data == {"keep": "2", "new": "1"}
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAPS, "p", JsonPatch(operations), namespace)

    strategic = StrategicPatch({"metadata": {"labels": {"a": "b"}}})
    labelled = await client.patch(CONFIG_MAPS, "p", strategic, namespace)
    assert labelled.labels == {"a": "b"}

    ours = config("p", namespace, keep="3")
    with pytest.raises(Conflict) as conflict:
        other = Client(client.transport, field_manager="another")
        await other.patch(CONFIG_MAPS, "p", ApplyPatch(ours), namespace)
    assert any(cause.field == ".data.keep" for cause in conflict.value.causes)
    forced = await other.patch(CONFIG_MAPS, "p", ApplyPatch(ours, force=True), namespace)
    assert forced.data is not None
    assert forced.data["keep"] == "3"


async def test_pages_belong_together(client: Client, namespace: str) -> None:
    for n in range(7):
        await client.create(CONFIG_MAPS, config(f"n{n}", namespace, n=str(n)))
    parts = [
        part
        async for part in client.pages(CONFIG_MAPS, namespace, page=3, fields="metadata.name!=n0")
    ]
    names = [item.name for part in parts for item in part.items if item.name.startswith("n")]
    assert names == [f"n{n}" for n in range(1, 7)]
    assert len(parts) > 1
    assert len({part.version for part in parts}) == 1


async def test_many_are_deleted_by_selector_only(client: Client, namespace: str) -> None:
    for name, app in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        body = config(name, namespace)
        body["metadata"] = {"name": name, "namespace": namespace, "labels": {"app": app}}
        await client.create(CONFIG_MAPS, body)
    await client.delete_all(CONFIG_MAPS, namespace, labels="app=a")
    left = await client.list(CONFIG_MAPS, namespace, labels="app")
    assert [item.name for item in left.items] == ["b1"]
    with pytest.raises(InvariantError, match="needs a label or field selector"):
        await client.delete_all(CONFIG_MAPS, namespace)


async def test_subresources(client: Client, namespace: str) -> None:
    account = {"metadata": {"name": "robot"}}
    await client.create(SERVICE_ACCOUNTS, account, namespace=namespace)
    token = await client.post(
        SERVICE_ACCOUNTS, "robot", "token", {"spec": {"expirationSeconds": 600}}, namespace
    )
    assert token["status"]["token"].count(".") == 2

    await client.create(PODS, pod("p"), namespace=namespace)
    body = {"status": {"phase": "Running"}, "metadata": {"labels": {"seen": "yes"}}}
    after = await client.patch(PODS, "p", MergePatch(body), namespace, subresource="status")
    assert (after.status.phase, after.labels["seen"]) == ("Running", "yes")
    await client.post(PODS, "p", "eviction", {"metadata": {"name": "p"}}, namespace)


async def test_a_dry_run_changes_nothing(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config("dry", namespace), dry_run=True)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "dry", namespace)


async def test_invalid_input_is_told_by_field(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAPS, config("Not A Name", namespace))
    assert refused.value.causes[0].field == "metadata.name"
    with pytest.raises(InvariantError, match="resourceVersion"):
        await client.update(CONFIG_MAPS, config("x", namespace))
    partial = await client.create(CONFIG_MAPS, config("y", namespace))
    with pytest.raises(InvariantError, match="decoded object"):
        await client.update(CONFIG_MAPS, partial)


async def test_a_name_cannot_leave_its_path(client: Client, namespace: str) -> None:
    for name in ("..", "."):
        with pytest.raises(ConfigError, match="not a valid name"):
            await client.get(CONFIG_MAPS, name, namespace)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "../../kube-system/configmaps/x", namespace)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a?fieldSelector=b", namespace)


async def test_a_body_of_almost_a_mebibyte_goes_both_ways(client: Client, namespace: str) -> None:
    noise = base64.b64encode(os.urandom(750_000)).decode()
    await client.create(CONFIG_MAPS, config("large", namespace, blob=noise))
    read = await client.get(CONFIG_MAPS, "large", namespace)
    assert read.data == {"blob": noise}


async def test_who_may_not_is_told_so(cluster: Cluster, namespace: str) -> None:
    stranger = cluster.client(kubeconfig=cluster.user("stranger"))
    with pytest.raises(Forbidden, match=r'User "stranger" cannot list resource "secrets"'):
        await stranger.list(SECRETS, namespace)
    await stranger.close()


async def test_a_read_outlives_a_bad_minute(cluster: Cluster) -> None:
    faults = Faults()
    client = cluster.client(wrap=faults.wrap)
    faults.answer(503, when=reads)
    faults.refuse(when=reads)
    faults.answer(500, when=reads)
    assert await client.get(NAMESPACES, "default")
    assert len(faults.requests) == 4

    faults.answer(503, times=10, when=reads)
    with pytest.raises(ServiceUnavailable):
        await client.get(NAMESPACES, "default")
    await client.close()


async def test_retry_after_is_respected(cluster: Cluster) -> None:
    faults = Faults()
    client = cluster.client(wrap=faults.wrap)
    faults.answer(429, headers={"Retry-After": "1"})
    began = time.monotonic()
    assert await client.get(NAMESPACES, "default")
    assert time.monotonic() - began >= 1.0

    faults.answer(429, headers={"Retry-After": "3600"})
    with pytest.raises(TooManyRequests) as refused:
        await client.get(NAMESPACES, "default")
    assert refused.value.retry_after_s == 3600
    await client.close()


async def test_a_write_is_never_repeated_blindly(cluster: Cluster, namespace: str) -> None:
    faults = Faults()
    client = cluster.client(wrap=faults.wrap)
    faults.lose_answer()
    with pytest.raises(Unreachable) as lost:
        await client.create(CONFIG_MAPS, config("once", namespace))
    assert lost.value.sent
    assert faults.writes == 1
    for status, error in ((503, ServiceUnavailable), (500, InternalError)):
        faults.answer(status, when=writes)
        with pytest.raises(error):
            await client.create(CONFIG_MAPS, config("never", namespace))
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "never", namespace)

    # Refused before it was looked at, or never sent: safe for any write.
    faults.answer(429, when=writes)
    faults.refuse(when=writes)
    await client.create(CONFIG_MAPS, config("later", namespace))
    # Saying the same twice is no harm.
    faults.lose_answer()
    await client.patch(CONFIG_MAPS, "later", ApplyPatch(config("later", namespace)), namespace)
    await client.close()


async def test_wrong_credentials_are_named(cluster: Cluster, namespace: str) -> None:
    path = await cluster.service_account(namespace, "visitor")
    text = path.read_text()
    token = text.split("token: ")[1].split()[0].strip("'\"")
    path.write_text(text.replace(token, token[:-8] + "AAAAAAAA"))
    client = cluster.client(kubeconfig=path)
    with pytest.raises(Unauthorized):
        await client.get(NAMESPACES, "default")
    await client.close()
