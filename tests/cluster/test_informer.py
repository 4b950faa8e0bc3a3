"""The informer on a real kube-apiserver."""

from __future__ import annotations

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.watch import Scope, Watch
from support.background import running
from support.faults import Faults, watches
from support.wait import until


async def make(client: Client, namespace: str, name: str, **labels: str) -> ConfigMap:
    body = {"metadata": {"name": name, "labels": labels}, "data": {"n": "0"}}
    return await client.create(CONFIG_MAPS, body, namespace=namespace)


async def relabel(client: Client, made: ConfigMap, **labels: str | None) -> ConfigMap:
    patch = MergePatch({"metadata": {"labels": labels}})
    return await client.patch(CONFIG_MAPS, made.name, patch, made.namespace)


def of_test(client: Client, namespace: str, **options: object) -> Informer[ConfigMap]:
    options = {"labels": "app"} | options
    return Informer(client, CONFIG_MAPS, namespace=namespace, **options)


async def test_it_shows_what_is_there_and_what_becomes(client: Client, namespace: str) -> None:
    before = await make(client, namespace, "before", app="a")
    informer = of_test(client, namespace)
    received: list[tuple[str | None, str | None]] = []
    informer.on_change(lambda old, new: received.append((old and old.name, new and new.name)))
    async with running(informer):
        await informer.synced()
        assert informer.get(before.key) == before
        after = await make(client, namespace, "after", app="a")
        await make(client, namespace, "unselected")
        await until(lambda: informer.get(after.key))
        await client.delete(CONFIG_MAPS, "before", namespace, uid=before.uid)
        await until(lambda: informer.get(before.key) is None)
        assert [item.name for item in informer.items()] == ["after"]
    assert received == [(None, "before"), (None, "after"), ("before", None)]


async def test_a_handler_that_raises_ends_nothing(client: Client, namespace: str) -> None:
    metrics = Metrics()
    informer = of_test(client, namespace, metrics=metrics)
    seen: list[tuple[str | None, str | None]] = []

    def fails(old: ConfigMap | None, new: ConfigMap | None) -> None:
        if "bad" in {old and old.name, new and new.name}:
            raise ValueError("cannot deal with this one")

    informer.on_change(fails)
    informer.on_change(lambda old, new: seen.append((old and old.name, new and new.name)))
    bad = await make(client, namespace, "bad", app="a")
    async with running(informer):
        await informer.synced()
        good = await make(client, namespace, "good", app="a")
        await until(lambda: informer.get(good.key))
        late: list[str] = []

        def fails_late(old: ConfigMap | None, new: ConfigMap | None) -> None:
            late.append(new.name if new else "")
            raise ValueError("cannot deal with any")

        informer.on_change(fails_late)
        assert sorted(late) == ["bad", "good"]
        await client.delete(CONFIG_MAPS, "bad", namespace, uid=bad.uid)
        await until(lambda: informer.get(bad.key) is None)
    assert seen == [(None, "bad"), (None, "good"), ("bad", None)]
    labels = {"cluster": "shared", "resource": "configmaps"}
    assert metrics.value("kubeocean_informer_handler_errors_total", labels) == 5


async def test_a_late_handler_is_told_of_what_is_there(client: Client, namespace: str) -> None:
    await make(client, namespace, "here", app="a")
    informer = of_test(client, namespace)
    async with running(informer):
        await informer.synced()
        names: list[str] = []
        informer.on_change(lambda old, new: names.append(new.name if new else ""))
        assert names == ["here"]


async def test_an_object_that_leaves_the_selection_is_gone(client: Client, namespace: str) -> None:
    made = await make(client, namespace, "x", app="a")
    informer = of_test(client, namespace)
    async with running(informer):
        await informer.synced()
        await relabel(client, made, app=None)
        await until(lambda: informer.get(made.key) is None)
        await relabel(client, made, app="b")
        await until(lambda: informer.get(made.key))


async def test_what_no_selector_can_tell_is_left_out(client: Client, namespace: str) -> None:
    made = await make(client, namespace, "x", app="a")
    await make(client, namespace, "other", app="b")
    informer = of_test(client, namespace, keep=lambda o: o.labels["app"] == "a")
    async with running(informer):
        await informer.synced()
        assert [item.name for item in informer.items()] == ["x"]
        informer.wrote(await relabel(client, made, app="b"))
        await until(lambda: informer.get(made.key) is None)
        assert await informer.caught_up(made.key, timeout_s=0.01)


async def test_indexes_follow_the_objects(client: Client, namespace: str) -> None:
    informer = of_test(client, namespace, indexes={"app": lambda o: [o.labels.get("app", "")]})
    async with running(informer):
        await informer.synced()
        one = await make(client, namespace, "one", app="a")
        await make(client, namespace, "two", app="a")
        await until(lambda: len(informer.by("app", "a")) == 2)
        await relabel(client, one, app="b")
        await until(lambda: [o.name for o in informer.by("app", "b")] == ["one"])
        assert [o.name for o in informer.by("app", "a")] == ["two"]
        assert informer.by("app", "none") == []
        with pytest.raises(KeyError):
            informer.by("unknown", "a")


