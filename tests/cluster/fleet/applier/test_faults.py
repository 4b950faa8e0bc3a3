"""Crashes after each write, bad watches, outages: the same end state, and then no writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kubeocean.api.fleet.names import FINALIZER_WORK
from kubeocean.local.assets import Assets
from kubeocean.runtime.objects import Json
from support.applier_env import EVENTS_ONLY, QUICK, ApplierEnv, Run
from support.background import running
from support.control_planes import plane
from support.faults import Faults, reads, writes
from support.wait import until

# Writes of an applier, in their order; a crash after each of them
CREATE = (
    "finalizer",
    "AppliedWork",
    "write-ahead",
    "first object",
    "second object",
    "AppliedWork status",
    "Work status",
)
UPDATE = (
    "write-ahead",
    "left-over",
    "changed object",
    "new object",
    "AppliedWork status",
    "Work status",
)
DELETE = ("AppliedWork", "finalizer")


async def create(env: ApplierEnv) -> None:
    await env.put_work(env.config_map("a", k="1"), env.config_map("b", k="1"))


async def update(env: ApplierEnv) -> None:
    await env.put_work(env.config_map("b", k="2"), env.config_map("c", k="2"))


async def is_created(env: ApplierEnv, data: Json) -> None:
    """Whether exactly these objects are placed and reported."""

    async def matches() -> bool:
        placed = {name: await env.placed(name) for name in "abc"}
        seen = {name: each["data"] for name, each in placed.items() if each is not None}
        assert seen == data
        owner, work = await env.applied_work(), await env.work()
        assert owner and work
        uid = owner["metadata"]["uid"]
        for each in placed.values():
            if each is not None:
                assert [one["uid"] for one in each["metadata"]["ownerReferences"]] == [uid]
        listed = {each["name"]: each.get("uid") for each in owner["status"]["appliedResources"]}
        assert listed == {
            name: each["metadata"]["uid"] for name, each in placed.items() if each is not None
        }
        assert work["metadata"]["finalizers"] == [FINALIZER_WORK]
        assert await env.manifest_reasons() == ["Applied"] * len(data)
        assert (await env.conditions())["Available"] == ("True", "AllManifestsAvailable")
        return True

    await until(matches)


FIRST = {"a": {"k": "1"}, "b": {"k": "1"}}
SECOND = {"b": {"k": "2"}, "c": {"k": "2"}}


@pytest.mark.parametrize("n", range(1, len(CREATE) + 1), ids=lambda n: CREATE[n - 1])
async def test_a_crash_while_a_work_is_placed(env: ApplierEnv, faults: Faults, n: int) -> None:
    await create(env)
    faults.crash_after_write(n)
    await env.run_until_crash(faults)
    async with env.running() as run:
        await is_created(env, FIRST)
        await run.is_quiet()


@pytest.mark.parametrize("n", range(1, len(UPDATE) + 1), ids=lambda n: UPDATE[n - 1])
async def test_a_crash_while_a_work_is_changed(env: ApplierEnv, faults: Faults, n: int) -> None:
    await create(env)
    async with env.running():
        await is_created(env, FIRST)
    await update(env)
    faults.crash_after_write(n)
    await env.run_until_crash(faults)
    async with env.running() as run:
        await is_created(env, SECOND)
        await run.is_quiet()


@pytest.mark.parametrize("n", range(1, len(DELETE) + 1), ids=lambda n: DELETE[n - 1])
async def test_a_crash_while_a_work_is_deleted(env: ApplierEnv, faults: Faults, n: int) -> None:
    await create(env)
    async with env.running():
        await is_created(env, FIRST)
    await env.delete_work()
    faults.crash_after_write(n)
    await env.run_until_crash(faults)
    async with env.running() as run:
        await env.until_gone(env.work)
        assert await env.applied_work() is None
        assert await env.placed("a") is None
        await run.is_quiet()


async def test_a_pass_that_is_interrupted_is_made_up_for(env: ApplierEnv, faults: Faults) -> None:
    """The same applier runs again, and remembers results of the first run."""
    hub = env.hub_cluster.client(wrap=faults.wrap)
    member = env.member_cluster.client(wrap=faults.wrap)
    applier = env.applier(hub, member, backoff=EVENTS_ONLY)
    async with running(applier):
        await create(env)
        await is_created(env, FIRST)
        await asyncio.sleep(1.5)  # until its results are settled
        faults.delay(60.0, when=lambda request: reads(request) and request.path.endswith("/b"))
        await env.put_work(env.config_map("a", k="2"), env.config_map("b", k="2"))

        async def has_begun() -> bool:
            placed = await env.placed("a")
            return placed is not None and placed["data"] == {"k": "2"}

        await until(has_begun)
    faults.heal()
    async with running(applier):
        await is_created(env, {"a": {"k": "2"}, "b": {"k": "2"}})
    await hub.close()
    await member.close()


async def whole_life(env: ApplierEnv, run: Run) -> None:
    await create(env)
    await is_created(env, FIRST)
    await env.edit({"data": {"k": "drifted"}}, "a")
    await is_created(env, FIRST)
    await update(env)
    await is_created(env, SECOND)
    run.faults.heal()
    await run.is_quiet()
    await env.delete_work()
    await env.until_gone(env.work)
    assert await env.placed("b") is None


@pytest.mark.parametrize("fault", ["lag", "repeat", "lost answers", "refused writes", "rewind"])
async def test_faults_on_the_way_change_nothing(
    env: ApplierEnv, faults: Faults, fault: str
) -> None:
    match fault:
        case "lag":
            faults.lag(1.0)
        case "repeat":
            faults.repeat(2)
        case "lost answers":
            faults.lose_answer(times=4)
        case "refused writes":
            faults.answer(503, times=15, when=writes)
    async with env.running(faults) as run:
        if fault == "rewind":
            await create(env)
            await is_created(env, FIRST)
            faults.rewind(50)
            faults.cut()
        await whole_life(env, run)


async def test_an_outage_of_the_hub_ends(env: ApplierEnv, faults: Faults) -> None:
    async with env.running(faults) as run:
        await create(env)
        await is_created(env, FIRST)
        faults.partition()
        await update(env)
        await env.edit({"data": {"k": "drifted"}}, "b")
        await asyncio.sleep(2.0)
        before = await env.work()
        assert before
        assert before["status"]["conditions"][0]["observedGeneration"] == 1
        faults.rejoin()
        await is_created(env, SECOND)
        await run.is_quiet()


@pytest.mark.slow
async def test_a_restart_of_the_members_server_changes_no_status(
    env: ApplierEnv, assets: Assets, cluster_roots: Path
) -> None:
    """A member of its own, since the server is shut down."""
    async with (
        plane("member", assets, cluster_roots) as member,
        env.with_member(member) as env,
        env.running(backoff=QUICK) as run,
    ):
        await create(env)
        await is_created(env, FIRST)
        before = await env.work()
        await member.kill("kube-apiserver")
        await asyncio.sleep(2.0)
        await update(env)
        await asyncio.sleep(2.0)
        during = await env.work()
        assert before and during
        assert during["status"] == before["status"]
        await member.restart("kube-apiserver")
        await is_created(env, SECOND)
        await env.edit({"data": {"k": "drifted"}}, "b")
        await is_created(env, SECOND)
        await run.is_quiet()
