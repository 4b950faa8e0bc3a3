"""The same final state after any fault: a crash after each write, lagging watches, two leaders.

Every case has a binding of its own. Each scenario runs once without any fault, to count its writes;
then with a crash after each of them (except heartbeats and Events, from which no state is read), or
after some of them if the sweep is not thorough; once with watches that lag and repeat, once with
two leaders. A few cases run at a time, because each has the watch events of all others. When all of
these have their final state, only heartbeats are written.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest

from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.transport import Request
from support.binding_env import BindingEnv
from support.crds import install_our_kinds
from support.faults import Crashed, Faults
from support.wait import until

QUIET_S = 20.0
AT_A_TIME, TOGETHER = 6, 14
POLL_EVERY_S = 1.0  # many poll at a time
LABEL = "kubeocean.io/policy-applied"

pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Scenario:
    """The initial state, a change by users, and the check of the final state."""

    prepare: Callable[[BindingEnv, str], Awaitable[None]]
    disturb: Callable[[BindingEnv, str], Awaitable[None]]
    check: Callable[[BindingEnv, str], Awaitable[bool]]


# Lending: two nodes are lent; one is deleted, of the other only half the CPU is lent.


async def prepare_lending(binding_env: BindingEnv, namespace: str) -> None:
    await binding_env.bind()
    await binding_env.lend()
    for name in ("a", "b"):
        await binding_env.add_node(name)


async def disturb_lending(binding_env: BindingEnv, namespace: str) -> None:
    limits = [{"resource": "cpu", "percent": 50}]
    await binding_env.patch_policy(f"{binding_env.name}-policy", resourceLimits=limits)
    gone = await binding_env.worker_api.get(NODES, f"{binding_env.name}-b")
    await binding_env.worker_api.delete(NODES, gone.name, uid=gone.uid)


async def check_lending(binding_env: BindingEnv, namespace: str) -> bool:
    nodes = await binding_env.vnodes()
    assert [node.name for node in nodes] == [vnode(binding_env, "a")]
    (node,) = nodes
    assert not node.deleting
    assert (node.status.allocatable or {})["cpu"] == "4"
    pnode = await binding_env.worker_api.get(NODES, f"{binding_env.name}-a")
    assert node.labels["kubeocean.io/physical-node-uid"] == pnode.uid
    assert pnode.labels.get(LABEL) == f"{binding_env.name}-policy"
    assert len({taint.key for taint in node.spec.taints or ()}) == len(node.spec.taints or ())
    assert (await binding_env.status(f"{binding_env.name}-policy")).leased_nodes == 1
    assert (await binding_env.binding()).status.virtual_nodes == 1
    return True


# Reclaim: the window of a node with two pods closes; one of them tolerates that.


async def prepare_reclaim(binding_env: BindingEnv, namespace: str) -> None:
    await binding_env.bind()
    await binding_env.lend(forceReclaim=True)
    await binding_env.add_node("a")
    tolerations = [{"operator": "Exists"}]
    await binding_env.create_bound_pod(
        namespace, f"{binding_env.name}-stays", vnode(binding_env, "a"), tolerations=tolerations
    )
    await binding_env.create_bound_pod(
        namespace, f"{binding_env.name}-leaves", vnode(binding_env, "a")
    )


async def disturb_reclaim(binding_env: BindingEnv, namespace: str) -> None:
    start = datetime.now(UTC) + timedelta(hours=6)
    window = {"start": f"{start:%H:%M}", "end": f"{start:%H:%M}"}
    await binding_env.patch_policy(f"{binding_env.name}-policy", timeWindows=[window])


async def check_reclaim(binding_env: BindingEnv, namespace: str) -> bool:
    nodes = await binding_env.vnodes()
    assert len(nodes) == 1
    (node,) = nodes
    out = [t for t in node.spec.taints or () if t.key == "kubeocean.io/out-of-time-windows"]
    assert [taint.effect for taint in out] == ["NoExecute"]
    assert await pods(binding_env, namespace) == [f"{binding_env.name}-stays"]
    status = await binding_env.status(f"{binding_env.name}-policy")
    assert status.phase == "Inactive"
    reclaiming = find_condition(status.conditions, "Reclaiming")
    # After a crash before the status was written, there is no progress to write.
    shown = None if reclaiming is None else (reclaiming.status, reclaiming.reason)
    assert shown in (None, ("True", "Tolerated"))  # for as long as the pod that tolerates it runs
    assert status.reclaim is None or status.reclaim.pending == 0
    return True


# Removal: the policy of a node with a pod is deleted.


async def disturb_removal(binding_env: BindingEnv, namespace: str) -> None:
    policy = await binding_env.worker_api.get(
        RESOURCE_LEASING_POLICIES, f"{binding_env.name}-policy"
    )
    await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, policy.name, uid=policy.uid)


async def check_removal(binding_env: BindingEnv, namespace: str) -> bool:
    assert await binding_env.vnodes() == []
    node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-a")
    assert LABEL not in node.labels
    try:
        await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, f"{binding_env.name}-policy")
    except NotFound:
        return (await binding_env.binding()).status.virtual_nodes == 0
    return False


# The end: the binding of a node with a pod is deleted.


async def disturb_end(binding_env: BindingEnv, namespace: str) -> None:
    await binding_env.unbind()


async def check_end(binding_env: BindingEnv, namespace: str) -> bool:
    assert await binding_env.is_unbound()
    assert await binding_env.vnodes() == []
    assert LABEL not in (await binding_env.worker_api.get(NODES, f"{binding_env.name}-a")).labels
    policy = await binding_env.worker_api.get(
        RESOURCE_LEASING_POLICIES, f"{binding_env.name}-policy"
    )
    assert not policy.metadata.finalizers
    return True


SCENARIOS = {
    "lending": Scenario(prepare_lending, disturb_lending, check_lending),
    "reclaim": Scenario(prepare_reclaim, disturb_reclaim, check_reclaim),
    "removal": Scenario(prepare_reclaim, disturb_removal, check_removal),
    "end": Scenario(prepare_reclaim, disturb_end, check_end),
}


def vnode(binding_env: BindingEnv, pnode: str) -> str:
    return f"vnode-{binding_env.cluster_id}-{binding_env.name}-{pnode}"


async def is_lent(binding_env: BindingEnv) -> bool:
    """Whether everything exists that the scenario then changes."""
    nodes, status = (
        await binding_env.vnodes(),
        await binding_env.status(f"{binding_env.name}-policy"),
    )
    return 0 < len(nodes) == status.leased_nodes


async def pods(binding_env: BindingEnv, namespace: str) -> list[str]:
    listing = await binding_env.computing_api.list(
        PODS, namespace, fields=f"spec.nodeName={vnode(binding_env, 'a')}"
    )
    return [pod.name for pod in listing.items if not pod.deleting]


def matters(request: Request) -> bool:
    """Whether a request is a write other than a heartbeat or an Event."""
    heartbeat = "/leases/" in request.path and request.method == "PATCH"
    events = request.path.endswith("/events") or "/events/" in request.path
    return request.writes and not heartbeat and not events


@dataclass
class Case:
    """Run a scenario of a binding under a kind of fault."""

    name: str
    binding_env: BindingEnv
    scenario: Scenario
    plans: list[Faults] = field(default_factory=list)  # of the syncers that run at the end
    error: str = ""
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def written(self) -> int:
        return len(self.writes())

    def writes(self) -> list[Request]:
        """Return the writes that matter, without reports on policies whose binding is gone.

        All syncers of a worker see the policies of ended cases, and the first one reports on them.
        """
        policies, own = RESOURCE_LEASING_POLICIES.path(), f"{self.binding_env.name}-policy"
        return [
            request
            for plan in self.plans
            for request in plan.requests
            if matters(request)
            and (not request.path.startswith(f"{policies}/") or own in request.path)
        ]


@dataclass
class FaultSweep:
    """All cases, of which a few run at a time; `over` ends these."""

    binding_env: BindingEnv
    namespace: str
    step: int  # writes from one crash to the next
    cases: list[Case] = field(default_factory=list)
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def case(self, name: str, scenario: str) -> Case:
        created = Case(f"{scenario}: {name}", self.binding_env.neighbour(), SCENARIOS[scenario])
        self.cases.append(created)
        return created

    async def run_case(self, case: Case, way: Callable[[Case], Awaitable[list[Faults]]]) -> None:
        """Run a case with its fault, then without until its final state, and keep it running."""
        async with AsyncExitStack() as stack:
            try:
                async with self.limit:
                    await case.scenario.prepare(case.binding_env, self.namespace)
                    case.plans = await way(case)
                    for plan in case.plans:
                        running = case.binding_env.syncing(
                            computing_api=plan.wrap, worker_api=plan.wrap
                        )
                        await stack.enter_async_context(running)
                    if case.binding_env.name not in self._disturbed:
                        await until(lambda: is_lent(case.binding_env), every=POLL_EVERY_S)
                        await self.disturb_once(case)
                    await until(lambda: self.is_done(case), within=150, every=POLL_EVERY_S)
            except AssertionError as error:
                case.error = f"{error} {error.__cause__ or ''}"
            case.finished.set()
            await self.over.wait()

    async def disturb_once(self, case: Case) -> None:
        self._disturbed.add(case.binding_env.name)
        await case.scenario.disturb(case.binding_env, self.namespace)

    _disturbed: set[str] = field(default_factory=set)

    # Faults

    async def straight(self, case: Case) -> list[Faults]:
        return [Faults()]

    async def two(self, case: Case) -> list[Faults]:
        return [Faults(), Faults()]

    async def lagging(self, case: Case) -> list[Faults]:
        plan = Faults()
        plan.lag(0.4)
        plan.repeat(1)
        return [plan]

    def crash(self, n: int) -> Callable[[Case], Awaitable[list[Faults]]]:
        async def way(case: Case) -> list[Faults]:
            faults = Faults()
            faults.crash_after_write(n, when=matters)
            try:
                async with case.binding_env.syncing(
                    computing_api=faults.wrap, worker_api=faults.wrap
                ):
                    await until(
                        lambda: faults.crashed or is_lent(case.binding_env), every=POLL_EVERY_S
                    )
                    await self.disturb_once(case)
                    await until(
                        lambda: faults.crashed or self.is_done(case),
                        within=120,
                        every=POLL_EVERY_S,
                    )
            except BaseExceptionGroup as ended:
                assert ended.subgroup(Crashed) is not None, ended
            return [Faults()]

        return way

    async def is_done(self, case: Case) -> bool:
        """Whether the final state is reached, maybe before the last write."""
        return await case.scenario.check(case.binding_env, self.namespace)


async def at_rest(cases: list[Case]) -> dict[str, int]:
    """Return the writes of each case, once their number stays the same."""
    counts: list[dict[str, int]] = [{}]

    async def rests() -> bool:
        before, counts[0] = counts[0], {case.name: case.written() for case in cases}
        writing = [case for case in cases if before.get(case.name) != counts[0][case.name]]
        assert not writing, {
            case.name: [f"{each.method} {each.path} {each.body!r}" for each in last(case)]
            for case in writing
        }
        return True

    await until(rests, every=2.0, within=150)
    return counts[0]


@dataclass
class Results:
    """Results of all cases: errors, number of writes, and writes after the final state."""

    errors: dict[str, str]
    writes: dict[str, int]
    restless: dict[str, list[str]]


Way: TypeAlias = Callable[[Case], Awaitable[list[Faults]]]


async def run_together(sweep: FaultSweep, ways: Sequence[tuple[Case, Way]]) -> dict[str, list[str]]:
    """Run cases until all have their final state; return those that still wrote something."""
    sweep.over = asyncio.Event()
    cases = [case for case, _ in ways]
    async with asyncio.TaskGroup() as group:
        for case, way in ways:
            group.create_task(sweep.run_case(case, way))
        for case in cases:
            await case.finished.wait()
        for case in cases:
            if "lagging" in case.name:
                case.plans[0].rewind(20)
        before = await at_rest(cases)
        await asyncio.sleep(QUIET_S)  # the test needs this time to pass
        restless = {
            case.name: [f"{r.method} {r.path}" for r in last(case)]
            for case in cases
            if case.written() != before[case.name]
        }
        sweep.over.set()
    return restless


async def run_all(sweep: FaultSweep) -> Results:
    straight = {name: sweep.case("straight", name) for name in SCENARIOS}
    restless = await run_together(sweep, [(case, sweep.straight) for case in straight.values()])
    counted = {name: case.written() for name, case in straight.items()}
    ways: list[tuple[Case, Way]] = []
    for first, name in enumerate(SCENARIOS):
        crashes = range(1 + first % sweep.step, counted[name] + 1, sweep.step)
        ways += [
            (sweep.case("lagging", name), sweep.lagging),
            (sweep.case("two leaders", name), sweep.two),
            *((sweep.case(f"crash after write {n}", name), sweep.crash(n)) for n in crashes),
        ]
    for at in range(0, len(ways), TOGETHER):
        restless |= await run_together(sweep, ways[at : at + TOGETHER])
    return Results({case.name: case.error for case in sweep.cases}, counted, restless)


def last(case: Case) -> list[Request]:
    return case.writes()[-4:]


@pytest.fixture(scope="module")
async def results(
    cluster: Cluster, client: Client, worker: Cluster, sample_step: int
) -> AsyncIterator[Results]:
    """Run all cases once."""
    await install_our_kinds(client)
    namespace = f"faults-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def usable() -> bool:
        return bool((await client.list(SERVICE_ACCOUNTS, namespace)).items)

    await until(usable)
    worker_api = worker.client()
    try:
        env = BindingEnv(cluster, worker, client, worker_api)
        yield await run_all(FaultSweep(env, namespace, sample_step))
    finally:
        await worker_api.close()


def failed(results: Results, way: str) -> dict[str, str]:
    chosen = {name: error for name, error in results.errors.items() if way in name}
    assert len(chosen) >= len(SCENARIOS)
    return {name: error for name, error in chosen.items() if error}


async def test_without_a_fault_every_scenario_reaches_its_final_state(results: Results) -> None:
    assert failed(results, "straight") == {}
    assert all(writes >= 8 for writes in results.writes.values()), results.writes


async def test_a_crash_after_any_write_changes_nothing(results: Results) -> None:
    assert failed(results, "crash") == {}


async def test_a_lagging_and_repeating_watch_changes_nothing(results: Results) -> None:
    assert failed(results, "lagging") == {}


async def test_two_leaders_end_where_one_does(results: Results) -> None:
    assert failed(results, "two leaders") == {}


async def test_a_settled_binding_writes_only_heartbeats(results: Results) -> None:
    assert results.restless == {}
