"""Own writes, also against a model that remembers everything and is not clever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Key, Meta, Object
from kubeocean.runtime.pending_writes import PendingWrites

KEY = Key("ns", "x")


def obj(version: str, *, uid: str = "u1", name: str = "x", deleting: bool = False) -> Object:
    gone = "2026-01-01T00:00:00Z" if deleting else None
    return Object(
        metadata=Meta(
            name=name,
            namespace="ns",
            uid=uid,
            resource_version=version,
            deletion_timestamp=gone,
        )
    )


class Cache:
    """Cache of an informer: its objects and its resourceVersion."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.items: dict[Key, Object] = {}
        self.version = "10"
        self.writes = PendingWrites(self.items, self.clock)

    def shows(self, version: str, *objects: Object, gone: tuple[Key, ...] = ()) -> list[float]:
        for each in objects:
            self.items[each.key] = each
        for key in gone:
            self.items.pop(key, None)
        self.version = version
        return self.writes.passed(version, [*(o.key for o in objects), *gone])

    def wrote(self, made: Object) -> None:
        self.writes.expect_version(made, now_at=self.version)

    def deleted(self, doomed: Object) -> None:
        self.writes.expect_gone(doomed, now_at=self.version)


# --- writes


async def test_a_write_is_pending_until_the_watch_has_passed_it() -> None:
    cache = Cache()
    cache.wrote(obj("12"))
    assert KEY in cache.writes
    assert len(cache.writes) == 1
    await cache.clock.advance(3)
    assert cache.shows("11") == []
    assert KEY in cache.writes
    assert cache.shows("12", obj("12")) == [3]
    assert KEY not in cache.writes
    assert len(cache.writes) == 0


def test_a_later_version_of_anything_will_do() -> None:
    cache = Cache()
    cache.wrote(obj("12"))
    assert cache.shows("15", obj("15", name="other"))  # ours left the selection
    assert KEY not in cache.writes


@pytest.mark.parametrize("version", ["9", "10"])
def test_the_watch_may_be_quicker_than_the_answer(version: str) -> None:
    cache = Cache()
    cache.wrote(obj(version))
    assert KEY not in cache.writes


def test_before_the_first_listing_every_write_is_pending() -> None:
    cache = Cache()
    cache.version = ""
    cache.wrote(obj("5"))
    assert KEY in cache.writes
    cache.shows("7")
    assert KEY not in cache.writes


@pytest.mark.parametrize("order", [("12", "14"), ("14", "12")], ids="-".join)
def test_the_last_of_several_writes_counts_in_whatever_order_they_were_answered(
    order: tuple[str, str],
) -> None:
    cache = Cache()
    for version in order:
        cache.wrote(obj(version))
    assert cache.shows("12") == []
    assert KEY in cache.writes
    assert len(cache.shows("14")) == 1
    assert KEY not in cache.writes


def test_versions_that_are_not_numbers_are_compared_for_sameness() -> None:
    cache = Cache()
    cache.wrote(obj("abc"))
    assert cache.shows("zzz", obj("abb")) == []
    assert KEY in cache.writes
    assert len(cache.shows("yyy", obj("abc"))) == 1
    cache.wrote(obj("abc"))
    assert KEY not in cache.writes
    cache.wrote(obj("9" * 5000))  # nor can a server return this version
    assert KEY in cache.writes


# --- deletions


def test_a_deletion_is_pending_until_the_object_goes_or_shows_that_it_goes() -> None:
    for last in ((), (obj("12", deleting=True),), (obj("13", uid="u2"),)):
        cache = Cache()
        cache.shows("10", obj("9"))
        cache.deleted(obj("9"))
        assert cache.shows("11", obj("11")) == []
        assert KEY in cache.writes
        cache.shows("13", *last, gone=() if last else (KEY,))
        assert KEY not in cache.writes


def test_a_deletion_that_the_cache_shows_already_is_not_pending() -> None:
    cache = Cache()
    cache.shows("10", obj("10", deleting=True))
    cache.deleted(obj("9"))
    assert KEY not in cache.writes
    cache.shows("11", gone=(KEY,))
    cache.deleted(obj("9"))
    assert KEY not in cache.writes


def test_absence_is_not_deletion_before_the_cache_has_seen_the_object() -> None:
    cache = Cache()
    cache.deleted(obj("12"))  # read fresh, deleted, while the cache was at 10
    assert KEY in cache.writes
    assert cache.shows("12", obj("12")) == []
    assert KEY in cache.writes
    assert cache.shows("13", gone=(KEY,))
    assert KEY not in cache.writes


def test_what_was_created_and_deleted_is_pending_until_both_are_shown() -> None:
    cache = Cache()
    cache.wrote(obj("12"))
    cache.deleted(obj("12"))
    assert cache.shows("12", obj("12")) == []
    assert KEY in cache.writes
    assert cache.shows("13", gone=(KEY,))


def test_what_was_deleted_and_created_is_pending_until_both_are_shown() -> None:
    cache = Cache()
    cache.shows("10", obj("9"))
    cache.deleted(obj("9"))
    cache.wrote(obj("12", uid="u2"))
    assert cache.shows("11", gone=(KEY,)) == []
    assert KEY in cache.writes
    assert cache.shows("12", obj("12", uid="u2"))


def test_a_deletion_ends_the_wait_for_a_version_that_is_no_number() -> None:
    cache = Cache()
    cache.wrote(obj("abc"))
    cache.deleted(obj("abc"))
    assert KEY not in cache.writes


