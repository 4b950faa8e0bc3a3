"""Handlers: which calls follow from which state of the cache and the API server."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from kubeocean.runtime.objects import Key, Meta, Object
from kubeocean.sharding.batches import BatchSizes
from kubeocean.sharding.fencing import NotOurs
from kubeocean.sharding.handlers import Change, HandlerReconciler, Presence, ResourceHandler
from kubeocean.sharding.handover import Handled

KEY = Key("n", "o")
SLOT = 3
FINALIZER = "pods.example/ring"


def version(
    number: int, uid: str = "u", *, finalizers: tuple[str, ...] = (), deleting: bool = False
) -> Object:
    return Object(
        metadata=Meta(
            namespace="n",
            name="o",
            uid=uid,
            resource_version=str(number),
            finalizers=finalizers or None,
            deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None,
        )
    )


class Calls(ResourceHandler[Object]):
    """Handler that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False
        self.matters = True

    async def handle_add(self, obj: Object) -> None:
        if self.fails:
            raise RuntimeError
        self.calls.append(f"add {obj.resource_version}")

    async def handle_update(self, old: Object, new: Object) -> None:
        self.calls.append(f"update {old.resource_version}-{new.resource_version}")

    async def handle_delete(self, obj: Object) -> None:
        if self.fails:
            raise RuntimeError
        self.calls.append(f"delete {obj.resource_version or obj.uid}")

    def should_process(self, obj: Object) -> bool:
        return self.matters


class World:
    """A cache with one key, an API server that may have newer objects, and a handler."""

    def __init__(self, finalizer: str = "") -> None:
        self.cached: Object | None = None
        self.presence = Presence.GONE
        self.stored: Object | None = None
        self.ours = True
        self.handler = Calls()
        self.reconciler = self.replica(finalizer)
        self.writes: list[str] = []

    def replica(self, finalizer: str = "") -> HandlerReconciler[Object]:
        return HandlerReconciler(self.handler, self, check=self.check, finalizer=finalizer)

    def check(self) -> None:
        if not self.ours:
            raise NotOurs("lost")

    async def read(self, key: Key) -> Object | None:
        return self.cached

    async def locate(self, key: Key, uid: str) -> tuple[Presence, Object | None]:
        return self.presence, self.stored

    async def recall(self, key: Key, uid: str, version: str) -> Object:
        return Object(metadata=Meta(name=key.name, namespace=key.namespace, uid=uid))

    async def set_finalizer(self, obj: Object, finalizer: str, *, present: bool) -> Object:
        self.writes.append(f"{'add' if present else 'remove'} {obj.resource_version}")
        finalizers = (finalizer,) if present else None
        number = str(int(obj.resource_version) + 1)
        meta = msgspec.structs.replace(obj.metadata, finalizers=finalizers, resource_version=number)
        return msgspec.structs.replace(obj, metadata=meta)

    async def sees(self, obj: Object | None) -> list[str]:
        """Return the calls of a reconcile with this object in the cache."""
        self.cached = obj
        self.handler.calls.clear()
        await self.reconciler.reconcile(SLOT, KEY)
        return list(self.handler.calls)


async def test_additions_changes_and_deletions_are_handled() -> None:
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


async def test_a_failed_call_is_repeated() -> None:
    world = World()
    world.handler.fails = True
    with pytest.raises(RuntimeError):
        await world.sees(version(1))
    world.handler.fails = False
    assert await world.sees(version(2)) == ["add 2"]


async def test_an_addition_that_failed_is_followed_by_a_deletion() -> None:
    world = World()
    world.handler.fails = True
    with pytest.raises(RuntimeError):
        await world.sees(version(1))
    world.handler.fails = False
    assert await world.sees(None) == ["delete u"]


async def test_an_object_that_is_not_to_be_processed_is_no_deletion() -> None:
    world = World()
    await world.sees(version(1))
    world.handler.matters = False
    assert await world.sees(version(2)) == []
    world.handler.matters = True
    assert await world.sees(version(3)) == ["update 1-3"]
    world.handler.matters = False
    assert await world.sees(None) == ["delete 3"]


@pytest.mark.parametrize("presence", [Presence.HIDDEN, Presence.DESELECTED])
async def test_an_object_that_left_the_cache_and_lives_is_no_deletion(presence: Presence) -> None:
    world = World()
    await world.sees(version(1))
    world.presence, world.stored = presence, version(2)
    assert await world.sees(None) == []
    again = {Presence.HIDDEN: ["update 1-3"], Presence.DESELECTED: ["add 3"]}
    assert await world.sees(version(3)) == again[presence]


async def test_a_lost_slot_is_no_deletion() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler.drop(SLOT)
    assert await world.sees(None) == []
    assert await world.sees(version(1)) == ["add 1"]
    assert world.handler.get_resource_key(version(1)) == "n/o"


async def test_a_replica_that_lost_its_slot_calls_nothing() -> None:
    world = World()
    await world.sees(version(1))
    world.ours = False
    for obj in (version(2), None):
        with pytest.raises(NotOurs):
            await world.sees(obj)
        assert world.handler.calls == []


