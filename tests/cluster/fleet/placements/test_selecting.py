"""Objects that placements select on a real hub."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import ApiError, NotFound, ServerTimeout
from kubeocean.fleet.placement import PlacementControllers, PlacementSettings
from kubeocean.fleet.selection.reader import SelectionReader
from kubeocean.fleet.snapshots.plan import Delays
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import RealClock, instant_of
from kubeocean.runtime.components import components_of
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, SECRETS
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from kubeocean.runtime.transport import Request
from support.background import running
from support.custom_resources import define
from support.faults import Faults
from support.placement_env import (
    PlacementEnv,
    conditions_of,
    config_map_selector,
    namespace_selector,
    work_status,
)
from support.wait import until

LEVELS = 5_000  # of nesting; API servers accept 10,000
DEPLOYMENTS: Resource[Untyped] = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)


def kinds(placement: Placement) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in placement.status.selected_resources]


def deployment(replicas: int = 1) -> Json:
    labels = {"app": "web"}
    container = {"name": "web", "image": "web:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def test_a_namespace_comes_with_what_is_in_it(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    await env.client.create(DEPLOYMENTS, deployment(), namespace=env.namespace)
    await env.client.create(
        SECRETS, {"metadata": {"name": "key"}, "stringData": {"a": "b"}}, namespace=env.namespace
    )
    expected = [("Namespace", env.namespace), ("Secret", "key"), ("ConfigMap", "settings")]
    key = await env.place(namespace_selector(env.namespace))
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a)
        assert kinds(placement) == [*expected, ("Deployment", "web")]
        index = int(placement.status.observed_resource_index)
        status = {"status": {"replicas": 1, "observedGeneration": 1}}
        await env.client.patch(
            DEPLOYMENTS, "web", MergePatch(status), env.namespace, subresource="status"
        )
        await env.client.patch(
            DEPLOYMENTS, "web", MergePatch({"spec": {"replicas": 2}}), env.namespace
        )
        placement = await env.completed(key, a, index=str(index + 1))
        await env.config_map("zebra")
        placement = await env.completed(key, a, index=str(index + 2))
        assert kinds(placement) == [*expected, ("ConfigMap", "zebra"), ("Deployment", "web")]


async def test_a_deleted_namespace_leaves_one_empty_snapshot(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    for name in ("one", "two", "three"):
        await env.config_map(name)
    key = await env.place(namespace_selector(env.namespace))
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a)
        index = int(placement.status.observed_resource_index)
        await env.client.delete(NAMESPACES, env.namespace, uid=None)
        placement = await env.completed(key, a, index=str(index + 1))
        assert kinds(placement) == []
        (work,) = await env.works(key)
        assert work.spec.workload.manifests == ()
        (entry,) = placement.status.placement_statuses
        assert conditions_of(entry.conditions)["Available"][1] == "AllWorkAreAvailable"
        await until(lambda: _is_gone(env, env.namespace))
        assert (await env.placement(key)).status.observed_resource_index == str(index + 1)


async def _is_gone(env: PlacementEnv, namespace: str) -> bool:
    listed = (await env.client.list(NAMESPACES, fields=f"metadata.name={namespace}")).items
    return not listed


async def test_a_name_that_nothing_has_selects_nothing(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await env.place(config_map_selector("absent"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a, index="0")
        assert kinds(placement) == []
        await env.config_map("absent")
        placement = await env.completed(key, a, index="1")
        assert kinds(placement) == [("ConfigMap", "absent")]


CLUSTER_ROLE = {"group": "rbac.authorization.k8s.io", "version": "v1", "kind": "ClusterRole"}


@pytest.mark.parametrize(
    ("namespaced", "selectors", "text"),
    [
        (False, [namespace_selector("kube-system")], "kube-system"),
        (True, [CLUSTER_ROLE], "ClusterRole"),
        (True, [config_map_selector("settings"), config_map_selector()], "more than once"),
        (
            False,
            [namespace_selector("absent", "NamespaceWithResourceSelectors")],
            "NamespaceWithResourceSelectors mode requires exactly one namespace, but no namespaces"
            " were selected",
        ),
    ],
    ids=["reserved", "scope", "twice", "absent"],
)
async def test_a_mistake_in_selectors_is_the_only_condition(
    env: PlacementEnv, namespaced: bool, selectors: list[Json], text: str
) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(*selectors, namespace=env.namespace if namespaced else "")
    async with env.controlling(), env.reporting():
        placement = await until(lambda: _with_condition(env, key))
        (condition,) = placement.status.conditions
        assert (condition.status, condition.reason) == ("False", "InvalidResourceSelectors")
        assert condition.message.startswith("The resource selectors are invalid: ")
        assert text in condition.message
        assert not placement.status.selected_resources
        assert not placement.status.placement_statuses
        assert await env.objects_of(key) == []
        if namespaced:
            await env.change(key, resourceSelectors=[config_map_selector("settings")])
            await env.completed(key, a)


async def _with_condition(env: PlacementEnv, key: Key) -> Placement | None:
    placement = await env.placement(key)
    return placement if placement.status.conditions else None


def group_of(env: PlacementEnv) -> str:
    return f"g{env.unique}.example.com"


async def a_thing(env: PlacementEnv) -> str:
    """Define a kind and create one object of it; return the API group of the kind."""
    group = group_of(env)
    things: Resource[Untyped] = Resource(group, "v1", "things", "Thing", True, Untyped)
    await define(env.client, things)

    async def is_created() -> bool:
        body = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "one"}}
        try:
            await env.client.create(things, body, namespace=env.namespace)
        except NotFound:
            return False
        return True

    await until(is_created)
    return group


async def test_a_kind_that_appears_later_is_picked_up(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    selector = {"group": group_of(env), "version": "v1", "kind": "Thing", "name": "one"}
    key = await env.place(selector, namespace=env.namespace)
    async with env.controlling(), env.reporting():
        assert kinds(await env.completed(key, a, index="0")) == []
        await a_thing(env)
        assert kinds(await env.completed(key, a, index="1")) == [("Thing", "one")]


async def without_group(env: PlacementEnv, group: str) -> Faults:
    """Return faults by which the hub's discovery omits an API group, for some answers."""
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = json.loads(await env.client.request("GET", "/apis", accept=accept))
    answer["items"] = [each for each in answer["items"] if each["metadata"]["name"] != group]
    faults = Faults()
    faults.answer(
        200, times=4, when=lambda it: it.path == "/apis", page=json.dumps(answer).encode()
    )
    return faults


