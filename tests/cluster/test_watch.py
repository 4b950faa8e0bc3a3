"""Watches survive restarts, stalls and compactions of a real kube-apiserver."""

from __future__ import annotations

import asyncio
import time

import pytest

from conftest import NewCluster
from kubeocean.errors import ApiError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from support.background import running
from support.custom_resources import LARGE_THINGS, define
from support.etcd import compact
from support.faults import Faults, watches
from support.wait import until

LABELS = {"labels": "app=watched"}


async def make(client: Client, name: str, namespace: str = "default") -> ConfigMap:
    body = {"metadata": {"name": name, "labels": {"app": "watched"}}}
    return await client.create(CONFIG_MAPS, body, namespace=namespace)


async def names(client: Client, namespace: str = "default") -> set[str]:
    listing = await client.list(CONFIG_MAPS, namespace, **LABELS)
    return {item.name for item in listing.items}


def restarts(metrics: Metrics, cluster: Cluster, why: str) -> float:
    labels = {"cluster": cluster.name, "resource": "configmaps", "why": why}
    return metrics.value("kubeocean_watch_restarts_total", labels) or 0.0


def shown(informer: Informer[ConfigMap]) -> set[str]:
    return {item.name for item in informer.items()}


async def test_a_watch_lives_through_kills_and_restarts(new_cluster: NewCluster) -> None:
    cluster = await new_cluster()
    client = cluster.client()
    metrics = Metrics()
    informer = Informer(client, CONFIG_MAPS, **LABELS, metrics=metrics)
    events: list[str] = []
    async with running(informer):
        await informer.synced()
        informer.on_change(lambda old, new: events.append(new.name if new else "-"))
        await make(client, "before")
        await until(lambda: shown(informer) == {"before"})
        await cluster.kill("kube-apiserver")
        await asyncio.sleep(0)
        await cluster.restart("kube-apiserver")
        await make(client, "after-kill")
        await until(lambda: shown(informer) == {"before", "after-kill"}, within=20)
        await cluster.restart("kube-apiserver")
        await make(client, "after-restart")
        await until(lambda: "after-restart" in shown(informer), within=20)
        assert shown(informer) == await names(client)
    # The data was the same all the time, so nothing was delivered twice.
    assert events == ["before", "after-kill", "after-restart"]
    await client.close()


async def test_a_compacted_version_is_listed_again(new_cluster: NewCluster) -> None:
    cluster = await new_cluster()
    client, faults, metrics = cluster.client(), Faults(), Metrics()
    blind = cluster.client(wrap=faults.wrap)
    informer = Informer(blind, CONFIG_MAPS, **LABELS, metrics=metrics)
    gone = await make(client, "gone")
    async with running(informer):
        await informer.synced()
        faults.partition()
        await client.delete(CONFIG_MAPS, "gone", "default", uid=gone.uid)
        for n in range(5):
            await make(client, f"new{n}")
        await compact(cluster)
        await cluster.restart("kube-apiserver")  # its cache of old versions is lost with it
        faults.heal()
        await until(lambda: shown(informer) == {f"new{n}" for n in range(5)}, within=20)
    assert restarts(metrics, cluster, "gone") == 1
    await blind.close()
    await client.close()


@pytest.mark.parametrize("keep_raw", [False, True], ids=["partial", "whole"])
async def test_an_event_of_over_a_mebibyte_arrives(
    client: Client, namespace: str, keep_raw: bool
) -> None:
    await define(client, LARGE_THINGS)
    informer = Informer(client, LARGE_THINGS, namespace=namespace, keep_raw=keep_raw)
    blob = "x" * int(1.4 * 1024 * 1024)
    async with running(informer):
        await informer.synced()
        body = {
            "apiVersion": LARGE_THINGS.api_version,
            "kind": LARGE_THINGS.kind,
            "metadata": {"name": "large"},
            "spec": {"blob": blob},
        }
        await client.create(LARGE_THINGS, body, namespace=namespace)
        patch = MergePatch({"metadata": {"labels": {"changed": "yes"}}})
        last = await client.patch(LARGE_THINGS, "large", patch, namespace)
        key = Key(namespace, "large")
        await until(lambda: (o := informer.get(key)) and o.labels == {"changed": "yes"})
        seen = informer.get(key)
        assert seen is not None
        assert seen.resource_version == last.resource_version
        if keep_raw:
            assert seen.content()["spec"]["blob"] == blob


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_a_refused_watch_comes_back(
    cluster: Cluster, client: Client, namespace: str, status: int
) -> None:
    faults, metrics = Faults(), Metrics()
    shaky = cluster.client(wrap=faults.wrap)
    informer = Informer(shaky, CONFIG_MAPS, namespace=namespace, **LABELS, metrics=metrics)
    faults.answer(status, times=3, when=watches)
    async with running(informer):
        await informer.synced()
        faults.answer(status, times=2, when=watches)
        faults.cut()
        await make(client, "x", namespace)
        await until(lambda: shown(informer) == {"x"})
    assert restarts(metrics, cluster, "failed") >= 5
    await shaky.close()


