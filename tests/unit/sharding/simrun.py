"""Simulates many histories: `python -m unit.sharding.simrun --histories 100000`.

A history is made from its seed alone: a simulated ring, some seconds with faults, and then time
without faults. The same seed gives the same history on every machine.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from random import Random

from kubeocean.errors import ConfigError
from kubeocean.sharding.table import Table
from kubeocean.sharding.table_operations import (
    drain,
    freeze,
    move,
    pin,
    release,
    rollback,
    undrain,
    unpin,
)
from unit.sharding.simworld import Replica, Violation, World

__all__ = ["BATCH", "FIRST_SEED", "histories", "history", "main", "misfortune"]

FIRST_SEED = 20_261_116
BATCH = 500
CHAOS_S = 14.0


def history(seed: int, make: Callable[[int], World] | None = None) -> World:
    """Simulate one history; return the world at its end.

    :raises Violation: an invariant was violated; the message has the seed.
    """
    random = Random(seed)
    if make is not None:
        world = make(seed)
    else:
        world = World(seed, replicas=random.randint(1, 4), slots=random.randint(3, 9))
    try:
        end = random.uniform(0.5, 1.0) * CHAOS_S
        while world.now < end:
            world.run(random.expovariate(0.5))
            misfortune(world, random)
        recover(world)
        world.settle()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    return world


def misfortune(world: World, random: Random) -> None:
    """Return one random fault, or one random action of an operator."""
    living = world.living
    luck = random.random()
    if not living or luck < 0.1:
        newcomer = world.join(random.choice(["", "v1", "v2"]))
        if random.random() < 0.4:  # others have read its Lease, and the replica has no answer
            world.cut_off(newcomer, 2.0, True)
            world.at(random.uniform(0.4, 2), world.cut_off, newcomer, random.uniform(2, 9), False)
        return
    victim = random.choice(living)
    if luck < 0.2:
        world.cut_off(victim, random.uniform(1, 9), random.random() < 0.5)
    elif luck < 0.38:
        world.freeze(victim, random.choice([1, 3, 5, 8, 12]) * random.uniform(0.8, 1.2))
    elif luck < 0.5:
        world.crash(victim)
        if random.random() < 0.7:
            world.at(random.uniform(0.1, 8), _revive, world, victim)
    elif luck < 0.6:
        world.leave(victim)
    elif luck < 0.78:
        world.elect()
    elif luck < 0.84:
        world.lose_lease(victim)
    elif luck < 0.86:
        world.lose_table()
    else:
        operate(world, random)


def _revive(world: World, replica: Replica) -> None:
    if not replica.alive:
        world.restart(replica)


def operate(world: World, random: Random) -> None:
    """Run a command of an administrator on the version of the table that was read."""
    table, slot = world.table, random.randrange(world.table.slots)
    somebody = random.choice(world.living)
    deeds: list[Callable[[], Table]] = [
        lambda: move(table, [slot], somebody.id),
        lambda: move(table, range(table.slots), somebody.id),
        lambda: freeze(table, on=not table.frozen),
        lambda: drain(table, somebody.name),
        lambda: pin(table, [slot], somebody.name),
        lambda: rollback(table, table.history[0].epoch, [each.id for each in world.living]),
        lambda: release(table, [slot]),
    ]
    # A release is for owners that have a Lease, or have ended.
    leased = {entry.owner for entry in table.entries} <= world.leases.keys()
    if not leased:
        deeds.pop()

    if any(entry.owner for entry in table.entries) and table.history:
        after = random.choice(deeds)()
        world.by_hand = not all(after.next_owners)
        world.lost |= world.by_hand
        world.land_table(world.version, after)
        world.by_hand = False


def recover(world: World) -> None:
    """Undo the changes that administrators made, so that the final states can be compared."""
    table = world.table
    if table.frozen:
        table = freeze(table, on=False)
    for name in sorted(table.drained):
        table = undrain(table, name)
    if table.pins:
        table = unpin(table, list(table.pins))
    if table is not world.table:
        world.land_table(world.version, table)


def histories(seeds: Iterable[int]) -> tuple[int, list[str]]:
    """Run simulated histories; return their number and the errors of those that failed."""
    count, wrong = 0, []
    for seed in seeds:
        count += 1
        try:
            history(seed)
        except (Violation, ConfigError) as violation:
            wrong.append(f"seed {seed}: {violation}")
    return count, wrong


def tune() -> None:
    """Run the garbage collector rarely: each history is dropped as a whole."""
    gc.set_threshold(50_000)


def batches(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, BATCH):
        yield range(start, min(start + BATCH, first + count))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first history")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    last = options.seed + options.histories - 1
    print(f"sharding: {options.histories:,} histories, seeds {options.seed} to {last}")
    began, done, wrong = time.monotonic(), 0, 0
    with ExitStack() as stack:
        spread: Callable[..., Iterable[tuple[int, list[str]]]] = map
        if options.jobs > 1:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(options.jobs, mp_context=context, initializer=tune)
            spread = stack.enter_context(pool).map
        for count, bad in spread(histories, batches(options.seed, options.histories)):
            done += count
            wrong += len(bad)
            for each in bad:
                print(each, file=sys.stderr)
            if done % 10_000 == 0:
                print(f"sharding: {done:,} lived through, {wrong} violations", file=sys.stderr)
    spent = time.monotonic() - began
    print(
        f"sharding: {done:,} histories in {spent:.0f} s ({done / spent:,.0f}/s, "
        f"{options.jobs} jobs), {wrong} violations"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
