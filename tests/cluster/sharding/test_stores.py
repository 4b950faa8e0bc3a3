"""States and tables in an API server: a late writer is refused."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.errors import Conflict, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.transport import Request
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.admission import own_principal
from kubeocean.sharding.stores import ABSENT, ConfigMapStore, TableStore, Unreadable, admission_view
from kubeocean.sharding.table import SlotEntry
from kubeocean.sharding.table_operations import freeze
from support.faults import writes
from support.ring_env import SLOTS, RingEnv
from support.wait import until


async def test_a_state_is_written_only_upon_the_version_that_was_read(
    client: Client, namespace: str
) -> None:
    store = ConfigMapStore(client, namespace=namespace, labels={"of": "test"})
    assert await store.load("a") is None
    first = await store.save("a", {"n": 1}, ABSENT)
    with pytest.raises(Conflict):
        await store.save("a", {"n": 2}, ABSENT)
    second = await store.save("a", {"n": 2}, first)
    with pytest.raises(Conflict):
        await store.save("a", {"n": 3}, first)
    with pytest.raises(Conflict):
        await store.delete("a", first)
    loaded = await store.load("a")
    assert loaded is not None
    assert (loaded.state, loaded.version) == ({"n": 2}, second)
    await store.save("ab", {}, ABSENT)
    foreign = {"metadata": {"name": "ax"}}
    await client.create(CONFIG_MAPS, foreign, namespace=namespace)
    assert await store.list("a") == ["a", "ab"]
    await store.delete("a", second)
    with pytest.raises(Conflict):
        await store.save("a", {"n": 4}, second)
    with pytest.raises(Unreadable, match="could not read the state in ConfigMap"):
        await store.load("ax")


async def test_of_many_writers_one_wins_each_time(client: Client, namespace: str) -> None:
    store = ConfigMapStore(client, namespace=namespace, beside=admission_view)
    tables = TableStore(store, key="t", ring="r", slots=4)
    lost = 0

    async def add(slot: int) -> None:
        nonlocal lost
        while True:
            loaded = await tables.load()
            table = loaded.table.changed({slot: SlotEntry(f"m{slot}_1")})
            try:
                await tables.save(table, loaded)
                return
            except Conflict:
                lost += 1

    async with asyncio.TaskGroup() as group:
        for slot in range(4):
            group.create_task(add(slot))
    table = (await tables.load()).table
    assert [entry.owner for entry in table.entries] == ["m0_1", "m1_1", "m2_1", "m3_1"]
    assert table.epoch == 4
    assert lost > 0
    found = await client.get(CONFIG_MAPS, "t", namespace)
    assert (found.data or {})["epoch"] == "4"


async def test_a_namespace_that_is_missing_is_no_conflict(client: Client) -> None:
    store = ConfigMapStore(client, namespace="there-is-none-such")
    with pytest.raises(NotFound):
        await store.save("a", {}, ABSENT)


async def test_an_assigner_whose_answers_are_lost_or_refused_goes_on(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    def tables(request: Request) -> bool:
        return writes(request) and "configmaps" in request.path

    async with RingEnv.open(cluster, namespace) as ring_env:
        a = ring_env.join("a")
        a.faults.answer(409, times=2, when=tables, reason="Conflict")
        a.faults.lose_answer(times=1, when=tables)
        await until(lambda: len(a.slots) == SLOTS)
        a.faults.lose_answer(times=2, when=tables)
        a.faults.answer(503, times=2, when=tables)
        b = ring_env.join("b")
        await ring_env.share([a, b])
        # An administrator changes the table at the same time.
        overseer = RingAdmin(client, a.ring.names, namespace=namespace)
        await overseer.change(lambda state: freeze(state.table))
        await until(lambda: a.ring.table is not None and a.ring.table.frozen)
        ring_env.check_exclusive()


async def test_a_pod_s_token_is_known_by_the_pod_s_uid(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    account = {"metadata": {"name": "worker"}}
    await client.create(SERVICE_ACCOUNTS, account, namespace=namespace)
    spec = {"containers": [{"name": "c", "image": "none"}], "serviceAccountName": "worker"}
    pod = await client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace=namespace)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
    answer = await client.post(
        SERVICE_ACCOUNTS,
        "worker",
        "token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound},
        },
        namespace,
    )
    kubeconfig = cluster._write_user("pod-p", answer["status"]["token"], namespace)
    worker = cluster.client(kubeconfig=kubeconfig)
    assert await own_principal(worker) == pod.uid
    assert await own_principal(client) == "kubernetes-admin"
    await worker.close()
