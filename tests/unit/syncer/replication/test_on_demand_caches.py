"""Caches that run only while they are needed."""

from __future__ import annotations

import asyncio
from typing import Any

from kubeocean.syncer.replication.on_demand_caches import NamespacedCaches, Switched
from support.background import running
from support.wait import until


class Part:
    """A part that records whether it runs."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.starts = 0
        self.runs = False

    async def run(self) -> None:
        self.starts += 1
        self.runs = True
        try:
            await asyncio.Event().wait()
        finally:
            self.runs = False


async def test_parts_run_while_the_switch_is_on() -> None:
    parts = Part(), Part()
    switch = Switched(*parts)
    async with running(switch):
        await asyncio.sleep(0)
        assert not any(part.starts for part in parts)
        for starts in (1, 2):
            switch.turn(True)
            await until(lambda: all(part.runs for part in parts))
            assert [part.starts for part in parts] == [starts, starts]
            switch.turn(False)
            await until(lambda: not any(part.runs for part in parts))
        switch.turn(True)
        switch.turn(False)
        switch.turn(True)
        await until(lambda: all(part.runs for part in parts))
    assert not any(part.runs for part in parts)


async def test_a_switch_may_be_turned_before_it_runs() -> None:
    part = Part()
    switch = Switched(part)
    switch.turn(True)
    async with running(switch):
        await until(lambda: part.runs)


async def test_each_namespace_that_is_needed_has_a_cache() -> None:
    made: list[Part] = []

    def make(namespace: str) -> Any:
        made.append(Part(namespace))
        return made[-1]

    caches: NamespacedCaches[Any] = NamespacedCaches(make)
    caches.set_namespaces(["a"])
    async with running(caches):
        await until(lambda: [part.name for part in made if part.runs] == ["a"])
        caches.set_namespaces(["b", "a"])
        await until(lambda: sorted(part.name for part in made if part.runs) == ["a", "b"])
        assert caches.get("a") is made[0]
        caches.set_namespaces(["b"])
        await until(lambda: [part.name for part in made if part.runs] == ["b"])
        assert caches.get("a") is None
        caches.set_namespaces([])
        await until(lambda: not any(part.runs for part in made))
    assert len(made) == 2
