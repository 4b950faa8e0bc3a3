"""Members: a replica lives while its Lease changes; times in the Lease do not count."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.sharding.admin import Member
from kubeocean.sharding.members import (
    NEVER,
    MemberRecord,
    MemberSighting,
    MemberState,
    decode_loads,
    decode_member,
    encode_loads,
    encode_member,
    expired,
    judge,
    observe,
)
from kubeocean.sharding.timing import Timing

TIMING = Timing()
A = MemberRecord(id="a_1", pulse="1", lease_s=15)


def test_a_member_is_healthy_while_its_lease_changes_and_unhealthy_after() -> None:
    seen = observe({}, [A], started=0, now=1)
    assert judge(seen["a_1"], 10.9, TIMING) is MemberState.HEALTHY
    assert judge(seen["a_1"], 11, TIMING) is MemberState.UNHEALTHY
    again = observe(seen, [replace(A, pulse="2")], started=None, now=10)
    assert judge(again["a_1"], 19, TIMING) is MemberState.HEALTHY
    assert (
        judge(
            observe({}, [replace(A, state=MemberState.LEAVING)], started=0, now=0)["a_1"], 1, TIMING
        )
        is MemberState.LEAVING
    )


def test_death_is_concluded_only_from_a_read_that_began_after_the_patience() -> None:
    seen = observe({}, [A], started=0, now=1)
    late_answer = observe(seen, [A], started=16.4, now=99)
    assert not expired(late_answer["a_1"], TIMING)
    assert expired(observe(seen, [A], started=16.5, now=17)["a_1"], TIMING)


def test_a_watch_brings_life_but_never_death() -> None:
    seen = observe({}, [A], started=0, now=0)
    for now in range(1, 100):
        seen = observe(seen, [A], started=None, now=now)
    assert not expired(seen["a_1"], TIMING)
    assert judge(seen["a_1"], 99, TIMING) is MemberState.UNHEALTHY


def test_a_longer_promise_is_believed_and_a_shorter_one_is_not() -> None:
    for lease_s, certain in ((30, 30.5), (5, 15.5), (0, 15.5)):
        member = replace(A, lease_s=lease_s)
        seen = observe({}, [member], started=0, now=0)
        before, after = (
            observe(seen, [member], started=t, now=t) for t in (certain - 0.1, certain)
        )
        assert not expired(before["a_1"], TIMING)
        assert expired(after["a_1"], TIMING)


def test_who_is_not_there_has_its_time_from_when_it_was_missed() -> None:
    seen = observe({}, [A], started=0, now=0)
    seen = observe(seen, [], expected=["a_1", "b_1"], started=100, now=101)
    assert seen["a_1"] == seen["b_1"] == MemberSighting(None, 101, 100)
    assert judge(seen["a_1"], 101, TIMING) is MemberState.UNHEALTHY
    later = observe(seen, [], expected=["a_1"], started=116.5, now=117)
    assert expired(later["a_1"], TIMING)
    assert "b_1" not in later
    back = observe(later, [A], expected=["a_1"], started=120, now=120)
    assert not expired(back["a_1"], TIMING)


def test_a_released_member_is_dead_at_once() -> None:
    seen = observe({}, [replace(A, released=True)], started=None, now=5)
    assert expired(seen["a_1"], TIMING)
    assert judge(seen["a_1"], 5, TIMING) is MemberState.UNHEALTHY
    assert seen["a_1"].confirmed == NEVER


def test_a_record_survives_text() -> None:
    record = MemberRecord(
        id="a_1",
        pulse="7",
        lease_s=6,
        state=MemberState.LEAVING,
        released=True,
        template="v2",
        predecessor="b",
        capacity=0.5,
        acks={0: 5, 1: 5, 9: 8},
        seen=8,
        unplaced=3,
        controllers=("a", "b"),
        joined=5,
        loads={0: 0.5, 3: 1024.0},
        uid="u",
    )
    text = encode_member(record)
    loads = encode_loads(record.loads)
    assert decode_member("a_1", text=text, pulse="7", lease_s=6, loads=loads, uid="u") == record
    assert json.loads(encode_member(A)) in ({}, {"capacity": 1.0})  # the default may be left out
    assert decode_member("a_1", text="{}", pulse="1", lease_s=15) == A


@given(st.dictionaries(st.integers(0, 1023), st.floats(0, 60_000)))
def test_loads_survive_text_to_three_digits(loads: dict[int, float]) -> None:
    assert decode_loads(encode_loads(loads)) == pytest.approx(loads, rel=1e-3, abs=1e-4)
    assert len(encode_loads(loads)) < 3_000


def test_loads_that_cannot_be_are_left_out() -> None:
    assert decode_loads(encode_loads({0: 1e9})) == {0: 65504.0}
    assert decode_loads(encode_loads({0: -1.0, 1: 1.0})) == {1: 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"state":"Unhealthy"}',
        '{"capacity":0}',
        '{"acks":{"x":"1"}}',
        '{"acks":{"1":"x"}}',
        '{"acks":{"1":"0-3","2":"3"}}',
    ],
)
def test_what_no_replica_writes_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="member a_1"):
        decode_member("a_1", text=text, pulse="1")


@pytest.mark.parametrize("text", ["0-3 xx", "0", "0-1 AAA=", "x AAA="])
def test_loads_of_nonsense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        decode_loads(text)


def test_the_periods_fit_each_other_and_tolerate_clocks_that_are_a_tenth_off() -> None:
    fast = Timing(lease_s=6.0, renew_s=4.0, retry_s=1.0, drain_s=5.0, cancel_s=2.0, handover_s=15.0)
    for timing in (TIMING, fast):
        timing.validate()
        assert timing.drift > 0.1
    assert TIMING.patience_s == 15.5


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (Timing(renew_s=15), "state.leaseDuration"),
        (Timing(renew_s=2.4), "state.renewDeadline"),
        (Timing(retry_s=0), "state.retryPeriod"),
        (Timing(drain_s=0), "sharding.drainDeadline"),
        (Timing(cancel_s=0), "sharding.cancelDeadline"),
        (Timing(margin_s=-1), "sharding.safetyMargin"),
        (Timing(handover_s=35), "sharding.handoverDeadline"),
    ],
)
def test_periods_that_do_not_fit_are_refused_by_key(timing: Timing, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        timing.validate()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("released", "silent_s", "status"),
    [
        (False, 14, "Healthy"),
        (False, 16, "Unhealthy"),
        (True, 16, "Left"),
        (False, None, "Unhealthy"),
    ],
)
def test_people_are_shown_that_a_replica_does_not_renew_its_lease(
    released: bool, silent_s: float | None, status: str
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    renewed = None if silent_s is None else now - timedelta(seconds=silent_s)
    record = MemberRecord(id="a_1", pulse="1", lease_s=15, released=released)
    assert Member(record, renewed, "").status(now) == status
