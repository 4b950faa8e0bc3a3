"""Handlers: events made of levels."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Key, Meta, Object
from kubeocean.sharding.controller import HandlerReconciler, ResourceHandler

KEY = Key("n", "o")


def version(number: int, uid: str = "u") -> Object:
    meta = Meta(namespace="n", name="o", uid=uid, resource_version=str(number))
    return Object(metadata=meta)


class Told(ResourceHandler[Object]):
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.fails = False
        self.matters = True

    async def handle_add(self, obj: Object) -> None:
        if self.fails:
            raise RuntimeError
        self.heard.append(f"add {obj.resource_version}")

    async def handle_update(self, old: Object, new: Object) -> None:
        self.heard.append(f"update {old.resource_version}-{new.resource_version}")

    async def handle_delete(self, obj: Object) -> None:
        self.heard.append(f"delete {obj.resource_version}")

    def should_process(self, obj: Object) -> bool:
        return self.matters


class World:
    def __init__(self) -> None:
        self.obj: Object | None = None
        self.told = Told()
        self.reconciler = HandlerReconciler(self.told, self.read)

    async def read(self, key: Key) -> Object | None:
        return self.obj

    async def sees(self, obj: Object | None) -> list[str]:
        self.obj = obj
        self.told.heard.clear()
        await self.reconciler.reconcile(KEY)
        return list(self.told.heard)


async def test_additions_changes_and_deletions_are_told() -> None:
    world = World()
    assert await world.sees(None) == []
    assert await world.sees(version(1)) == ["add 1"]
    assert await world.sees(version(1)) == []
    assert await world.sees(version(4)) == ["update 1-4"]
    assert await world.sees(None) == ["delete 4"]
    assert await world.sees(None) == []


async def test_an_object_that_was_made_again_is_two_events() -> None:
    world = World()
    await world.sees(version(1))
    assert await world.sees(version(2, uid="other")) == ["delete 1", "add 2"]


async def test_what_failed_is_told_again() -> None:
    world = World()
    world.told.fails = True
    with pytest.raises(RuntimeError):
        await world.sees(version(1))
    world.told.fails = False
    assert await world.sees(version(2)) == ["add 2"]


async def test_what_does_not_matter_is_not_there() -> None:
    world = World()
    await world.sees(version(1))
    world.told.matters = False
    assert await world.sees(version(2)) == ["delete 1"]
    assert await world.sees(version(3)) == []


async def test_a_shard_that_goes_is_no_deletion() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler.forget([KEY])
    assert await world.sees(None) == []
    assert await world.sees(version(1)) == ["add 1"]
    assert world.told.get_resource_key(version(1)) == "n/o"
