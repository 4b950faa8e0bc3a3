"""Placements while the hub's controllers crash, lose answers and watches, and restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from kubeocean.api.fleet.kinds import NAMESPACED
from kubeocean.errors import ApiError
from kubeocean.runtime.objects import Key
from support.controller_env import Crash, quiet
from support.faults import Crashed, Faults
from support.placement_env import PlacementEnv, config_map_selector, namespace_selector
from support.wait import until

MOST_WRITES = 26  # of the longest scenario below; later crashes do not happen


@asynccontextmanager
async def crashing(env: PlacementEnv, n: int) -> AsyncIterator[Crash]:
    """Run the controllers until their n-th write, which is their last."""
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with env.controlling(faults):
            yield crash


async def is_complete(env: PlacementEnv, key: Key, index: str) -> bool:
    status = (await env.placement(key)).status
    available = [each for each in status.conditions if each.type.endswith("Available")]
    return (
        status.observed_resource_index == index
        and len(status.placement_statuses) == 2
        and bool(available and available[0].status == "True")
    )


async def start(env: PlacementEnv) -> tuple[Key, list[str]]:
    members = await env.join("a", "b")
    await env.config_map("settings")
    chosen = namespace_selector(env.namespace, "NamespaceWithResourceSelectors")
    key = await env.place(chosen, config_map_selector("settings"))
    return key, members


async def crash_once(env: PlacementEnv, n: int, done: Callable[[], Awaitable[bool]]) -> None:
    async with crashing(env, n) as crash:
        await crash.or_until(done)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, MOST_WRITES))
async def test_a_crash_while_placing(env: PlacementEnv, n: int) -> None:
    key, members = await start(env)
    async with env.reporting():
        await crash_once(env, n, lambda: is_complete(env, key, "0"))
        faults = Faults()
        async with env.controlling(faults):
            await env.completed(key, *members, index="0")
            assert len(await env.bindings(key)) == 2
            assert len(await env.resource_snapshots(key)) == 1
            await quiet(faults)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, MOST_WRITES))
async def test_a_crash_while_updating(env: PlacementEnv, n: int) -> None:
    key, members = await start(env)
    async with env.reporting():
        async with env.controlling():
            await env.completed(key, *members, index="0")
        await env.config_map("settings", "2")
        await crash_once(env, n, lambda: is_complete(env, key, "1"))
        faults = Faults()
        async with env.controlling(faults):
            await env.completed(key, *members, index="1")
            for work in await env.works(key):
                assert work.spec.workload.manifests[-1]["data"] == {"value": "2"}
                assert work.metadata.generation == 2
            await quiet(faults)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, MOST_WRITES))
async def test_a_crash_while_deleting(env: PlacementEnv, n: int) -> None:
    key, members = await start(env)

    async def is_empty() -> bool:
        return not await env.exists(key) and not await env.objects_of(key)

    async with env.reporting():
        async with env.controlling():
            await env.completed(key, *members)
        await env.delete(key)
        await crash_once(env, n, is_empty)
        faults = Faults()
        async with env.controlling(faults):
            await until(is_empty)
            await quiet(faults)


async def test_lost_answers_and_bad_watches_end_in_the_same_state(env: PlacementEnv) -> None:
    key, members = await start(env)
    faults = Faults(seed=3)
    faults.lose_answer(times=6)
    faults.answer(503, times=6)
    faults.repeat(1)
    async with env.reporting(), env.controlling(faults):
        await env.completed(key, *members)
        faults.cut()
        await env.config_map("settings", "2")
        faults.lag(0.3)
        await env.completed(key, *members)
        faults.heal()
        faults.cut()
        await quiet(faults)
        status = (await env.placement(key)).status
        assert status.observed_resource_index == "1"


async def test_two_leaders_end_in_the_same_state(env: PlacementEnv) -> None:
    key, members = await start(env)
    plans = Faults(), Faults()

    async def is_empty() -> bool:
        return not await env.exists(key) and not await env.objects_of(key)

    async with env.reporting(), env.controlling(plans[0]), env.controlling(plans[1]):
        await env.completed(key, *members, index="0")
        await env.config_map("settings", "2")
        await env.completed(key, *members, index="1")
        assert len(await env.bindings(key)) == 2
        assert len(await env.resource_snapshots(key)) == 2
        await quiet(*plans)
        await env.delete(key)
        await until(is_empty)
        await quiet(*plans)


async def test_a_restart_of_the_server_loses_nothing(env: PlacementEnv) -> None:
    key, members = await start(env)
    faults = Faults()
    async with env.controlling(faults):
        async with env.reporting():
            await env.completed(key, *members, index="0")
        await env.hub.restart("kube-apiserver")
        await until(lambda: _can_change(env))
        async with env.reporting():
            await env.completed(key, *members, index="1")
            await quiet(faults)


async def _can_change(env: PlacementEnv) -> bool:
    try:
        await env.config_map("settings", "2")
    except ApiError:
        return False
    return True


async def test_the_hub_writes_four_times_for_each_cluster_at_most(
    env: PlacementEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding, a Work and the binding's status; the fourth write is the member's report."""
    # A member that reports later than that costs one more status; here all report in time
    monkeypatch.setattr("kubeocean.fleet.works.controller._PROCESSING_S", 60.0)
    members = await env.join(*(f"m{number}" for number in range(20)))
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    faults = Faults()
    async with env.reporting(), env.controlling(faults):
        await env.completed(key, *members)
        await quiet(faults)
    writes = Counter(
        next(
            plural
            for plural in (
                NAMESPACED.bindings.plural,
                NAMESPACED.placements.plural,
                NAMESPACED.policy_snapshots.plural,
                NAMESPACED.resource_snapshots.plural,
                "works",
            )
            if f"/{plural}" in request.path
        )
        for request in faults.requests
        if request.writes
    )
    assert writes["works"] == 20
    assert writes[NAMESPACED.bindings.plural] == 40
    assert writes[NAMESPACED.policy_snapshots.plural] == 2
    assert writes[NAMESPACED.resource_snapshots.plural] == 1
    assert writes[NAMESPACED.placements.plural] <= 12
