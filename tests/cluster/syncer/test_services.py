"""Services of the computing cluster, replicated into a real worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import AlreadyExists
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, SERVICES
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.service_forge import (
    ENDPOINT_SLICES,
    SERVICE_VIEWS,
    ServiceView,
    names,
)
from kubeocean.syncer.replication.services import Services
from support.binding_env import BindingEnv
from support.controller_env import ControllerEnv, Crash, quiet
from support.faults import Crashed, Faults, writes
from support.wait import until

MOUNT = "kubeocean-worker"


class ServicesDriver:
    """Runs `Services` with its caches."""

    def __init__(self, clusters: Clusters) -> None:
        self.endpoints = ClusterEndpoints(clusters)
        self.services = Services(clusters, self.endpoints)
        self.parts = (clusters.bindings, *self.endpoints.parts, *self.services.parts)


@pytest.fixture
async def controller_env(
    binding_env: BindingEnv, client: Client, worker: Cluster
) -> AsyncIterator[ControllerEnv]:
    worker_client = worker.client()
    with suppress(AlreadyExists):
        await worker_client.create(NAMESPACES, {"metadata": {"name": MOUNT}})
    yield ControllerEnv(binding_env.computing, worker, client, worker_client, name=binding_env.name)
    await worker_client.close()


async def bind(controller_env: ControllerEnv, *namespaces: str) -> None:
    spec = {
        "clusterID": controller_env.cluster_id,
        "secretRef": {"name": "x", "namespace": "default"},
        "mountNamespace": MOUNT,
        "serviceNamespaces": list(namespaces),
    }
    body = {"metadata": {"name": controller_env.name}, "spec": spec}
    kind = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind}
    await controller_env.computing_api.create(CLUSTER_BINDINGS, body | kind)


async def name_namespaces(controller_env: ControllerEnv, *namespaces: str) -> None:
    patch = MergePatch({"spec": {"serviceNamespaces": list(namespaces)}})
    await controller_env.computing_api.patch(CLUSTER_BINDINGS, controller_env.name, patch)


async def create_service(controller_env: ControllerEnv, key: Key, **spec: object) -> ServiceView:
    body = {"metadata": {"name": key.name}, "spec": {"ports": [{"port": 80}], **spec}}
    return await controller_env.computing_api.create(SERVICE_VIEWS, body, namespace=key.namespace)


async def create_slice(
    controller_env: ControllerEnv, key: Key, *addresses: str, name: str = ""
) -> None:
    """Create an EndpointSlice of a Service."""
    body = {
        "metadata": {
            "name": name or f"{key.name}-1",
            "labels": {"kubernetes.io/service-name": key.name},
        },
        "addressType": "IPv4",
        "endpoints": endpoints(*addresses),
        "ports": [{"port": 8080, "name": "", "protocol": "TCP"}],
    }
    await controller_env.computing_api.create(ENDPOINT_SLICES, body, namespace=key.namespace)


def endpoints(*addresses: str) -> list[Json]:
    return [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]


async def list_copies(controller_env: ControllerEnv) -> list[ServiceView]:
    labels = f"kubeocean.io/cluster-binding={controller_env.name}"
    return (await controller_env.worker_api.list(SERVICE_VIEWS, MOUNT, labels=labels)).items


async def read_copy(controller_env: ControllerEnv) -> ServiceView:
    copies = await list_copies(controller_env)
    assert len(copies) == 1
    return copies[0]


async def endpoints_of(controller_env: ControllerEnv, copy: str) -> list[str]:
    """Return the addresses in the slices of a copy."""
    listing = await controller_env.worker_api.list(
        ENDPOINT_SLICES, MOUNT, labels=f"kubernetes.io/service-name={copy}", keep_raw=True
    )
    listed = [each for slice_ in listing.items for each in slice_.content().get("endpoints") or ()]
    return sorted(address for each in listed for address in each["addresses"])


async def shows(controller_env: ControllerEnv, *addresses: str) -> bool:
    copy = await read_copy(controller_env)
    assert await endpoints_of(controller_env, copy.name) == list(addresses)
    return True


async def writes_end(*plans: Faults) -> None:
    """Wait until no write is added for half a second; a faster `quiet`."""
    seen: list[int] = []

    async def same() -> bool:
        seen.append(sum(faults.writes for faults in plans))
        return len(seen) > 1 and seen[-1] == seen[-2]

    await until(same, every=0.5)


async def test_a_service_of_a_named_namespace_is_replicated_with_its_endpoints(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    source = await create_service(controller_env, key, type="LoadBalancer")
    await create_slice(controller_env, key, "10.1.0.1", "10.1.0.2")
    await create_service(controller_env, Key("default", f"not-{controller_env.name}"))
    await bind(controller_env, namespace)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults) as driver:
        await until(lambda: shows(controller_env, "10.1.0.1", "10.1.0.2"))
        copy = await read_copy(controller_env)
        assert copy.name == f"web-{copy.name.rpartition('-')[2]}"
        assert copy.annotations["kubeocean.io/virtual-uid"] == source.uid
        assert copy.spec.type == "ClusterIP"
        assert copy.address
        assert copy.address != source.address
        await until(lambda: driver.services.address_of(key) == copy.address)
        assert [each.address for each in driver.endpoints.services(namespace)] == [copy.address]
        await writes_end(worker_faults)
    sent = [f"{r.method} {r.path.rpartition('/')[2]}" for r in worker_faults.requests if r.writes]
    assert sorted(sent) == ["POST endpointslices", "POST services"]


async def test_a_copy_follows_its_source_and_only_changes_are_written(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults):
        await until(lambda: shows(controller_env, "10.1.0.1"))
        await quiet(worker_faults)  # a write is counted when its answer has arrived
        before = worker_faults.writes
        patch = MergePatch({"metadata": {"annotations": {"note": "x"}}})
        await controller_env.computing_api.patch(SERVICES, key.name, patch, namespace)
        patch = MergePatch({"endpoints": endpoints("10.1.0.3")})
        await controller_env.computing_api.patch(ENDPOINT_SLICES, "web-1", patch, namespace)
        await until(lambda: shows(controller_env, "10.1.0.3"))
        await create_slice(controller_env, key, "10.1.0.4", name="web-2")
        await until(lambda: shows(controller_env, "10.1.0.3", "10.1.0.4"))
        first = await controller_env.computing_api.get(ENDPOINT_SLICES, "web-1", namespace)
        await controller_env.computing_api.delete(
            ENDPOINT_SLICES, "web-1", namespace, uid=first.uid
        )
        await until(lambda: shows(controller_env, "10.1.0.4"))
        patch = MergePatch({"spec": {"ports": [{"port": 81, "protocol": "TCP"}]}})
        await controller_env.computing_api.patch(SERVICES, key.name, patch, namespace)

        async def ported() -> bool:
            copy = await read_copy(controller_env)
            return [each.port for each in copy.spec.ports or ()] == [81]

        await until(ported)
        await quiet(worker_faults)
        assert worker_faults.writes == before + 4


async def test_copies_that_others_delete_or_change_are_repaired(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    async with controller_env.syncing(ServicesDriver):
        await until(lambda: shows(controller_env, "10.1.0.1"))
        copy = await read_copy(controller_env)
        slices = await controller_env.worker_api.list(
            ENDPOINT_SLICES, MOUNT, labels=f"kubernetes.io/service-name={copy.name}"
        )
        patch = MergePatch({"endpoints": []})
        await controller_env.worker_api.patch(ENDPOINT_SLICES, slices.items[0].name, patch, MOUNT)
        await until(lambda: shows(controller_env, "10.1.0.1"))
        await controller_env.worker_api.delete(SERVICES, copy.name, MOUNT, uid=copy.uid)

        async def back() -> bool:
            again = await read_copy(controller_env)
            assert again.uid != copy.uid
            return await shows(controller_env, "10.1.0.1")

        await until(back)


async def test_a_copy_is_deleted_with_its_source_or_when_its_namespace_is_not_named(
    controller_env: ControllerEnv, namespace: str
) -> None:
    web, db = Key(namespace, "web"), Key(namespace, "db")
    source = await create_service(controller_env, web)
    await create_slice(controller_env, web, "10.1.0.1")
    await create_service(controller_env, db, clusterIP="None")
    await create_slice(controller_env, db, "10.1.0.2")
    await bind(controller_env, namespace)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults) as driver:
        await until(lambda: _count(controller_env, 2))
        await controller_env.computing_api.delete(SERVICES, web.name, namespace, uid=source.uid)
        await until(lambda: shows(controller_env, "10.1.0.2"))
        await name_namespaces(controller_env)
        await until(lambda: _count(controller_env, 0))
        await until(lambda: not driver.services.on)
        requests = len(worker_faults.requests)
        await writes_end(worker_faults)
        assert len(worker_faults.requests) == requests
        await name_namespaces(controller_env, namespace)
        await until(lambda: shows(controller_env, "10.1.0.2"))
        copy = await read_copy(controller_env)
        assert copy.spec.cluster_ip == "None"


async def _count(controller_env: ControllerEnv, number: int) -> bool:
    return len(await list_copies(controller_env)) == number


async def test_a_copy_that_lost_its_source_while_no_syncer_ran_is_deleted(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    async with controller_env.syncing(ServicesDriver):
        await until(lambda: shows(controller_env, "10.1.0.1"))
    copy = await read_copy(controller_env)
    await name_namespaces(controller_env)
    async with controller_env.syncing(ServicesDriver):
        await until(lambda: _count(controller_env, 0))
        assert await endpoints_of(controller_env, copy.name) == []


async def test_a_binding_without_service_namespaces_costs_one_request(
    controller_env: ControllerEnv, namespace: str
) -> None:
    await create_service(controller_env, Key(namespace, "web"))
    await bind(controller_env)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults) as driver:
        await until(lambda: driver.endpoints.synced)
        await until(lambda: worker_faults.requests)
        await writes_end(worker_faults)
    paths = [r.path for r in worker_faults.requests if r.path != "/version"]
    assert paths == [f"/api/v1/namespaces/{MOUNT}/services"]


async def test_a_foreign_service_is_left_alone_and_the_copy_gets_its_second_name(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    async with controller_env.syncing(ServicesDriver) as driver:
        first, second = names(key, driver.services.clusters.ids)
    body = {"metadata": {"name": first}, "spec": {"ports": [{"port": 1}]}}
    foreign = await controller_env.worker_api.create(SERVICES, body, namespace=MOUNT)
    for copy in await list_copies(controller_env):
        await controller_env.worker_api.delete(SERVICES, copy.name, MOUNT, uid=copy.uid)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults):
        await until(lambda: shows(controller_env, "10.1.0.1"))
        await writes_end(worker_faults)
    copy = await read_copy(controller_env)
    assert copy.name == second
    untouched = await controller_env.worker_api.get(SERVICES, first, MOUNT)
    assert (untouched.uid, untouched.resource_version) == (foreign.uid, foreign.resource_version)


async def test_two_bindings_have_a_copy_each(controller_env: ControllerEnv, namespace: str) -> None:
    other, key = controller_env.neighbour(), Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    await bind(other, namespace)
    async with controller_env.syncing(ServicesDriver), other.syncing(ServicesDriver):
        await until(lambda: shows(controller_env, "10.1.0.1"))
        await until(lambda: shows(other, "10.1.0.1"))
        await name_namespaces(controller_env)
        await until(lambda: _count(controller_env, 0))
        assert await shows(other, "10.1.0.1")


async def test_a_service_that_becomes_headless_gets_a_new_copy(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    source = await create_service(controller_env, key)
    await bind(controller_env, namespace)
    async with controller_env.syncing(ServicesDriver):
        await until(lambda: _count(controller_env, 1))
        await controller_env.computing_api.delete(SERVICES, key.name, namespace, uid=source.uid)
        await create_service(controller_env, key, clusterIP="None")

        async def headless() -> bool:
            copy = await read_copy(controller_env)
            return copy.spec.cluster_ip == "None"

        await until(headless)


async def test_a_worker_that_refuses_writes_is_reported_by_an_event(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await bind(controller_env, namespace)
    worker_faults = Faults()
    worker_faults.answer(403, times=99, when=writes, reason="Forbidden")
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults):
        fields = f"involvedObject.name={key.name},reason=ServiceNotMirrored"

        async def reported() -> list[object]:
            return list(
                (await controller_env.computing_api.list(EVENTS, namespace, fields=fields)).items
            )

        assert await until(reported)


async def test_a_worker_that_forbids_reading_is_not_probed_continuously(
    controller_env: ControllerEnv, namespace: str
) -> None:
    await create_service(controller_env, Key(namespace, "web"))
    await bind(controller_env, namespace)
    worker_faults = Faults()
    worker_faults.answer(403, times=99, when=lambda r: "/services" in r.path, reason="Forbidden")
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults):
        (event,) = await until(
            lambda: controller_env.events_about(controller_env.name, "ServiceNotMirrored")
        )
        assert event.message.startswith(f"Services of {namespace} are not mirrored: ")
        await writes_end(worker_faults)
    assert [r.path for r in worker_faults.requests if r.path != "/version"] == [
        f"/api/v1/namespaces/{MOUNT}/services"
    ]


async def test_two_leaders_with_lagging_watches_reach_the_same_state_as_one(
    controller_env: ControllerEnv, namespace: str
) -> None:
    key = Key(namespace, "web")
    await create_service(controller_env, key)
    await create_slice(controller_env, key, "10.1.0.1")
    await bind(controller_env, namespace)
    first, second = Faults(), Faults()
    for faults in (first, second):
        faults.lag(0.2)
        faults.repeat(1)
    async with (
        controller_env.syncing(ServicesDriver, computing_api=first, worker_api=first),
        controller_env.syncing(ServicesDriver, computing_api=second, worker_api=second),
    ):
        await until(lambda: shows(controller_env, "10.1.0.1"))
        patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
        await controller_env.computing_api.patch(ENDPOINT_SLICES, "web-1", patch, namespace)
        await until(lambda: shows(controller_env, "10.1.0.2"))
        for faults in (first, second):
            faults.rewind(20)
        await writes_end(first, second)
        assert await shows(controller_env, "10.1.0.2")
        await name_namespaces(controller_env)
        await until(lambda: _count(controller_env, 0))
        await writes_end(first, second)
    assert len(await list_copies(controller_env)) == 0


async def _wrote(faults: Faults, number: int) -> bool:
    return faults.writes >= number


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 8))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, namespace: str, n: int
) -> None:
    stays, goes = Key(namespace, "stays"), Key(namespace, "goes")
    await create_service(controller_env, stays)
    await create_slice(controller_env, stays, "10.1.0.1")
    leaving = await create_service(controller_env, goes)
    await create_slice(controller_env, goes, "10.1.0.9")
    await bind(controller_env, namespace)
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with controller_env.syncing(ServicesDriver, worker_api=faults):
            await crash.or_until(lambda: _count(controller_env, 2))
            await crash.or_until(lambda: _wrote(faults, 4))
            patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
            await controller_env.computing_api.patch(ENDPOINT_SLICES, "stays-1", patch, namespace)
            await crash.or_until(lambda: _wrote(faults, 5))
            await controller_env.computing_api.delete(
                SERVICES, goes.name, namespace, uid=leaving.uid
            )
            await crash.or_until(lambda: _wrote(faults, 7))
    if not crash.is_set():
        raise AssertionError("it did not crash")
    patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
    await controller_env.computing_api.patch(ENDPOINT_SLICES, "stays-1", patch, namespace)
    if await controller_env.seen(SERVICES, goes.name, namespace):
        await controller_env.computing_api.delete(SERVICES, goes.name, namespace, uid=leaving.uid)
    worker_faults = Faults()
    async with controller_env.syncing(ServicesDriver, worker_api=worker_faults):
        await until(lambda: shows(controller_env, "10.1.0.2"))
        await writes_end(worker_faults)