async def test_pruning_and_keeping_bytes(client: Client, namespace: str) -> None:
    made = await make(client, namespace, "x", app="a")
    lean = of_test(client, namespace, prune=lambda o: ConfigMap(metadata=o.metadata))
    whole = of_test(client, namespace, keep_raw=True)
    async with running(lean, whole):
        await lean.synced()
        await whole.synced()
        cached = lean.get(made.key)
        assert cached is not None
        assert cached.data is None
        with pytest.raises(LookupError, match="without keep_raw"):
            cached.content()
        kept = whole.get(made.key)
        assert kept is not None
        assert kept.content()["data"] == {"n": "0"}


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "paged"])
async def test_a_replaced_object_is_two_changes(
    cluster: Cluster, client: Client, namespace: str, streaming: bool
) -> None:
    faults = Faults()
    blind = cluster.client(wrap=faults.wrap)
    scope = Scope(CONFIG_MAPS, namespace, labels="app")
    watch = Watch(blind, scope, streaming=streaming, page=2)
    informer = of_test(blind, namespace, watch=watch)
    for n in range(5):
        await make(client, namespace, f"other{n}", app="a")
    first = await make(client, namespace, "x", app="a")
    received: list[tuple[str, str]] = []
    async with running(informer):
        await informer.synced()
        assert len(informer) == 6
        informer.on_change(
            lambda old, new: received.append((old.uid if old else "", new.uid if new else ""))
        )
        received.clear()
        faults.partition()
        await client.delete(CONFIG_MAPS, "x", namespace, uid=first.uid)
        second = await make(client, namespace, "x", app="a")
        faults.heal()
        faults.answer(410, when=watches)
        await until(lambda: len(received) == 2)
    assert received == [(first.uid, ""), ("", second.uid)]
    await blind.close()


async def test_it_waits_for_its_own_writes(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults = Faults()
    late = cluster.client(wrap=faults.wrap)
    metrics = Metrics()
    informer = of_test(late, namespace, metrics=metrics)
    async with running(informer):
        await informer.synced()
        faults.lag(0.5)
        made = await make(client, namespace, "x", app="a")
        informer.wrote(made)
        assert informer.get(made.key) is None
        assert await informer.caught_up(made.key)
        assert informer.get(made.key) == made

        changed = await relabel(client, made, app="b")
        informer.wrote(changed)
        assert await informer.caught_up(made.key)
        assert informer.get(made.key) == changed

        await client.delete(CONFIG_MAPS, "x", namespace, uid=made.uid)
        informer.deleted(changed)
        assert await informer.caught_up(made.key)
        assert informer.get(made.key) is None
        assert await informer.caught_up(Key(namespace, "never-written"))
    labels = {"cluster": "shared", "resource": "configmaps"}
    assert metrics.value("kubeocean_informer_lag_seconds_count", labels) == 3
    await late.close()


async def test_a_write_out_of_the_selection_does_not_wait_for_ever(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults = Faults()
    late = cluster.client(wrap=faults.wrap)
    informer = of_test(late, namespace)
    async with running(informer):
        await informer.synced()
        elsewhere = await make(client, namespace, "x")
        informer.wrote(elsewhere)
        assert await informer.caught_up(elsewhere.key, timeout_s=0.1)

        faults.freeze()
        ours = await make(client, namespace, "y", app="a")
        informer.wrote(ours)
        assert not await informer.caught_up(ours.key, timeout_s=0.1)
        faults.thaw()
        assert await informer.caught_up(ours.key)
    await late.close()


async def test_repetition_and_rewinding_change_nothing(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults = Faults()
    shaky = cluster.client(wrap=faults.wrap)
    informer = of_test(shaky, namespace)
    received: list[tuple[str, str]] = []
    async with running(informer):
        await informer.synced()
        informer.on_change(
            lambda old, new: received.append(
                (old.resource_version if old else "", new.resource_version if new else "")
            )
        )
        faults.repeat(2)
        one = await make(client, namespace, "one", app="a")
        two = await relabel(client, one, app="b")
        await client.delete(CONFIG_MAPS, "one", namespace, uid=one.uid)
        three = await make(client, namespace, "three", app="a")
        await until(lambda: informer.get(three.key))
        faults.rewind(50)
        four = await make(client, namespace, "four", app="a")
        await until(lambda: informer.get(four.key))
        assert {o.name for o in informer.items()} == {"three", "four"}
    assert received == [
        ("", one.resource_version),
        (one.resource_version, two.resource_version),
        (two.resource_version, ""),
        ("", three.resource_version),
        ("", four.resource_version),
    ]
    await shaky.close()