async def test_a_resync_handles_an_unchanged_object_once_more() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler.resync([KEY])
    assert await world.sees(version(1)) == ["update 1-1"]
    assert await world.sees(version(1)) == []


# Hand-over


def handed_over(world: World) -> HandlerReconciler[Object]:
    """Return the reconciler of the next owner, which got the slot from the present one."""
    after = world.replica()
    after.inherit(SLOT, world.reconciler.handled(SLOT, "9"))
    after.start(SLOT)
    return after


async def test_the_next_owner_handles_the_object_as_added_and_its_deletion() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler = handed_over(world)
    assert await world.sees(version(1)) == ["add 1"]
    assert await world.sees(None) == ["delete 1"]


async def test_a_deletion_before_the_next_owner_has_handled_the_object_is_not_lost() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler = handed_over(world)
    assert list(world.reconciler.keys(SLOT)) == [KEY]
    assert await world.sees(None) == ["delete u"]
    assert await world.sees(None) == []


async def test_a_deletion_that_the_next_owner_saw_before_it_got_the_slot_has_the_object() -> None:
    world = World()
    await world.sees(version(1))
    after = world.replica()
    after.saw_removed(SLOT, version(2), served=False)
    after.inherit(SLOT, world.reconciler.handled(SLOT, ""))
    world.reconciler = after
    assert await world.sees(None) == ["delete 2"]


async def test_a_deletion_that_was_handled_is_not_handed_over() -> None:
    world = World()
    await world.sees(version(1))
    await world.sees(None)
    assert world.reconciler.handled(SLOT, "") == Handled()


async def test_what_was_inherited_and_not_handled_yet_is_handed_on() -> None:
    world = World()
    await world.sees(version(1))
    world.reconciler = handed_over(world)
    assert handed_over(world).handled(SLOT, "").uids == {"n/o": "u"}


async def test_an_object_that_was_never_handled_is_no_deletion_for_the_next_owner() -> None:
    world = World()
    world.reconciler.saw_removed(SLOT, version(1), served=False)
    world.reconciler.inherit(SLOT, Handled())
    assert await world.sees(None) == []


# Guaranteed deletions


async def test_the_finalizer_is_added_before_the_addition_and_removed_after_the_deletion() -> None:
    world = World(FINALIZER)
    assert await world.sees(version(1)) == ["add 2"]
    assert world.writes == ["add 1"]
    with_finalizer = version(3, finalizers=(FINALIZER,), deleting=True)
    assert await world.sees(with_finalizer) == ["delete 3"]
    assert world.writes == ["add 1", "remove 3"]
    assert await world.sees(None) == []


async def test_a_deletion_is_handled_by_a_replica_that_never_saw_the_object() -> None:
    world = World(FINALIZER)
    assert await world.sees(version(3, finalizers=(FINALIZER,), deleting=True)) == ["delete 3"]
    assert world.writes == ["remove 3"]


async def test_a_deletion_is_not_repeated_if_the_finalizer_could_not_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(FINALIZER)
    await world.sees(version(2, finalizers=(FINALIZER,)))
    world.cached = version(3, finalizers=(FINALIZER,), deleting=True)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="refused"):
        patched.setattr(world, "set_finalizer", failing)
        await world.sees(world.cached)
    assert world.handler.calls == ["delete 3"]
    assert await world.sees(world.cached) == []
    assert world.writes == ["remove 3"]


async def failing(obj: Object, finalizer: str, *, present: bool) -> Object:
    raise OSError("refused")


async def test_a_deletion_that_fails_keeps_the_finalizer() -> None:
    world = World(FINALIZER)
    world.handler.fails = True
    with pytest.raises(RuntimeError):
        await world.sees(version(3, finalizers=(FINALIZER,), deleting=True))
    assert world.writes == []


async def test_an_object_that_is_being_deleted_and_was_never_handled_is_left_alone() -> None:
    world = World(FINALIZER)
    assert await world.sees(version(3, deleting=True)) == []
    assert world.writes == []


async def test_an_object_that_left_the_selection_loses_the_finalizer() -> None:
    world = World(FINALIZER)
    await world.sees(version(2, finalizers=(FINALIZER,)))
    world.presence = Presence.DESELECTED
    world.stored = version(3, finalizers=(FINALIZER,))
    assert await world.sees(None) == []
    assert world.writes == ["remove 3"]


# Batches


class Batches(Calls):
    async def handle_batch(self, changes: Sequence[Change[Object]]) -> None:
        if self.fails:
            raise RuntimeError
        await super().handle_batch(changes)
        self.calls.append(f"batch of {len(changes)}")


async def test_a_handler_with_batches_gets_changes_by_them_and_failures_are_repeated() -> None:
    world = World()
    world.handler = Batches()
    world.reconciler = HandlerReconciler(
        world.handler, world, check=world.check, sizes=BatchSizes(most=1)
    )
    world.handler.fails = True
    with pytest.raises(RuntimeError):
        await world.sees(version(1))
    world.handler.fails = False
    assert await world.sees(version(1)) == ["add 1", "batch of 1"]
    assert await world.sees(version(2)) == ["update 1-2", "batch of 1"]
    assert await world.sees(None) == ["delete 2", "batch of 1"]
