"""The same end whatever happens on the way: crashes after each write, lagging watches, two leaders.

Every scenario happens to a binding of its own: once without any fault, to see how many writes there
are, then with a crash after each of them (heartbeats and Events leave nothing behind that anybody
starts from), or after some if the sweep is not thorough; once with watches that lag and repeat,
once with two leaders. Some go on at a time, and when everything of these is as it should be,
nothing is written any more but heartbeats. All at a time would be too many: each hears of all that
happens to the others.
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

from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.transport import Request
from oceans import Sea
from ourkinds import install_our_kinds
from waiting import until

QUIET_S = 20.0
AT_A_TIME, TOGETHER = 6, 14
LOOK_EVERY_S = 1.0  # many look at a time
MARK = "kubeocean.io/policy-applied"

pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Scenario:
    """What there is at first, what people do then, and what comes of it."""

    prepare: Callable[[Sea, str], Awaitable[None]]
    disturb: Callable[[Sea, str], Awaitable[None]]
    check: Callable[[Sea, str], Awaitable[bool]]


# Lending: two nodes are lent; one leaves, of the other only half the CPU is lent.


async def prepare_lending(sea: Sea, namespace: str) -> None:
    await sea.bind()
    await sea.lend()
    for name in ("a", "b"):
        await sea.add_node(name)


async def disturb_lending(sea: Sea, namespace: str) -> None:
    limits = [{"resource": "cpu", "percent": 50}]
    await sea.patch_policy(f"{sea.name}-policy", resourceLimits=limits)
    gone = await sea.below.get(NODES, f"{sea.name}-b")
    await sea.below.delete(NODES, gone.name, uid=gone.uid)


async def check_lending(sea: Sea, namespace: str) -> bool:
    nodes = await sea.vnodes()
    assert [node.name for node in nodes] == [vnode(sea, "a")]
    (node,) = nodes
    assert not node.deleting
    assert (node.status.allocatable or {})["cpu"] == "4"
    pnode = await sea.below.get(NODES, f"{sea.name}-a")
    assert node.labels["kubeocean.io/physical-node-uid"] == pnode.uid
    assert pnode.labels.get(MARK) == f"{sea.name}-policy"
    assert len({taint.key for taint in node.spec.taints or ()}) == len(node.spec.taints or ())
    assert (await sea.status(f"{sea.name}-policy")).leased_nodes == 1
    assert (await sea.binding()).status.virtual_nodes == 1
    return True


# Reclaim: the window of a node with two pods closes; one of them tolerates that.


async def prepare_reclaim(sea: Sea, namespace: str) -> None:
    await sea.bind()
    await sea.lend(forceReclaim=True)
    await sea.add_node("a")
    tolerations = [{"operator": "Exists"}]
    await sea.guest(namespace, f"{sea.name}-stays", vnode(sea, "a"), tolerations=tolerations)
    await sea.guest(namespace, f"{sea.name}-leaves", vnode(sea, "a"))


async def disturb_reclaim(sea: Sea, namespace: str) -> None:
    start = datetime.now(UTC) + timedelta(hours=6)
    window = {"start": f"{start:%H:%M}", "end": f"{start:%H:%M}"}
    await sea.patch_policy(f"{sea.name}-policy", timeWindows=[window])


async def check_reclaim(sea: Sea, namespace: str) -> bool:
    nodes = await sea.vnodes()
    assert len(nodes) == 1
    (node,) = nodes
    out = [t for t in node.spec.taints or () if t.key == "kubeocean.io/out-of-time-windows"]
    assert [taint.effect for taint in out] == ["NoExecute"]
    assert await pods(sea, namespace) == [f"{sea.name}-stays"]
    status = await sea.status(f"{sea.name}-policy")
    assert status.phase == "Inactive"
    reclaiming = find_condition(status.conditions, "Reclaiming")
    # Who crashed before he told of it leaves nothing to tell.
    assert reclaiming is None or reclaiming.status == "False"
    assert status.reclaim is None or status.reclaim.pending == 0
    return True


# Removal: the policy of a node with a pod is deleted.


async def disturb_removal(sea: Sea, namespace: str) -> None:
    policy = await sea.below.get(RESOURCE_LEASING_POLICIES, f"{sea.name}-policy")
    await sea.below.delete(RESOURCE_LEASING_POLICIES, policy.name, uid=policy.uid)


async def check_removal(sea: Sea, namespace: str) -> bool:
    assert await sea.vnodes() == []
    node = await sea.below.get(NODES, f"{sea.name}-a")
    assert MARK not in node.labels
    try:
        await sea.below.get(RESOURCE_LEASING_POLICIES, f"{sea.name}-policy")
    except NotFound:
        return (await sea.binding()).status.virtual_nodes == 0
    return False


# The end: the binding of a node with a pod is deleted.


async def disturb_end(sea: Sea, namespace: str) -> None:
    await sea.unbind()


async def check_end(sea: Sea, namespace: str) -> bool:
    assert await sea.is_unbound()
    assert await sea.vnodes() == []
    assert MARK not in (await sea.below.get(NODES, f"{sea.name}-a")).labels
    policy = await sea.below.get(RESOURCE_LEASING_POLICIES, f"{sea.name}-policy")
    assert not policy.metadata.finalizers
    return True


SCENARIOS = {
    "lending": Scenario(prepare_lending, disturb_lending, check_lending),
    "reclaim": Scenario(prepare_reclaim, disturb_reclaim, check_reclaim),
    "removal": Scenario(prepare_reclaim, disturb_removal, check_removal),
    "end": Scenario(prepare_reclaim, disturb_end, check_end),
}


def vnode(sea: Sea, pnode: str) -> str:
    return f"vnode-{sea.cluster_id}-{sea.name}-{pnode}"


async def is_lent(sea: Sea) -> bool:
    """Whether everything is there that people then change."""
    nodes, status = await sea.vnodes(), await sea.status(f"{sea.name}-policy")
    return 0 < len(nodes) == status.leased_nodes


async def pods(sea: Sea, namespace: str) -> list[str]:
    listing = await sea.above.list(PODS, namespace, fields=f"spec.nodeName={vnode(sea, 'a')}")
    return [pod.name for pod in listing.items if not pod.deleting]


def matters(request: Request) -> bool:
    """A write that is not a heartbeat, nor an Event."""
    heartbeat = "/leases/" in request.path and request.method == "PATCH"
    events = request.path.endswith("/events") or "/events/" in request.path
    return request.writes and not heartbeat and not events


@dataclass
class Case:
    """One binding, one scenario, one way to go wrong."""

    name: str
    sea: Sea
    scenario: Scenario
    plans: list[Faults] = field(default_factory=list)  # of those who are there at the end
    error: str = ""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def written(self) -> int:
        return sum(matters(request) for plan in self.plans for request in plan.requests)


@dataclass
class Voyage:
    """All cases, some on their way at a time; `over` lets these go."""

    sea: Sea
    namespace: str
    step: int  # from one write that is crashed after to the next
    cases: list[Case] = field(default_factory=list)
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def case(self, name: str, scenario: str) -> Case:
        made = Case(f"{scenario}: {name}", self.sea.neighbour(), SCENARIOS[scenario])
        self.cases.append(made)
        return made

    async def sail(self, case: Case, way: Callable[[Case], Awaitable[list[Faults]]]) -> None:
        """Go that way, then on with whoever is left until all is as it should be, and stay."""
        async with AsyncExitStack() as stack:
            try:
                async with self.limit:
                    await case.scenario.prepare(case.sea, self.namespace)
                    case.plans = await way(case)
                    for plan in case.plans:
                        running = case.sea.syncing(above=plan.wrap, below=plan.wrap)
                        await stack.enter_async_context(running)
                    if case.sea.name not in self._disturbed:
                        await until(lambda: is_lent(case.sea), every=LOOK_EVERY_S)
                        await self.disturb_once(case)
                    await until(lambda: self.is_done(case), within=150, every=LOOK_EVERY_S)
            except AssertionError as error:
                case.error = f"{error} {error.__cause__ or ''}"
            case.arrived.set()
            await self.over.wait()

    async def disturb_once(self, case: Case) -> None:
        self._disturbed.add(case.sea.name)
        await case.scenario.disturb(case.sea, self.namespace)

    _disturbed: set[str] = field(default_factory=set)

    # Ways to go

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
                async with case.sea.syncing(above=faults.wrap, below=faults.wrap):
                    await until(lambda: faults.crashed or is_lent(case.sea), every=LOOK_EVERY_S)
                    await self.disturb_once(case)
                    await until(
                        lambda: faults.crashed or self.is_done(case),
                        within=120,
                        every=LOOK_EVERY_S,
                    )
            except BaseExceptionGroup as ended:
                assert ended.subgroup(Crashed) is not None, ended
            return [Faults()]

        return way

    async def is_done(self, case: Case) -> bool:
        """Whether all is as it should be, perhaps before it came to the last write."""
        return await case.scenario.check(case.sea, self.namespace)


async def at_rest(cases: list[Case]) -> dict[str, int]:
    """What each has written, once nobody adds to it."""
    seen: list[dict[str, int]] = [{}]

    async def rests() -> bool:
        before, seen[0] = seen[0], {case.name: case.written() for case in cases}
        return before == seen[0]

    await until(rests, every=2.0, within=150)
    return seen[0]


@dataclass
class Ends:
    """How all cases ended: what went wrong with each, and who wrote when nobody should."""

    errors: dict[str, str]
    writes: dict[str, int]
    restless: dict[str, list[str]]


Way: TypeAlias = Callable[[Case], Awaitable[list[Faults]]]


async def leg(voyage: Voyage, ways: Sequence[tuple[Case, Way]]) -> dict[str, list[str]]:
    """Sail together, until all have arrived and rested; who wrote something nevertheless."""
    voyage.over = asyncio.Event()
    cases = [case for case, _ in ways]
    async with asyncio.TaskGroup() as group:
        for case, way in ways:
            group.create_task(voyage.sail(case, way))
        for case in cases:
            await case.arrived.wait()
        for case in cases:
            if "lagging" in case.name:
                case.plans[0].rewind(20)
        before = await at_rest(cases)
        await asyncio.sleep(QUIET_S)  # the passing of time is what is tested
        restless = {
            case.name: [f"{r.method} {r.path}" for r in last(case)]
            for case in cases
            if case.written() != before[case.name]
        }
        voyage.over.set()
    return restless


async def sail(voyage: Voyage) -> Ends:
    straight = {name: voyage.case("straight", name) for name in SCENARIOS}
    restless = await leg(voyage, [(case, voyage.straight) for case in straight.values()])
    counted = {name: case.written() for name, case in straight.items()}
    ways: list[tuple[Case, Way]] = []
    for first, name in enumerate(SCENARIOS):
        crashes = range(1 + first % voyage.step, counted[name] + 1, voyage.step)
        ways += [
            (voyage.case("lagging", name), voyage.lagging),
            (voyage.case("two leaders", name), voyage.two),
            *((voyage.case(f"crash after write {n}", name), voyage.crash(n)) for n in crashes),
        ]
    for at in range(0, len(ways), TOGETHER):
        restless |= await leg(voyage, ways[at : at + TOGETHER])
    return Ends({case.name: case.error for case in voyage.cases}, counted, restless)


def last(case: Case) -> list[Request]:
    return [r for plan in case.plans for r in plan.requests if matters(r)][-4:]


@pytest.fixture(scope="module")
async def ends(
    cluster: Cluster, client: Client, worker: Cluster, sample_step: int
) -> AsyncIterator[Ends]:
    """All of it, once."""
    await install_our_kinds(client)
    namespace = f"faults-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def usable() -> bool:
        return bool((await client.list(SERVICE_ACCOUNTS, namespace)).items)

    await until(usable)
    below = worker.client()
    try:
        yield await sail(Voyage(Sea(cluster, worker, client, below), namespace, sample_step))
    finally:
        await below.close()


def failed(ends: Ends, way: str) -> dict[str, str]:
    chosen = {name: error for name, error in ends.errors.items() if way in name}
    assert len(chosen) >= len(SCENARIOS)
    return {name: error for name, error in chosen.items() if error}


async def test_without_a_fault_all_is_as_it_should_be(ends: Ends) -> None:
    assert failed(ends, "straight") == {}
    assert all(writes >= 8 for writes in ends.writes.values()), ends.writes


async def test_a_crash_after_any_write_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "crash") == {}


async def test_a_lagging_and_repeating_watch_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "lagging") == {}


async def test_two_leaders_end_where_one_does(ends: Ends) -> None:
    assert failed(ends, "two leaders") == {}


async def test_then_nothing_is_written_but_heartbeats(ends: Ends) -> None:
    assert ends.restless == {}