async def test_a_kind_that_discovery_omits_at_the_start_stays_placed(
    env: PlacementEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeocean.fleet.selection.reader._INCOMPLETE_S", 0.0)
    (a,) = await env.join("a")
    group = await a_thing(env)
    key = await env.place(namespace_selector(env.namespace))
    expected = [("Namespace", env.namespace), ("Thing", "one")]
    async with env.controlling(), env.reporting():
        assert kinds(await env.completed(key, a, index="0")) == expected
    faults = await without_group(env, group)
    async with env.controlling(faults), env.reporting():
        await env.config_map("settings")
        await env.completed(key, a, index="1")
        assert ("Thing", "one") in kinds(await env.placement(key))


async def test_progress_is_reported_while_a_selected_kind_cannot_be_read(
    env: PlacementEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeocean.fleet.selection.reader._SYNC_S", 1.0)
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
    (work,) = await env.works(key)
    failed = MergePatch({"status": work_status(work, status="False", Applied="Failed")})
    await env.client.patch(WORKS, work.name, failed, work.namespace, subresource="status")
    faults = Faults()
    faults.answer(503, times=10_000, when=lambda it: it.path.endswith("/configmaps"))
    async with env.controlling(faults):

        async def has_failed() -> bool:
            conditions = conditions_of((await env.placement(key)).status.conditions)
            return conditions["ResourcePlacementApplied"] == ("False", "ApplyFailed", 1)

        await until(has_failed)
        assert (await env.placement(key)).status.observed_resource_index == "0"


class LateClock(RealClock):
    """A clock whose time passes by leaps."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s


async def test_a_standby_waits_for_all_kinds_when_it_begins_to_lead(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    group = await a_thing(env)
    key = await env.place(namespace_selector(env.namespace))
    clock, faults = LateClock(), await without_group(env, group)
    client = env.hub.client(wrap=faults.wrap)
    controllers = PlacementControllers(client, clock=clock)
    clock.passed_s = 3600.0
    async with running(*components_of(controllers.parts)), env.reporting():
        placement = await env.completed(key, a, index="0")
        assert kinds(placement) == [("Namespace", env.namespace), ("Thing", "one")]
    await client.close()


async def test_many_bytes_are_split(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    for number in range(3):
        body = {"metadata": {"name": f"large{number}"}, "data": {"text": "x" * 500_000}}
        await env.client.create(CONFIG_MAPS, body, namespace=env.namespace)
    key = await env.place(config_map_selector(), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a, index="0")
        assert len(placement.status.selected_resources) == 3
        snapshots = {each.name: each for each in await env.resource_snapshots(key)}
        assert snapshots.keys() == {
            f"{key.name}-0-snapshot",
            f"{key.name}-0-0",
            f"{key.name}-0-1",
        }
        for name, snapshot in snapshots.items():
            is_master = name.endswith("-snapshot")
            assert (names.LABEL_LATEST_SNAPSHOT in snapshot.labels) == is_master
            assert (names.ANNOTATION_RESOURCE_HASH in snapshot.annotations) == is_master
        base = f"{key.namespace}.{key.name}"
        assert {work.name for work in await env.works(key)} == {
            f"{base}-work",
            f"{base}-0",
            f"{base}-1",
        }
        for number in (1, 2):
            await env.client.delete(CONFIG_MAPS, f"large{number}", env.namespace, uid=None)

        async def has_one_work() -> bool:
            return [work.name for work in await env.works(key)] == [f"{base}-work"]

        await until(has_one_work)
        await env.completed(key, a)


async def test_an_obsolete_work_that_stays_in_deletion_delays_nothing(env: PlacementEnv) -> None:
    """A finalizer of an object in the member can hold its Work for minutes."""
    (a,) = await env.join("a")
    for number in range(2):
        body = {"metadata": {"name": f"large{number}"}, "data": {"text": "x" * 500_000}}
        await env.client.create(CONFIG_MAPS, body, namespace=env.namespace)
    key = await env.place(config_map_selector(), namespace=env.namespace)
    main = f"{key.namespace}.{key.name}-work"
    async with env.controlling():
        async with env.reporting():
            await env.completed(key, a, index="0")
        for work in await env.works(key):
            held = MergePatch({"metadata": {"finalizers": ["example.com/hold"]}})
            await env.client.patch(WORKS, work.name, held, work.namespace)
        await env.client.delete(CONFIG_MAPS, "large1", env.namespace, uid=None)

        async def is_obsolete() -> bool:
            return any(work.deleting for work in await env.works(key))

        await until(is_obsolete)
        (work,) = [each for each in await env.works(key) if each.name == main]
        applied = work_status(work, Applied="Applied", Available="Available")
        report = MergePatch({"status": applied})
        await env.client.patch(WORKS, work.name, report, work.namespace, subresource="status")
        await env.completed(key, a, index="1")
        assert len(await env.works(key)) == 2


async def test_history_keeps_to_its_limit(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(
        config_map_selector("settings"), namespace=env.namespace, revisionHistoryLimit=1
    )
    async with env.controlling(), env.reporting():
        await env.completed(key, a, index="0")
        for number in (1, 2):
            await env.config_map("settings", f"value-{number}")
            await env.completed(key, a, index=str(number))
            (snapshot,) = await env.resource_snapshots(key)
            assert snapshot.name == f"{key.name}-{number}-snapshot"


async def test_changes_are_collected(env: PlacementEnv) -> None:
    """Two groups of snapshots are created at least the configured time apart."""
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    delays = Delays(collection=timedelta(seconds=2), interval=timedelta(seconds=4))
    async with env.controlling(settings=PlacementSettings(delays=delays)), env.reporting():
        await env.completed(key, a, index="0")
        for value in ("2", "3", "4"):
            await env.config_map("settings", value)
        await until(lambda: _is_detected(env, key))
        assert (await env.placement(key)).status.observed_resource_index == "0"
        await env.completed(key, a, index="1")
        first, second = sorted(await env.resource_snapshots(key), key=lambda each: each.name)
        assert second.spec.selected_resources[0]["data"] == {"value": "4"}
        times = [instant_of(each.metadata.creation_timestamp) for each in (first, second)]
        assert times[0] is not None
        assert times[1] is not None
        assert times[1] - times[0] >= timedelta(seconds=4)


async def _is_detected(env: PlacementEnv, key: Key) -> bool:
    snapshots = await env.resource_snapshots(key)
    return any(names.ANNOTATION_NEXT_SNAPSHOT_DETECTED in each.annotations for each in snapshots)


async def test_an_object_that_no_snapshot_can_hold_is_a_mistake(env: PlacementEnv) -> None:
    await env.join("a")
    things: Resource[Untyped] = Resource(
        f"large{env.unique}.example.com", "v1", "things", "Thing", True, Untyped
    )
    await define(env.client, things)
    body = {"apiVersion": things.api_version, "kind": "Thing", "metadata": {"name": "large"}}

    async def is_created() -> bool:
        """Create an object of about the largest size that the server accepts."""
        for size in range(1_572_500, 1_570_000, -250):
            try:
                content = body | {"spec": {"text": "x" * size}}
                await env.client.create(things, content, namespace=env.namespace)
            except NotFound:
                return False  # not served yet
            except ApiError:
                continue  # too large
            return True
        raise AssertionError("the server accepts no large object")

    await until(is_created)
    selector = {"group": things.group, "version": "v1", "kind": "Thing"}
    key = await env.place(selector, namespace=env.namespace)
    async with env.controlling():
        placement = await until(lambda: _with_condition(env, key))
        (condition,) = placement.status.conditions
        assert condition.reason == "InvalidResourceSelectors"
        assert "cannot be stored" in condition.message
        assert await env.resource_snapshots(key) == []


@pytest.mark.parametrize("most_gets", [20, 0], ids=["read alone", "listed"])
async def test_an_object_that_is_nested_too_deeply_is_a_mistake(
    env: PlacementEnv, monkeypatch: pytest.MonkeyPatch, most_gets: int
) -> None:
    """A placement must tell which object keeps all others of it from being updated."""
    monkeypatch.setattr("kubeocean.fleet.selection.reader._MOST_GETS", most_gets)
    (a,) = await env.join("a")
    group = await a_thing(env)
    body = (
        f'{{"apiVersion":"{group}/v1","kind":"Thing","metadata":{{"name":"deep"}},'
        f'"x":{"[" * LEVELS + "]" * LEVELS}}}'
    )
    path = f"/apis/{group}/v1/namespaces/{env.namespace}/things"
    headers = {"Content-Type": "application/json"}
    request = Request("POST", path, body=body.encode(), headers=headers)
    assert (await env.client.transport.send(request)).status == 201
    selector = {"group": group, "version": "v1", "kind": "Thing"}
    key = await env.place(selector, namespace=env.namespace)
    async with env.controlling(), env.reporting():
        placement = await until(lambda: _with_condition(env, key))
        (condition,) = placement.status.conditions
        assert condition.reason == "InvalidResourceSelectors"
        assert f"{env.namespace}/deep is nested too deeply" in condition.message
        await env.client.request("DELETE", f"{path}/deep")
        assert kinds(await env.completed(key, a, index="0")) == [("Thing", "one")]


async def test_a_late_event_of_a_deleted_namespace_does_no_harm(env: PlacementEnv) -> None:
    """Objects vanish before the watch of namespaces shows that their namespace is deleted."""
    for name in ("one", "two"):
        await env.config_map(name)
    key = await env.place(namespace_selector(env.namespace))
    placement = await env.placement(key)
    reader = SelectionReader(env.client)
    namespaces, *others = components_of(reader.parts)
    changed: asyncio.Event = asyncio.Event()

    async def has_read() -> bool:
        try:
            return len(await reader.read(placement)) == 3
        except ServerTimeout:
            return False  # all kinds of a namespace are listed for the first time

    async with running(*others):
        async with running(namespaces):
            await until(has_read)
        reader.on_change(lambda placement: changed.set())
        changed.clear()
        await env.client.delete(NAMESPACES, env.namespace, uid=None)
        await changed.wait()
        assert await reader.read(placement) == []
        assert await reader.read(placement) == [], "the cache still shows the namespace"
