"""Services of the computing cluster, mirrored into a real worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import AlreadyExists
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults, writes
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, SERVICES
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge.services import names
from kubeocean.syncer.serviceviews import ENDPOINT_SLICES, SERVICE_VIEWS, Service
from kubeocean.syncer.topdown.services import Services
from kubeocean.syncer.topdown.surroundings import Surroundings
from kubeocean.syncer.world import World
from oceans import Sea
from straits import Crash, Strait, quiet
from waiting import until

MOUNT = "kubeocean-worker"


class Mirrored:
    """What mirrors need, and they."""

    def __init__(self, world: World) -> None:
        self.around = Surroundings(world)
        self.services = Services(world, self.around)
        self.parts = (world.bindings, *self.around.parts, *self.services.parts)


@pytest.fixture
async def strait(sea: Sea, client: Client, worker: Cluster) -> AsyncIterator[Strait]:
    below = worker.client()
    with suppress(AlreadyExists):
        await below.create(NAMESPACES, {"metadata": {"name": MOUNT}})
    yield Strait(sea.computing, worker, client, below, name=sea.name)
    await below.close()


async def bind(strait: Strait, *namespaces: str) -> None:
    spec = {
        "clusterID": strait.cluster_id,
        "secretRef": {"name": "x", "namespace": "default"},
        "mountNamespace": MOUNT,
        "serviceNamespaces": list(namespaces),
    }
    body = {"metadata": {"name": strait.name}, "spec": spec}
    kind = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind}
    await strait.above.create(CLUSTER_BINDINGS, body | kind)


async def name_namespaces(strait: Strait, *namespaces: str) -> None:
    patch = MergePatch({"spec": {"serviceNamespaces": list(namespaces)}})
    await strait.above.patch(CLUSTER_BINDINGS, strait.name, patch)


async def serve(strait: Strait, key: Key, **spec: object) -> Service:
    body = {"metadata": {"name": key.name}, "spec": {"ports": [{"port": 80}], **spec}}
    return await strait.above.create(SERVICE_VIEWS, body, namespace=key.namespace)


async def reach(strait: Strait, key: Key, *addresses: str, name: str = "") -> None:
    """A slice of a Service."""
    body = {
        "metadata": {
            "name": name or f"{key.name}-1",
            "labels": {"kubernetes.io/service-name": key.name},
        },
        "addressType": "IPv4",
        "endpoints": endpoints(*addresses),
        "ports": [{"port": 8080, "name": "", "protocol": "TCP"}],
    }
    await strait.above.create(ENDPOINT_SLICES, body, namespace=key.namespace)


def endpoints(*addresses: str) -> list[Json]:
    return [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]


async def mirrors(strait: Strait) -> list[Service]:
    labels = f"kubeocean.io/cluster-binding={strait.name}"
    return (await strait.below.list(SERVICE_VIEWS, MOUNT, labels=labels)).items


async def the_mirror(strait: Strait) -> Service:
    found = await mirrors(strait)
    assert len(found) == 1
    return found[0]


async def reached(strait: Strait, mirror: str) -> list[str]:
    """Where a mirror leads."""
    found = await strait.below.list(
        ENDPOINT_SLICES, MOUNT, labels=f"kubernetes.io/service-name={mirror}", keep_raw=True
    )
    listed = [each for slice_ in found.items for each in slice_.content().get("endpoints") or ()]
    return sorted(address for each in listed for address in each["addresses"])


async def shows(strait: Strait, *addresses: str) -> bool:
    mirror = await the_mirror(strait)
    assert await reached(strait, mirror.name) == list(addresses)
    return True


async def rests(*plans: Faults) -> None:
    """Nothing is added any more; `quiet`, for what is tested many times."""
    seen: list[int] = []

    async def same() -> bool:
        seen.append(sum(faults.writes for faults in plans))
        return len(seen) > 1 and seen[-1] == seen[-2]

    await until(same, every=0.5)


async def test_a_service_of_a_named_namespace_is_mirrored_with_its_endpoints(
    strait: Strait, namespace: str
) -> None:
    key = Key(namespace, "web")
    original = await serve(strait, key, type="LoadBalancer")
    await reach(strait, key, "10.1.0.1", "10.1.0.2")
    await serve(strait, Key("default", f"not-{strait.name}"))
    await bind(strait, namespace)
    below = Faults()
    async with strait.syncing(Mirrored, below=below) as made:
        await until(lambda: shows(strait, "10.1.0.1", "10.1.0.2"))
        mirror = await the_mirror(strait)
        assert mirror.name == f"web-{mirror.name.rpartition('-')[2]}"
        assert mirror.annotations["kubeocean.io/virtual-uid"] == original.uid
        assert mirror.spec.type == "ClusterIP"
        assert mirror.address
        assert mirror.address != original.address
        await until(lambda: made.services.address_of(key) == mirror.address)
        assert [each.address for each in made.around.services(namespace)] == [mirror.address]
        await rests(below)
    sent = [f"{r.method} {r.path.rpartition('/')[2]}" for r in below.requests if r.writes]
    assert sorted(sent) == ["POST endpointslices", "POST services"]


async def test_a_mirror_follows_and_only_changes_are_written(
    strait: Strait, namespace: str
) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    below = Faults()
    async with strait.syncing(Mirrored, below=below):
        await until(lambda: shows(strait, "10.1.0.1"))
        before = below.writes
        patch = MergePatch({"metadata": {"annotations": {"note": "x"}}})
        await strait.above.patch(SERVICES, key.name, patch, namespace)
        patch = MergePatch({"endpoints": endpoints("10.1.0.3")})
        await strait.above.patch(ENDPOINT_SLICES, "web-1", patch, namespace)
        await until(lambda: shows(strait, "10.1.0.3"))
        await reach(strait, key, "10.1.0.4", name="web-2")
        await until(lambda: shows(strait, "10.1.0.3", "10.1.0.4"))
        first = await strait.above.get(ENDPOINT_SLICES, "web-1", namespace)
        await strait.above.delete(ENDPOINT_SLICES, "web-1", namespace, uid=first.uid)
        await until(lambda: shows(strait, "10.1.0.4"))
        patch = MergePatch({"spec": {"ports": [{"port": 81, "protocol": "TCP"}]}})
        await strait.above.patch(SERVICES, key.name, patch, namespace)

        async def ported() -> bool:
            mirror = await the_mirror(strait)
            return [each.port for each in mirror.spec.ports or ()] == [81]

        await until(ported)
        await quiet(below)
        assert below.writes == before + 4


async def test_what_is_lost_or_bent_below_is_put_right(strait: Strait, namespace: str) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    async with strait.syncing(Mirrored):
        await until(lambda: shows(strait, "10.1.0.1"))
        mirror = await the_mirror(strait)
        slices = await strait.below.list(
            ENDPOINT_SLICES, MOUNT, labels=f"kubernetes.io/service-name={mirror.name}"
        )
        patch = MergePatch({"endpoints": []})
        await strait.below.patch(ENDPOINT_SLICES, slices.items[0].name, patch, MOUNT)
        await until(lambda: shows(strait, "10.1.0.1"))
        await strait.below.delete(SERVICES, mirror.name, MOUNT, uid=mirror.uid)

        async def back() -> bool:
            again = await the_mirror(strait)
            assert again.uid != mirror.uid
            return await shows(strait, "10.1.0.1")

        await until(back)


async def test_a_mirror_goes_with_its_original_and_with_the_namespaces_name(
    strait: Strait, namespace: str
) -> None:
    web, db = Key(namespace, "web"), Key(namespace, "db")
    original = await serve(strait, web)
    await reach(strait, web, "10.1.0.1")
    await serve(strait, db, clusterIP="None")
    await reach(strait, db, "10.1.0.2")
    await bind(strait, namespace)
    below = Faults()
    async with strait.syncing(Mirrored, below=below) as made:
        await until(lambda: _count(strait, 2))
        await strait.above.delete(SERVICES, web.name, namespace, uid=original.uid)
        await until(lambda: shows(strait, "10.1.0.2"))
        await name_namespaces(strait)
        await until(lambda: _count(strait, 0))
        await until(lambda: not made.services._switch.on)
        asked = len(below.requests)
        await rests(below)
        assert len(below.requests) == asked
        await name_namespaces(strait, namespace)
        await until(lambda: shows(strait, "10.1.0.2"))
        mirror = await the_mirror(strait)
        assert mirror.spec.cluster_ip == "None"


async def _count(strait: Strait, number: int) -> bool:
    return len(await mirrors(strait)) == number


async def test_what_was_left_while_nobody_looked_is_removed(strait: Strait, namespace: str) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    async with strait.syncing(Mirrored):
        await until(lambda: shows(strait, "10.1.0.1"))
    mirror = await the_mirror(strait)
    await name_namespaces(strait)
    async with strait.syncing(Mirrored):
        await until(lambda: _count(strait, 0))
        assert await reached(strait, mirror.name) == []


async def test_no_named_namespace_costs_one_question(strait: Strait, namespace: str) -> None:
    await serve(strait, Key(namespace, "web"))
    await bind(strait)
    below = Faults()
    async with strait.syncing(Mirrored, below=below) as made:
        await until(lambda: made.around.synced)
        await until(lambda: below.requests)
        await rests(below)
    paths = [r.path for r in below.requests if r.path != "/version"]
    assert paths == [f"/api/v1/namespaces/{MOUNT}/services"]


async def test_a_foreign_service_is_left_alone_and_a_second_name_taken(
    strait: Strait, namespace: str
) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    async with strait.syncing(Mirrored) as made:
        first, second = names(key, made.services._ids)
    body = {"metadata": {"name": first}, "spec": {"ports": [{"port": 1}]}}
    foreign = await strait.below.create(SERVICES, body, namespace=MOUNT)
    for mirror in await mirrors(strait):
        await strait.below.delete(SERVICES, mirror.name, MOUNT, uid=mirror.uid)
    below = Faults()
    async with strait.syncing(Mirrored, below=below):
        await until(lambda: shows(strait, "10.1.0.1"))
        await rests(below)
    mirror = await the_mirror(strait)
    assert mirror.name == second
    there = await strait.below.get(SERVICES, first, MOUNT)
    assert (there.uid, there.resource_version) == (foreign.uid, foreign.resource_version)


async def test_neighbours_mirror_beside_each_other(strait: Strait, namespace: str) -> None:
    other, key = strait.neighbour(), Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    await bind(other, namespace)
    async with strait.syncing(Mirrored), other.syncing(Mirrored):
        await until(lambda: shows(strait, "10.1.0.1"))
        await until(lambda: shows(other, "10.1.0.1"))
        await name_namespaces(strait)
        await until(lambda: _count(strait, 0))
        assert await shows(other, "10.1.0.1")


async def test_a_service_that_changes_its_nature_is_mirrored_anew(
    strait: Strait, namespace: str
) -> None:
    key = Key(namespace, "web")
    original = await serve(strait, key)
    await bind(strait, namespace)
    async with strait.syncing(Mirrored):
        await until(lambda: _count(strait, 1))
        await strait.above.delete(SERVICES, key.name, namespace, uid=original.uid)
        await serve(strait, key, clusterIP="None")

        async def headless() -> bool:
            mirror = await the_mirror(strait)
            return mirror.spec.cluster_ip == "None"

        await until(headless)


async def test_a_worker_that_refuses_is_told_of(strait: Strait, namespace: str) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await bind(strait, namespace)
    below = Faults()
    below.answer(403, times=99, when=writes, reason="Forbidden")
    async with strait.syncing(Mirrored, below=below):
        fields = f"involvedObject.name={key.name},reason=ServiceNotMirrored"

        async def told() -> list[object]:
            return list((await strait.above.list(EVENTS, namespace, fields=fields)).items)

        assert await until(told)


async def test_a_worker_that_does_not_let_us_read_is_not_asked_again_and_again(
    strait: Strait, namespace: str
) -> None:
    await serve(strait, Key(namespace, "web"))
    await bind(strait, namespace)
    below = Faults()
    below.answer(403, times=99, when=lambda r: "/services" in r.path, reason="Forbidden")
    async with strait.syncing(Mirrored, below=below):
        (event,) = await until(lambda: strait.told(strait.name, "ServiceNotMirrored"))
        assert event.message.startswith(f"Services of {namespace} are not mirrored: ")
        await rests(below)
    assert [r.path for r in below.requests if r.path != "/version"] == [
        f"/api/v1/namespaces/{MOUNT}/services"
    ]


async def test_two_leaders_with_lagging_watches_end_where_one_does(
    strait: Strait, namespace: str
) -> None:
    key = Key(namespace, "web")
    await serve(strait, key)
    await reach(strait, key, "10.1.0.1")
    await bind(strait, namespace)
    first, second = Faults(), Faults()
    for faults in (first, second):
        faults.lag(0.2)
        faults.repeat(1)
    async with (
        strait.syncing(Mirrored, above=first, below=first),
        strait.syncing(Mirrored, above=second, below=second),
    ):
        await until(lambda: shows(strait, "10.1.0.1"))
        patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
        await strait.above.patch(ENDPOINT_SLICES, "web-1", patch, namespace)
        await until(lambda: shows(strait, "10.1.0.2"))
        for faults in (first, second):
            faults.rewind(20)
        await rests(first, second)
        assert await shows(strait, "10.1.0.2")
        await name_namespaces(strait)
        await until(lambda: _count(strait, 0))
        await rests(first, second)
    assert len(await mirrors(strait)) == 0


async def _wrote(faults: Faults, number: int) -> bool:
    return faults.writes >= number


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 8))
async def test_a_crash_after_the_nth_write_changes_nothing(
    strait: Strait, namespace: str, n: int
) -> None:
    stays, goes = Key(namespace, "stays"), Key(namespace, "goes")
    await serve(strait, stays)
    await reach(strait, stays, "10.1.0.1")
    leaving = await serve(strait, goes)
    await reach(strait, goes, "10.1.0.9")
    await bind(strait, namespace)
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with strait.syncing(Mirrored, below=faults):
            await crash.or_until(lambda: _count(strait, 2))
            await crash.or_until(lambda: _wrote(faults, 4))
            patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
            await strait.above.patch(ENDPOINT_SLICES, "stays-1", patch, namespace)
            await crash.or_until(lambda: _wrote(faults, 5))
            await strait.above.delete(SERVICES, goes.name, namespace, uid=leaving.uid)
            await crash.or_until(lambda: _wrote(faults, 7))
    if not crash.is_set():
        raise AssertionError("it did not crash")
    patch = MergePatch({"endpoints": endpoints("10.1.0.2")})
    await strait.above.patch(ENDPOINT_SLICES, "stays-1", patch, namespace)
    if await strait.seen(SERVICES, goes.name, namespace):
        await strait.above.delete(SERVICES, goes.name, namespace, uid=leaving.uid)
    below = Faults()
    async with strait.syncing(Mirrored, below=below):
        await until(lambda: shows(strait, "10.1.0.2"))
        await rests(below)
