"""The same end whatever happens on the way: crashes, stale watches, two leaders, restarts.

The scenario: two pods with a ConfigMap, a Secret and a token are created; one is labelled, the
other one is deleted. In the end the first runs once, with its label, and nothing is left of the
other. All ways there are gone at a time, each by a binding of its own; then everybody stays, and
for a while nothing is written any more. Unless the sweep is thorough, only some of the writes have
a crash after them.
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
from kubeocean.local.faults import Crashed, Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, SECRETS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request
from kubeocean.syncer.topdown.pods import Pods
from loneseas import lone_sea
from ourkinds import install_our_kinds
from podseas import PodSea, settled, writes
from waiting import until

# The first one waits for all of it.
pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(1200)]

QUIET_S = 20.0
AT_A_TIME = 10  # of those that are on their way
LOOK_EVERY_S = 0.5
PATIENCE_S = 240.0
NEEDY: Json = {
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
    """One binding and one way to go; those of its syncers that stay have these plans."""

    name: str
    sea: PodSea
    pod: Json = field(default_factory=lambda: NEEDY)
    plans: list[Faults] = field(default_factory=list)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""

    async def syncing(self, above: Faults, below: Faults | None = None) -> Pods:
        """A syncer that stays until all is over; one plan may be for both sides."""
        self.plans += [above] if below is None else [above, below]
        pods = self.sea.pods(above=above, below=below or above)
        return await self.stack.enter_async_context(pods)

    def sent(self) -> list[str]:
        """All but watches, and whether the worker answers."""
        found = [request for plan in self.plans for request in plan.requests]
        asked = (r for r in found if not watches(r) and r.path != "/version")
        return [f"{r.method} {r.path}" for r in asked]


Way: TypeAlias = Callable[[Case], Awaitable[None]]


# What people do


async def prepare(sea: PodSea, pod: Json) -> None:
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        await sea.above.create(kind, {"metadata": {"name": name, "namespace": sea.namespace}})
    for name in ("stays", "goes"):
        await sea.run(name, **pod)


async def people(sea: PodSea, *, over: Callable[[], bool] = lambda: False) -> None:
    """Each thing when the last one shows; or at once, once that is over."""

    async def shows(probe: Callable[[], Awaitable[object]]) -> None:
        async def either() -> bool:
            return over() or bool(await probe())

        await until(either, within=PATIENCE_S, every=LOOK_EVERY_S)

    for name in ("stays", "goes"):
        await shows(lambda name=name: sea.runs(name))
    stays, goes = await sea.vpod("stays"), await sea.vpod("goes")
    assert stays is not None
    assert goes is not None
    await sea.patch_above(stays, metadata={"labels": {"changed": "yes"}})
    await shows(lambda: labelled(sea))
    await sea.delete(goes)
    await shows(lambda: sea.gone("goes"))


async def labelled(sea: PodSea) -> bool:
    return (await sea.ppod("stays")).labels.get("changed") == "yes"


async def as_it_should_be(sea: PodSea) -> bool:
    await sea.runs("stays")
    assert await sea.gone("goes")
    assert len(await sea.ppods()) == 1
    return await labelled(sea)


# Ways to go


async def straight(case: Case) -> None:
    await case.syncing(Faults())
    await people(case.sea)


def crash(n: int) -> Way:
    """A run that ends with its n-th write, and one that takes it from there."""

    async def way(case: Case) -> None:
        faults = Faults()
        faults.crash_after_write(n)
        with suppress(Crashed, BaseExceptionGroup):
            async with case.sea.pods(above=faults, below=faults):
                await people(case.sea, over=lambda: faults.crashed)
        # Events may come in other numbers: a later one is then never reached.
        await case.syncing(Faults())

    return way


def stale(*, above_s: float = 0.0, below_s: float = 0.0) -> Way:
    """Watches show the past, and everything twice."""

    async def way(case: Case) -> None:
        above, below = Faults(), Faults()
        for faults, seconds in ((above, above_s), (below, below_s)):
            faults.lag(seconds)
            faults.repeat(1)
        await case.syncing(above, below)
        await people(case.sea)
        for faults in (above, below):
            faults.rewind(50)

    return way


def missed(seed: int) -> Way:
    """Half of all events go missing for a while; then both sides are listed again."""

    async def way(case: Case) -> None:
        both = above, below = Faults(seed), Faults(seed + 100)
        pods = await case.syncing(above, below)
        await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
        for faults in both:
            faults.lose(0.5)
        acting = asyncio.create_task(people(case.sea, over=lambda: above.watch_loss == 0))
        await asyncio.sleep(1.5)  # for as long as events go missing
        for faults in both:
            faults.heal()
        await acting
        for faults in both:
            faults.answer(410, times=30, when=watches, reason="Expired")
            faults.cut()
        await until(lambda: as_it_should_be(case.sea), within=PATIENCE_S, every=LOOK_EVERY_S)
        for faults in both:
            faults.heal()

    return way


async def two_leaders(case: Case) -> None:
    for _ in range(2):
        await case.syncing(Faults())
    await people(case.sea)


async def two_leaders_of_which_one_sees_the_past(case: Case) -> None:
    old = Faults()
    pods = await case.syncing(old)
    await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
    old.lag(3.0)
    await case.syncing(Faults())
    await people(case.sea)
    old.heal()


async def lost_answers(case: Case) -> None:
    above, below = Faults(), Faults()
    above.lose_answer(times=2, when=_patches)
    below.lose_answer(times=2, when=_creates_pods)
    await case.syncing(above, below)
    await people(case.sea)


def _creates_pods(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods")


def _patches(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def restarted_servers(case: Case) -> None:
    sea = case.sea
    await case.syncing(Faults())
    for name in ("stays", "goes"):
        await until(lambda name=name: sea.runs(name))
    await _restart(sea.worker)
    goes = await sea.vpod("goes")
    assert goes is not None
    await sea.delete(goes)
    await _restart(sea.computing)
    await until(lambda: _patched(sea, "stays"), within=PATIENCE_S)
    late = await sea.run("late", **case.pod)
    await _restart(sea.worker)
    await until(lambda: sea.runs("late"), within=PATIENCE_S)
    await sea.delete(late)
    await until(lambda: sea.gone("late"), within=PATIENCE_S)


async def _restart(cluster: Cluster) -> None:
    await cluster.kill("kube-apiserver")
    await cluster.restart("kube-apiserver")


async def _patched(sea: PodSea, name: str) -> bool:
    pod = await sea.vpod(name)
    assert pod is not None
    await sea.patch_above(pod, metadata={"labels": {"changed": "yes"}})
    return True


WAYS: dict[str, Way] = {
    "a stale watch above": stale(above_s=1.5),
    "a stale watch below": stale(below_s=1.5),
    "stale watches on both sides": stale(above_s=0.3, below_s=0.3),
    "missed events 1": missed(1),
    "missed events 2": missed(2),
    "two leaders": two_leaders,
    "two leaders of which one sees the past": two_leaders_of_which_one_sees_the_past,
    "lost answers": lost_answers,
}


# All of it


@dataclass
class Ends:
    """How all cases ended: what went wrong with each, and who was not quiet then."""

    errors: dict[str, str]
    writes: int
    made_twice: dict[str, dict[str, int]]
    restless: dict[str, list[str]]


@dataclass
class Voyage:
    """All cases on their way; `over` lets everybody go."""

    base: PodSea
    step: int  # from one write that is crashed after to the next
    cases: list[Case] = field(default_factory=list)
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def case(self, name: str, sea: PodSea | None = None, pod: Json | None = None) -> Case:
        own = sea or replace(self.base.neighbour(), pnodes=self.base.pnodes)
        self.cases.append(Case(name, own, pod or NEEDY))
        return self.cases[-1]

    async def sail(self, case: Case, way: Way) -> None:
        """Go that way until all is as it should be, and stay."""
        async with case.stack:
            try:
                async with self.limit:
                    if not case.sea.namespace:
                        await case.sea.open()
                    await prepare(case.sea, case.pod)
                    await way(case)
                    await until(
                        lambda: as_it_should_be(case.sea), within=PATIENCE_S, every=LOOK_EVERY_S
                    )
            except (AssertionError, ApiError) as error:
                case.error = f"{error} {error.__cause__ or ''}"
            case.arrived.set()
            await self.over.wait()

    async def arrived(self) -> None:
        for case in self.cases:
            await case.arrived.wait()

    async def at_rest(self) -> dict[str, int]:
        """What each has sent, once nobody adds to it."""
        seen: list[dict[str, int]] = [{}]

        async def rests() -> bool:
            before, seen[0] = seen[0], {case.name: len(case.sent()) for case in self.cases}
            return before == seen[0]

        await until(rests, every=3.0, within=PATIENCE_S)
        return seen[0]


async def sail(voyage: Voyage, assets: Assets, root: Path) -> Ends:
    before = voyage.base.worker.audit.mark()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        first = voyage.case("straight")
        group.create_task(voyage.sail(first, straight))
        sea = await stack.enter_async_context(lone_sea(assets, root))
        # No accounts where there are no controllers.
        pod = {"containers": NEEDY["containers"]}
        restarts = voyage.case("restarted servers", sea, pod)
        group.create_task(voyage.sail(restarts, restarted_servers))
        await first.arrived.wait()
        await settled(*first.plans)
        wrote = sum(plan.writes for plan in first.plans)
        for name, way in WAYS.items():
            group.create_task(voyage.sail(voyage.case(name), way))
        for n in range(1, wrote + 1, voyage.step):
            group.create_task(voyage.sail(voyage.case(f"crash after write {n}"), crash(n)))
        await voyage.arrived()
        sent = await voyage.at_rest()
        await asyncio.sleep(QUIET_S)  # the passing of time is what is tested
        restless = {case.name: case.sent()[sent[case.name] :] for case in voyage.cases}
        twice = made_twice(voyage, before)
        voyage.over.set()
    errors = {case.name: case.error for case in voyage.cases}
    return Ends(errors, wrote, twice, {name: lines for name, lines in restless.items() if lines})


def made_twice(voyage: Voyage, since: int) -> dict[str, dict[str, int]]:
    """Physical pods that were made more than once, by anybody, and those of strange names."""
    made: Counter[tuple[str, str]] = Counter()
    for cluster, mark in {(case.sea.worker, since) for case in voyage.cases}:
        own = cluster is not voyage.base.worker
        made.update(
            (request.namespace, request.name)
            for request in cluster.audit.requests(since=0 if own else mark)
            if (request.verb, request.resource, request.code) == ("create", "pods", 201)
        )
    wrong: dict[str, dict[str, int]] = {}
    for case in voyage.cases:
        known = {case.sea.ppod_name(name) for name in ("stays", "goes", "late")}
        of = {name: count for (mount, name), count in made.items() if mount == case.sea.mount}
        bad = {name: count for name, count in of.items() if count > 1 or name not in known}
        if bad or not of:  # one that was deleted early need not have been made
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
    """All of it, once."""
    await install_our_kinds(client)
    below = worker.client()
    try:
        base = PodSea(cluster, worker, client, below, pnodes=simulated)
        yield await sail(Voyage(base, sample_step), assets, cluster_roots)
    finally:
        await below.close()


def failed(ends: Ends, way: str) -> dict[str, str]:
    chosen = {name: error for name, error in ends.errors.items() if name.startswith(way)}
    assert chosen
    return {name: error for name, error in chosen.items() if error}


async def test_a_crash_after_any_single_write_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "straight") == {}
    assert ends.writes > 12
    assert failed(ends, "crash") == {}


async def test_a_stale_watch_on_either_side_changes_nothing(ends: Ends) -> None:
    assert failed(ends, "a stale watch above") == {}
    assert failed(ends, "a stale watch below") == {}
    assert failed(ends, "stale watches on both sides") == {}


async def test_missed_events_change_nothing_once_both_sides_are_listed_again(ends: Ends) -> None:
    assert failed(ends, "missed events") == {}


async def test_two_active_leaders_end_where_one_does(ends: Ends) -> None:
    assert failed(ends, "two leaders") == {}


async def test_lost_answers_change_nothing(ends: Ends) -> None:
    assert failed(ends, "lost answers") == {}


async def test_restarted_servers_change_nothing(ends: Ends) -> None:
    assert failed(ends, "restarted servers") == {}


async def test_whatever_happened_every_physical_pod_was_made_once(ends: Ends) -> None:
    assert ends.made_twice == {}


async def test_eventually_both_sides_match_and_then_nothing_is_written_for_20_s(ends: Ends) -> None:
    assert ends.restless == {}


async def test_a_frozen_watch_below_makes_no_twin_and_loses_nothing(podsea: PodSea) -> None:
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as pods:
        await until(lambda: pods.world.ppods.has_synced)
        below.freeze()
        pod = await podsea.run()
        await until(lambda: podsea.ppods("web"))
        await asyncio.sleep(7)  # longer than a cache is waited for
        assert (await podsea.shows(phase="Pending")).status.reason == ""
        await podsea.delete(pod)
        below.thaw()
        await until(podsea.gone)
        await settled(above, below)
    assert writes(below).count("POST pods") == 1
