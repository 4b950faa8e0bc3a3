"""Faults on the scenario of a pod: crashes, stale watches, two leaders, lost answers, restarts.

The scenario: two pods with a ConfigMap, a Secret and a token are created; one is labelled, the
other one is deleted. In the end the first runs once, with its label, and nothing is left of the
other. All faults are tried at the same time, each with a binding of its own; then all syncers keep
running, and for a while nothing may be written. Unless the sweep is thorough, only some of the
writes have a crash after them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pytest

from kubeocean.errors import ApiError
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, SECRETS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request
from kubeocean.syncer.pods.controller import PodController
from support.crds import install_our_kinds
from support.faults import Crashed, Faults, watches
from support.pod_env import PodEnv, settled, writes
from support.private_clusters import private_binding_env
from support.wait import until

# The first test waits for the fixture, which runs all cases.
pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(1200)]

QUIET_S = 20.0
AT_A_TIME = 10  # cases that run their scenario
POLL_EVERY_S = 0.5
PATIENCE_S = 240.0
POD_WITH_COPIES: Json = {
    "containers": [
        {
            "name": "c",
            "image": "none",
            "envFrom": [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}],
        }
    ],
    "volumes": [
        {
            "name": "token",
            "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
        }
    ],
}


@dataclass
class Case:
    """A binding and a fault; `plans` are those of its syncers that keep running."""

    name: str
    env: PodEnv
    pod: Json = field(default_factory=lambda: POD_WITH_COPIES)
    plans: list[Faults] = field(default_factory=list)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""

    async def syncing(
        self, computing_api: Faults, worker_api: Faults | None = None
    ) -> PodController:
        """Run a syncer until all cases are over; without `worker_api`, one plan is for both
        clusters."""
        self.plans += [computing_api] if worker_api is None else [computing_api, worker_api]
        pods = self.env.pods(computing_api=computing_api, worker_api=worker_api or computing_api)
        return await self.stack.enter_async_context(pods)

    def sent(self) -> list[str]:
        """Return all requests except watches and probes of the worker."""
        requests = [request for plan in self.plans for request in plan.requests]
        relevant = (r for r in requests if not watches(r) and r.path != NODES.path())
        return [f"{r.method} {r.path}" for r in relevant]


Scenario: TypeAlias = Callable[[Case], Awaitable[None]]


# Actions of users


async def prepare(env: PodEnv, pod: Json) -> None:
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        await env.computing_api.create(
            kind, {"metadata": {"name": name, "namespace": env.namespace}}
        )
    for name in ("stays", "goes"):
        await env.run(name, **pod)


async def act_as_users(env: PodEnv, *, over: Callable[[], bool] = lambda: False) -> None:
    """Label and delete pods, each step when the last one shows; or at once when `over` is true."""

    async def shows(probe: Callable[[], Awaitable[object]]) -> None:
        async def either() -> bool:
            return over() or bool(await probe())

        await until(either, within=PATIENCE_S, every=POLL_EVERY_S)

    for name in ("stays", "goes"):
        await shows(lambda name=name: env.runs(name))
    stays, goes = await env.vpod("stays"), await env.vpod("goes")
    assert stays is not None
    assert goes is not None
    await env.patch_above(stays, metadata={"labels": {"changed": "yes"}})
    await shows(lambda: labelled(env))
    await env.delete(goes)
    await shows(lambda: env.gone("goes"))


async def labelled(env: PodEnv) -> bool:
    return (await env.ppod("stays")).labels.get("changed") == "yes"


async def is_complete(env: PodEnv) -> bool:
    await env.runs("stays")
    assert await env.gone("goes")
    assert len(await env.ppods()) == 1
    return await labelled(env)


# Faults


async def without_faults(case: Case) -> None:
    await case.syncing(Faults())
    await act_as_users(case.env)


def crash(n: int) -> Scenario:
    """Return the scenario in which a syncer crashes after its n-th write and another continues."""

    async def scenario(case: Case) -> None:
        faults = Faults()
        faults.crash_after_write(n)
        with suppress(Crashed, BaseExceptionGroup):
            async with case.env.pods(computing_api=faults, worker_api=faults):
                await act_as_users(case.env, over=lambda: faults.crashed)
        # The number of Events varies: a later write may never be reached.
        await case.syncing(Faults())

    return scenario


def stale(*, computing_s: float = 0.0, worker_s: float = 0.0) -> Scenario:
    """Return the scenario in which watches are late and show every event twice."""

    async def scenario(case: Case) -> None:
        computing_api, worker_api = Faults(), Faults()
        for faults, seconds in ((computing_api, computing_s), (worker_api, worker_s)):
            faults.lag(seconds)
            faults.repeat(1)
        await case.syncing(computing_api, worker_api)
        await act_as_users(case.env)
        for faults in (computing_api, worker_api):
            faults.rewind(50)

    return scenario


def missed(seed: int) -> Scenario:
    """Lose half of all events for a while; then both clusters are listed again."""

    async def scenario(case: Case) -> None:
        both = computing_api, worker_api = Faults(seed), Faults(seed + 100)
        pods = await case.syncing(computing_api, worker_api)
        await until(lambda: pods.clusters.vpods.has_synced and pods.clusters.ppods.has_synced)
        for faults in both:
            faults.lose(0.5)
        acting = asyncio.create_task(
            act_as_users(case.env, over=lambda: computing_api.watch_loss == 0)
        )
        await asyncio.sleep(1.5)  # the time in which events are lost
        for faults in both:
            faults.heal()
        await acting
        for faults in both:
            faults.answer(410, times=30, when=watches, reason="Expired")
            faults.cut()
        await until(lambda: is_complete(case.env), within=PATIENCE_S, every=POLL_EVERY_S)
        for faults in both:
            faults.heal()

    return scenario


async def two_leaders(case: Case) -> None:
    for _ in range(2):
        await case.syncing(Faults())
    await act_as_users(case.env)


async def two_leaders_of_which_one_sees_the_past(case: Case) -> None:
    old = Faults()
    pods = await case.syncing(old)
    await until(lambda: pods.clusters.vpods.has_synced and pods.clusters.ppods.has_synced)
    old.lag(3.0)
    await case.syncing(Faults())
    await act_as_users(case.env)
    old.heal()


async def lost_answers(case: Case) -> None:
    computing_api, worker_api = Faults(), Faults()
    computing_api.lose_answer(times=2, when=_patches)
    worker_api.lose_answer(times=2, when=_creates_pods)
    await case.syncing(computing_api, worker_api)
    await act_as_users(case.env)


def _creates_pods(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods")


def _patches(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def restarted_servers(case: Case) -> None:
    env = case.env
    await case.syncing(Faults())
    for name in ("stays", "goes"):
        await until(lambda name=name: env.runs(name))
    await _restart(env.worker)
    goes = await env.vpod("goes")
    assert goes is not None
    await env.delete(goes)
    await _restart(env.computing)
    await until(lambda: _patched(env, "stays"), within=PATIENCE_S)
    late = await env.run("late", **case.pod)
    await _restart(env.worker)
    await until(lambda: env.runs("late"), within=PATIENCE_S)
    await env.delete(late)
    await until(lambda: env.gone("late"), within=PATIENCE_S)


async def _restart(cluster: Cluster) -> None:
    await cluster.kill("kube-apiserver")
    await cluster.restart("kube-apiserver")


async def _patched(env: PodEnv, name: str) -> bool:
    pod = await env.vpod(name)
    assert pod is not None
    await env.patch_above(pod, metadata={"labels": {"changed": "yes"}})
    return True


SCENARIOS: dict[str, Scenario] = {
    "a stale watch of the computing cluster": stale(computing_s=1.5),
    "a stale watch of the worker": stale(worker_s=1.5),
    "stale watches of both clusters": stale(computing_s=0.3, worker_s=0.3),
    "missed events 1": missed(1),
    "missed events 2": missed(2),
    "two leaders": two_leaders,
    "two leaders of which one sees the past": two_leaders_of_which_one_sees_the_past,
    "lost answers": lost_answers,
}


# All cases


@dataclass
class Ends:
    """Results of all cases: errors, duplicate pods, and requests in the quiet time."""

    errors: dict[str, str]
    writes: int
    duplicates: dict[str, dict[str, int]]
    late_requests: dict[str, list[str]]


@dataclass
class Sweep:
    """All cases; `over` stops their syncers."""

    base: PodEnv
    step: int  # from one write with a crash to the next
    cases: list[Case] = field(default_factory=list)
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def case(self, name: str, env: PodEnv | None = None, pod: Json | None = None) -> Case:
        own = env or replace(self.base.neighbour(), pnodes=self.base.pnodes)
        self.cases.append(Case(name, own, pod or POD_WITH_COPIES))
        return self.cases[-1]

    async def run(self, case: Case, scenario: Scenario) -> None:
        """Run a scenario until it is complete, and keep its syncers running."""
        async with case.stack:
            try:
                async with self.limit:
                    if not case.env.namespace:
                        await case.env.open()
                    await prepare(case.env, case.pod)
                    await scenario(case)
                    await until(
                        lambda: is_complete(case.env), within=PATIENCE_S, every=POLL_EVERY_S
                    )
            except (AssertionError, ApiError) as error:
                case.error = f"{error} {error.__cause__ or ''}"
            case.finished.set()
            await self.over.wait()

    async def finished(self) -> None:
        for case in self.cases:
            await case.finished.wait()

    async def at_rest(self) -> dict[str, int]:
        """Return the number of requests of each case, once it does not grow any more."""
        seen: list[dict[str, int]] = [{}]

        async def rests() -> bool:
            before, seen[0] = seen[0], {case.name: len(case.sent()) for case in self.cases}
            return before == seen[0]

        await until(rests, every=3.0, within=PATIENCE_S)
        return seen[0]


async def run(sweep: Sweep, assets: Assets, root: Path) -> Ends:
    before = sweep.base.worker.audit.mark()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        first = sweep.case("no fault")
        group.create_task(sweep.run(first, without_faults))
        env = await stack.enter_async_context(private_binding_env(assets, root))
        # Without controllers there are no service accounts.
        pod = {"containers": POD_WITH_COPIES["containers"]}
        restarts = sweep.case("restarted servers", env, pod)
        group.create_task(sweep.run(restarts, restarted_servers))
        await first.finished.wait()
        await settled(*first.plans)
        wrote = sum(plan.writes for plan in first.plans)
        for name, scenario in SCENARIOS.items():
            group.create_task(sweep.run(sweep.case(name), scenario))
        for n in range(1, wrote + 1, sweep.step):
            group.create_task(sweep.run(sweep.case(f"crash after write {n}"), crash(n)))
        await sweep.finished()
        sent = await sweep.at_rest()
        await asyncio.sleep(QUIET_S)  # the test needs this time to pass
        late_requests = {case.name: case.sent()[sent[case.name] :] for case in sweep.cases}
        twice = duplicates(sweep, before)
        sweep.over.set()
    errors = {case.name: case.error for case in sweep.cases}
    return Ends(
        errors, wrote, twice, {name: lines for name, lines in late_requests.items() if lines}
    )


def duplicates(sweep: Sweep, since: int) -> dict[str, dict[str, int]]:
    """Return physical pods that were created more than once, or under an unexpected name."""
    made: Counter[tuple[str, str]] = Counter()
    for cluster, mark in {(case.env.worker, since) for case in sweep.cases}:
        own = cluster is not sweep.base.worker
        made.update(
            (request.namespace, request.name)
            for request in cluster.audit.requests(since=0 if own else mark)
            if (request.verb, request.resource, request.code) == ("create", "pods", 201)
        )
    wrong: dict[str, dict[str, int]] = {}
    for case in sweep.cases:
        known = {case.env.ppod_name(name) for name in ("stays", "goes", "late")}
        of = {name: count for (mount, name), count in made.items() if mount == case.env.mount}
        bad = {name: count for name, count in of.items() if count > 1 or name not in known}
        if bad or not of:
            wrong[case.name] = bad
    return wrong


@pytest.fixture(scope="module")
async def ends(
    assets: Assets,
    cluster_roots: Path,
    cluster: Cluster,
    client: Client,
    worker: Cluster,
    simulated: list[str],
    sample_step: int,
) -> AsyncIterator[Ends]:
    """Run all cases, once."""
    await install_our_kinds(client)
    worker_api = worker.client()
    try:
        base = PodEnv(cluster, worker, client, worker_api, pnodes=simulated)
        yield await run(Sweep(base, sample_step), assets, cluster_roots)
    finally:
        await worker_api.close()


def failed(ends: Ends, scenario: str) -> dict[str, str]:
    chosen = {name: error for name, error in ends.errors.items() if name.startswith(scenario)}
    assert chosen
    return {name: error for name, error in chosen.items() if error}


async def test_a_crash_after_any_write_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "no fault") == {}
    assert ends.writes > 12
    assert failed(ends, "crash") == {}


async def test_a_stale_watch_of_either_cluster_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "a stale watch of the computing cluster") == {}
    assert failed(ends, "a stale watch of the worker") == {}
    assert failed(ends, "stale watches of both clusters") == {}


async def test_missed_events_change_nothing_once_both_clusters_are_listed_again(ends: Ends) -> None:
    assert failed(ends, "missed events") == {}


async def test_two_active_leaders_end_where_one_does(ends: Ends) -> None:
    assert failed(ends, "two leaders") == {}


async def test_lost_answers_change_nothing(ends: Ends) -> None:
    assert failed(ends, "lost answers") == {}


async def test_restarted_servers_change_nothing(ends: Ends) -> None:
    assert failed(ends, "restarted servers") == {}


async def test_every_physical_pod_was_created_once_under_every_fault(ends: Ends) -> None:
    assert ends.duplicates == {}


async def test_both_clusters_match_in_the_end_and_nothing_is_written_for_20_s(ends: Ends) -> None:
    assert ends.late_requests == {}


async def test_a_frozen_watch_of_the_worker_duplicates_and_loses_no_pod(pod_env: PodEnv) -> None:
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as pods:
        await until(lambda: pods.clusters.ppods.has_synced)
        worker_api.freeze()
        pod = await pod_env.run()
        await until(lambda: pod_env.ppods("web"))
        await asyncio.sleep(7)  # longer than a reconcile waits for the cache
        assert (await pod_env.shows(phase="Pending")).status.reason == ""
        await pod_env.delete(pod)
        worker_api.thaw()
        await until(pod_env.gone)
        await settled(computing_api, worker_api)
    assert writes(worker_api).count("POST pods") == 1