async def test_a_refused_watch_waits_as_long_as_it_is_told(cluster: Cluster) -> None:
    faults = Faults()
    shaky = cluster.client(wrap=faults.wrap)
    faults.answer(429, headers={"Retry-After": "1"}, when=watches)
    informer = Informer(shaky, CONFIG_MAPS, **LABELS)
    began = time.monotonic()
    async with running(informer):
        await informer.synced()
    assert time.monotonic() - began >= 1.0
    await shaky.close()


async def test_a_server_without_streaming_lists_is_listed_in_pages(
    new_cluster: NewCluster,
) -> None:
    cluster = await new_cluster(feature_gates={"WatchList": False})
    client = cluster.client()
    await make(client, "one")
    informer = Informer(client, CONFIG_MAPS, **LABELS)
    async with running(informer):
        await informer.synced()
        assert shown(informer) == {"one"}
        await make(client, "two")
        await until(lambda: shown(informer) == {"one", "two"})
    await client.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_server_that_stops_talking_is_noticed_and_healed(new_cluster: NewCluster) -> None:
    """A server is stopped for 100 s, and a stream of another server ends without a signal.

    The stopped server keeps its connections open, so only silence shows that it is stopped. Changes
    that the dead stream does not deliver must be in the cache within 70 s.
    """
    stopped, alive = await new_cluster(name="stopped"), await new_cluster(name="alive")
    async with asyncio.TaskGroup() as both:
        both.create_task(_stop_for_100_s(stopped))
        both.create_task(_lose_a_stream(alive))


async def _stop_for_100_s(cluster: Cluster) -> None:
    client, metrics = cluster.client(), Metrics()
    informer = Informer(client, CONFIG_MAPS, **LABELS, metrics=metrics)
    async with running(informer):
        await informer.synced()
        await make(client, "before")
        await until(lambda: shown(informer) == {"before"})
        cluster.pause("kube-apiserver")
        began = time.monotonic()
        await until(lambda: restarts(metrics, cluster, "silent") == 1, within=70)
        await asyncio.sleep(100 - (time.monotonic() - began))
        cluster.resume("kube-apiserver")

        async def answers() -> ConfigMap | None:
            try:
                return await make(client, "after")
            except ApiError:
                return None

        await until(answers, within=30)
        await until(lambda: shown(informer) == {"before", "after"}, within=30)
        assert shown(informer) == await names(client)
    await client.close()


async def _lose_a_stream(cluster: Cluster) -> None:
    client, faults, metrics = cluster.client(), Faults(), Metrics()
    quiet = cluster.client(wrap=faults.wrap)
    informer = Informer(quiet, CONFIG_MAPS, **LABELS, metrics=metrics)
    idle_metrics = Metrics()
    idle = Informer(client, CONFIG_MAPS, labels="app=nothing", metrics=idle_metrics)
    async with running(informer, idle):
        await informer.synced()
        await make(client, "before")
        await until(lambda: shown(informer) == {"before"})
        faults.freeze()
        await make(client, "unheard")
        began = time.monotonic()
        # The stream that takes its place is not held back.
        await until(lambda: restarts(metrics, cluster, "silent") == 1, within=70)
        faults.thaw()
        await until(lambda: shown(informer) == {"before", "unheard"}, within=10)
        assert time.monotonic() - began <= 70
        # Bookmarks alone show that an idle watch works.
        await asyncio.sleep(max(0.0, 75 - (time.monotonic() - began)))
        assert restarts(idle_metrics, cluster, "silent") == 0
    await quiet.close()
    await client.close()
