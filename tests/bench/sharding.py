"""Measures how evenly keys are shared, and how many move; then a ring on a real API server.

Our slots are compared with other algorithms, for 100,000 keys and replicas with realistic names.
Peak is the load of the fullest replica divided by the mean. Moved is the number of keys that change
their replica when one joins or leaves, divided by the smallest possible number. Collateral is the
number of keys that move between two replicas that neither joined nor left. The numbers are computed
and not timed, so they are the same on every machine. `shardring` has the ring.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table as Grid

from bench.bars import Bar, Figures
from bench.placement import OTHERS, Place
from bench.shardring import measure_ring, ring_bars
from kubeocean.sharding.balance import plan, weights_of
from kubeocean.sharding.members import MemberRecord, MemberState
from kubeocean.sharding.planner import Planner
from kubeocean.sharding.slots import HASHES, SLOTS, mixed, slot_of
from kubeocean.sharding.table import empty_table
from kubeocean.sharding.table_encoding import encode_table

__all__ = ["measure_placement", "measure_sharding"]

KEYS, REPLICAS = 100_000, 10
NAMESPACES, ZIPF_OBJECTS = 500, 100_000


def measure_sharding(directory: Path, objects: int) -> tuple[Figures, list[Bar]]:
    """Return all measurements and the bars; a ring has `objects` objects."""
    figures, promised = measure_placement()
    ring = asyncio.run(measure_ring(directory, objects))
    return figures | {"sharding: ring": ring}, [*promised, *ring_bars(ring, objects)]


def measure_placement() -> tuple[Figures, list[Bar]]:
    """Return the numbers that are computed without a server."""
    keys = [mixed(f"apps/Deployment/team-{n % 97}/web-{n}") for n in range(KEYS)]
    pods = [f"controller-6f7d9c5b8-{mixed(str(n)):x}"[:27] for n in range(REPLICAS + 1)]
    figures = {name: _compared(place, keys, pods) for name, place in OTHERS.items()}
    figures["slots, by count"] = _compared(_Slots(weighted=False), keys, pods)
    ours = figures["slots, by load"] = _compared(_Slots(weighted=True), keys, pods)
    rolling, worst = _rolling_update(REPLICAS)
    ours |= {"rolling update": rolling, "worst slot": worst, "table KB": _size(pods[:REPLICAS])}
    zipf = {count: _zipf(count) for count in (5, REPLICAS)}
    for count, (actual, bound, plain) in zipf.items():
        ours |= {f"namespaces on {count}": actual, f"no better on {count}": bound}
        figures["ring of 100 tokens"][f"namespaces on {count}"] = plain
    _show(figures)
    five, five_bound, five_ring = zipf[5]
    ring = figures["ring of 100 tokens"]
    return {f"sharding: {name}": values for name, values in figures.items()}, [
        Bar("peak of 10 replicas", ours["peak"], 1.01, "x mean", go=f"{ring['peak']:.2f} (ring)"),
        Bar("moved when one comes", ours["add"], 1.01, "x least", go="9.99 (modulo)"),
        Bar("moved when one goes", ours["remove"], 1.01, "x least", go="4.92 (jump hash)"),
        Bar("moved between others", ours["collateral"], 0, "%", go="80 (modulo)"),
        Bar("moves of a rolling update", rolling, 1.0, "per object", go="1.5-1.9"),
        Bar(
            "namespaces by Zipf on 5",
            five,
            max(1.05, five_bound + 0.01),
            "x mean",
            go=f"{five_ring:.2f} (ring)",
        ),
        Bar("table of 1,024 slots", ours["table KB"], 32, "KB"),
    ]


class _Slots:
    """Assigns keys to slots and slots to replicas, from the present owners on, as a table does."""

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._owners = [""] * SLOTS

    def __call__(self, keys: Sequence[int], replicas: Sequence[str]) -> list[str]:
        slots = [key * SLOTS // HASHES for key in keys]
        loads = {slot: float(count) for slot, count in Counter(slots).items()}
        weights = weights_of(loads, SLOTS) if self._weighted else None
        members = dict.fromkeys(replicas, 1.0)
        known = set(self._owners)
        new = [each for each in replicas if each not in known]
        self._owners = plan(self._owners, members, weights=weights, newcomers=new)
        return [self._owners[slot] for slot in slots]


def _compared(place: Place, keys: Sequence[int], pods: Sequence[str]) -> dict[str, float]:
    """Compare with ten replicas, then with one more, then without one of the middle."""
    ten, eleven = list(pods[:REPLICAS]), list(pods[: REPLICAS + 1])
    first = place(keys, ten)
    added = place(keys, eleven)
    gone = eleven[REPLICAS // 2]
    left = [each for each in eleven if each != gone]
    removed = place(keys, left)
    share = Counter(added)[gone] / KEYS
    return {
        "peak": max(_peak(first), _peak(added), _peak(removed)),
        "add": _moved(first, added) * len(eleven),
        "remove": _moved(added, removed) / share,
        "collateral": 100
        * sum(a != b and a != gone for a, b in zip(added, removed, strict=True))
        / KEYS,
    }


def _peak(owners: Sequence[str]) -> float:
    counts = Counter(owners)
    return max(counts.values()) * len(counts) / len(owners)


def _moved(before: Sequence[str], after: Sequence[str]) -> float:
    return sum(a != b for a, b in zip(before, after, strict=True)) / len(before)


def _rolling_update(count: int) -> tuple[float, float]:
    """Return the moves of a slot, on average and at most, when every replica is replaced in
    turn."""
    assigner, table = Planner(), empty_table("ring")
    members: dict[str, MemberRecord] = {}
    moves: Counter[int] = Counter()
    now = 0.0

    def turn(**message: MemberRecord) -> None:
        nonlocal table, now
        now += 1.0
        members.update(message)
        for name, member in list(members.items()):
            drains = table.draining().items()
            acks = {slot: entry.epoch for slot, entry in drains if entry.owner == member.id}
            members[name] = _again(member, now, acks)
        assigner.observe(members.values(), started=now, now=now, table=table)
        decided = assigner.decide(table, now)
        if decided.table is not None:
            before, table = table.next_owners, decided.table
            pairs = enumerate(zip(before, table.next_owners, strict=True))
            moves.update(slot for slot, (a, b) in pairs if a and a != b)

    for number in range(count):
        members[f"old{number}"] = MemberRecord(id=f"old{number}_1", pulse="", template="v1")
    turn()
    for number in range(count):
        turn(**{f"new{number}": MemberRecord(id=f"new{number}_1", pulse="", template="v2")})
        old = members[f"old{number}"]
        leaving = MemberRecord(
            id=old.id, pulse="", template=old.template, state=MemberState.LEAVING
        )
        for _ in range(3):
            turn(**{f"old{number}": leaving})
        del members[f"old{number}"]
    for _ in range(120):
        turn()
    assert all(owner.startswith("new") for owner in table.next_owners)
    return sum(moves.values()) / SLOTS, max(moves.values())


def _again(member: MemberRecord, now: float, acks: Mapping[int, int]) -> MemberRecord:
    return MemberRecord(
        id=member.id, pulse=f"{now}", template=member.template, state=member.state, acks=acks
    )


def _zipf(count: int) -> tuple[float, float, float]:
    """Return the peak of load by namespace: of our slots, the lowest possible, and of a hash
    ring."""
    shares = [1 / (rank + 1) for rank in range(NAMESPACES)]
    whole = sum(shares)
    sizes = [ZIPF_OBJECTS * share / whole for share in shares]
    names = [f"team-{number:03}" for number in range(NAMESPACES)]
    Random(7).shuffle(names)
    loads: dict[int, float] = {}
    for name, size in zip(names, sizes, strict=True):
        slot = slot_of(name)
        loads[slot] = loads.get(slot, 0.0) + size
    pods = dict.fromkeys([f"controller-{n}" for n in range(count)], 1.0)
    measured = {slot: loads.get(slot, 0.0) for slot in range(SLOTS)}
    owners = plan([""] * SLOTS, pods)
    for _ in range(50):
        owners = plan(owners, pods, weights=weights_of(measured, SLOTS), threshold=0.02)
    mean = sum(sizes) / count
    ours, ring = Counter[str](), Counter[str]()
    for slot, load in loads.items():
        ours[owners[slot]] += load
    placed = OTHERS["ring of 100 tokens"]([mixed(name) for name in names], list(pods))
    for owner, size in zip(placed, sizes, strict=True):
        ring[owner] += size
    return max(ours.values()) / mean, max(1.0, *loads.values()) / mean, max(ring.values()) / mean


def _size(pods: Sequence[str]) -> float:
    """Return the size of a table after long use: five steps of history, slots of many epochs."""
    random, table = Random(1), empty_table("ring")
    members = [MemberRecord(id=f"{pod}_{mixed(pod):016x}", pulse="1") for pod in pods]
    assigner = Planner()
    assigner.observe(members, started=0, now=0, table=table)
    table = assigner.decide(table, 0).table or table
    for _ in range(200):
        slots = random.sample(range(SLOTS), 5)
        entry = table.entries[slots[0]]
        table = table.changed(dict.fromkeys(slots, entry))
    return len(encode_table(table)) / 1000


def _show(figures: Figures) -> None:
    columns = list(figures["slots, by load"])
    grid = Grid("placement of keys", *columns, title=f"sharding, {REPLICAS} replicas")
    for name, values in figures.items():
        shown = [f"{values[each]:.3f}" if each in values else "" for each in columns]
        grid.add_row(name, *shown)
    Console(soft_wrap=True, width=200).print(grid)


if __name__ == "__main__":
    for bar in measure_placement()[1]:
        print(bar.name, round(bar.value, 4), bar.sign, bar.limit, "held" if bar.held else "MISSED")
