"""Tables in a store: compare-and-swap, grants, and the fields that an admission policy reads."""

from __future__ import annotations

import itertools
from copy import deepcopy

import pytest

from kubeocean.errors import ConfigError, Conflict
from kubeocean.runtime.objects import Json
from kubeocean.sharding.admission import POD_UID, principal_of
from kubeocean.sharding.fencing import Grant, NotOurs, current_grant, stamped, under
from kubeocean.sharding.names import Names
from kubeocean.sharding.stores import ABSENT, Stored, TableStore, admission_view
from kubeocean.sharding.table import SlotEntry


class MemoryStore:
    """A `StateStore` in this process."""

    def __init__(self) -> None:
        self._states: dict[str, Stored] = {}
        self._versions = itertools.count(1)

    async def save(self, key: str, state: Json, expected_version: str) -> str:
        self._check(key, expected_version)
        version = str(next(self._versions))
        self._states[key] = Stored(deepcopy(state), version)
        return version

    async def load(self, key: str) -> Stored | None:
        return deepcopy(self._states.get(key))

    async def delete(self, key: str, expected_version: str) -> None:
        self._check(key, expected_version)
        self._states.pop(key, None)

    async def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._states if key.startswith(prefix))

    def _check(self, key: str, expected_version: str) -> None:
        stored = self._states.get(key)
        if (ABSENT if stored is None else stored.version) != expected_version:
            raise Conflict(f"could not write state {key}")


def store_of(memory: MemoryStore, slots: int = 4) -> TableStore:
    return TableStore(memory, key="r-table", ring="r", slots=slots)


async def test_a_table_comes_back_as_it_was_written() -> None:
    tables = store_of(MemoryStore())
    empty = await tables.load()
    assert (empty.table.epoch, empty.version) == (0, ABSENT)
    written = await tables.save(empty.table.changed({1: SlotEntry("a_1")}), empty)
    assert await tables.load() == written
    with pytest.raises(Conflict):
        await tables.save(empty.table, empty)


async def test_a_ring_with_other_slots_is_refused() -> None:
    memory = MemoryStore()
    tables = store_of(memory)
    empty = await tables.load()
    await tables.save(empty.table.changed({}), empty)
    with pytest.raises(ConfigError, match=r"sharding\.slots: ring r last ran with '4'"):
        await store_of(memory, slots=8).load()


async def test_a_grant_holds_while_its_slot_drains_and_no_longer() -> None:
    memory = MemoryStore()
    tables = store_of(memory)
    loaded = await tables.load()
    views = []
    for entry in (SlotEntry("a_1"), SlotEntry("a_1", to="b_1"), SlotEntry("b_1")):
        principals = {"a_1": "pod-a", "b_1": "pod-b", "c_1": "gone"}
        table = loaded.table.changed({2: entry})
        loaded = await tables.save(table, loaded, principals=principals)
        stored = await memory.load("r-table")
        assert stored is not None
        views.append(admission_view(stored.state))
    assert [view["grants"] for view in views] == ["0,0,1,0", "0,0,1,0", "0,0,3,0"]
    writers = [view["principals"].split("\n")[int(view["owners"].split(",")[2])] for view in views]
    assert writers == ["pod-a", "pod-a", "pod-b"]
    assert views[-1]["owners"].split(",")[0] == "0"
    assert views[-1]["principals"].split("\n") == ["", "pod-b"]


def test_a_pod_is_known_by_its_uid_and_others_by_name() -> None:
    assert principal_of({"username": "u", "extra": {POD_UID: ["p"]}}) == "p"
    assert principal_of({"username": "u", "extra": {}}) == "u"
    assert principal_of({"username": "u"}) == "u"


def test_a_stamp_says_the_slot_the_epoch_and_the_writer() -> None:
    names = Names("r", "d.example")
    with pytest.raises(NotOurs, match="grant"):
        stamped({}, names)
    with under(Grant(7, 12, "a_1")):
        assert current_grant() == Grant(7, 12, "a_1")
        body = stamped({"metadata": {"labels": {"x": "y"}}, "data": {}}, names)
    assert current_grant() is None
    assert body == {
        "metadata": {
            "labels": {"x": "y", "slot.d.example/r": "7"},
            "annotations": {"epoch.d.example/r": "12", "writer.d.example/r": "a_1"},
        },
        "data": {},
    }


@pytest.mark.parametrize("ring", ["", "A", "a_b", "-a", "a" * 41])
def test_a_ring_s_name_can_be_a_part_of_its_objects(ring: str) -> None:
    with pytest.raises(ConfigError, match=r"sharding\.ring"):
        Names(ring)


def test_two_incarnations_never_share_a_lease() -> None:
    names = Names("r")
    assert names.member("web-0_1f") == "r-member-web-0-1f"
    odd = {names.member(f"{'Web' * 90}_{n}") for n in range(3)} | {names.member("Web_0")}
    assert len(odd) == 4
    assert all(len(name) <= 253 and name == name.lower() for name in odd)