# --- waiting


async def test_waiting_ends_with_the_last_write_or_with_the_time() -> None:
    cache = Cache()
    assert await cache.writes.shown(KEY, 5)
    cache.wrote(obj("12"))
    waiting = asyncio.create_task(cache.writes.shown(KEY, 5))
    await cache.clock.advance(1)
    cache.wrote(obj("14"))
    cache.shows("12")
    await cache.clock.advance(1)
    assert not waiting.done()
    cache.shows("14")
    assert await waiting

    cache.wrote(obj("16"))
    waiting = asyncio.create_task(cache.writes.shown(KEY, 5))
    await cache.clock.advance(4.9)
    assert not waiting.done()
    await cache.clock.advance(0.2)
    assert not await waiting
    assert KEY in cache.writes


async def test_a_write_that_follows_at_once_is_waited_for_too() -> None:
    cache = Cache()
    cache.wrote(obj("12"))
    waiting = asyncio.create_task(cache.writes.shown(KEY, 5))
    await cache.clock.advance(1)
    cache.shows("12")
    cache.wrote(obj("14"))  # before the waiting task was woken
    await cache.clock.advance(1)
    assert not waiting.done()
    cache.shows("14")
    assert await waiting


async def test_what_is_forgotten_is_not_pending() -> None:
    cache = Cache()
    cache.writes.forget(KEY)
    cache.wrote(obj("12"))
    waiting = asyncio.create_task(cache.writes.shown(KEY, 5))
    await cache.clock.advance(1)
    cache.writes.forget(KEY)
    assert await waiting
    assert cache.shows("12") == []


# --- any history


@dataclass
class Written:
    """Write as the model records it: the version, and the UID if it was a deletion."""

    version: int
    doomed: str = ""
    shown: bool = False


@dataclass
class Truth:
    """The server's side of one name."""

    uid: int = 0
    version: int = 0  # of the object; 0 when there is none
    deleting: bool = False
    pending: list[Written] = field(default_factory=list)


NAMES = st.sampled_from(["a", "b"])


class AnyHistory(RuleBasedStateMachine):
    """A server, a cache that lags behind it, and answers that come late and out of order."""

    @initialize()
    def begin(self) -> None:
        self.cache = Cache()
        self.revision = 10
        self.truths = {name: Truth() for name in ("a", "b")}
        self.log: list[tuple[int, str, Object | None]] = []
        self.seen = 0
        self.answers: list[tuple[str, Object, bool]] = []

    def happen(self, name: str, *, gone: bool = False) -> Object:
        truth = self.truths[name]
        self.revision += 1
        truth.version = 0 if gone else self.revision
        made = obj(str(self.revision), uid=f"{name}{truth.uid}", name=name, deleting=truth.deleting)
        self.log.append((self.revision, name, None if gone else made))
        return made

    @rule(name=NAMES, ours=st.booleans())
    def create_or_change(self, name: str, ours: bool) -> None:
        truth = self.truths[name]
        if not truth.version:
            truth.uid, truth.deleting = truth.uid + 1, False
        made = self.happen(name)
        if ours:
            self.answers.append((name, made, False))

    @rule(name=NAMES, ours=st.booleans(), graceful=st.booleans())
    def delete(self, name: str, ours: bool, graceful: bool) -> None:
        truth = self.truths[name]
        if not truth.version:
            return
        before = obj(str(truth.version), uid=f"{name}{truth.uid}", name=name)
        truth.deleting = True
        self.happen(name, gone=not graceful)
        if ours:
            self.answers.append((name, before, True))

    @rule(name=NAMES)
    def vanish(self, name: str) -> None:
        if self.truths[name].version:
            self.happen(name, gone=True)

    @rule(data=st.data())
    def hear_an_answer(self, data: st.DataObject) -> None:
        if not self.answers:
            return
        at = data.draw(st.integers(0, len(self.answers) - 1))
        name, made, deletion = self.answers.pop(at)
        (self.cache.deleted if deletion else self.cache.wrote)(made)
        doomed = made.uid if deletion else ""
        self.truths[name].pending.append(Written(int(made.resource_version), doomed))

    @rule(events=st.integers(1, 5))
    def watch(self, events: int) -> None:
        for version, name, now in self.log[self.seen : self.seen + events]:
            self.seen += 1
            key = Key("ns", name)
            self.cache.shows(str(version), *([now] if now else []), gone=() if now else (key,))
            self.remember()

    @rule()
    def bookmark(self) -> None:
        if self.seen == len(self.log):
            self.cache.shows(str(self.revision))

    def remember(self) -> None:
        """Check that a write that was shown once stays shown, also after changes of the object."""
        for name, truth in self.truths.items():
            cached = self.cache.items.get(Key("ns", name))
            for written in truth.pending:
                going = cached is None or cached.uid != written.doomed or cached.deleting
                passed = written.version <= int(self.cache.version)
                written.shown |= passed and (not written.doomed or going)

    @invariant()
    def a_key_is_pending_exactly_while_one_of_its_writes_is(self) -> None:
        self.remember()
        for name, truth in self.truths.items():
            pending = any(not written.shown for written in truth.pending)
            assert (Key("ns", name) in self.cache.writes) is pending, (name, truth)
        assert len(self.cache.writes) == sum(
            any(not w.shown for w in truth.pending) for truth in self.truths.values()
        )


AnyHistory.TestCase.settings = settings(stateful_step_count=30)
TestAnyHistory = AnyHistory.TestCase
