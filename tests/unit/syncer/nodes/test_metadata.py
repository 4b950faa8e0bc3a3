"""Metadata shared with users: theirs stays, ours follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.runtime.kinds import Taint
from kubeocean.syncer.nodes.metadata import Expected, merge, merge_taints

KEYS = st.sampled_from(["a", "b", "c", "d"])
MAPS = st.dictionaries(KEYS, st.sampled_from(["1", "2"]))
TAINTS = st.lists(
    st.builds(
        Taint, KEYS, st.sampled_from(["", "x"]), st.sampled_from(["NoSchedule", "NoExecute"])
    ),
    unique_by=lambda taint: (taint.key, taint.effect),
).map(tuple)


@given(now=MAPS, before=MAPS, wanted=MAPS)
def test_a_merge_has_all_wanted_keys_and_keeps_those_of_others(
    now: dict[str, str], before: dict[str, str], wanted: dict[str, str]
) -> None:
    then = merge(now, before, wanted)
    assert wanted.items() <= then.items()
    for key, value in now.items():
        if key not in before and key not in wanted:
            assert then[key] == value
        if key in before and key not in wanted:
            assert key not in then
    assert then.keys() <= now.keys() | wanted.keys()


@given(labels=MAPS, annotations=MAPS, taints=TAINTS)
def test_an_expectation_is_remembered(
    labels: dict[str, str], annotations: dict[str, str], taints: tuple[Taint, ...]
) -> None:
    wanted = Expected(labels, annotations, taints)
    assert Expected.decode(wanted.encode()) == wanted


def test_an_expectation_that_was_tampered_with_is_none() -> None:
    for text in ("", "!", "é", "bm90IGpzb24=", "eyJsYWJlbHMiOiA1fQ=="):
        assert Expected.decode(text) == Expected()


@given(now=TAINTS, before=TAINTS, wanted=TAINTS)
def test_taints_of_others_stay_and_no_taint_is_duplicated(
    now: tuple[Taint, ...], before: tuple[Taint, ...], wanted: tuple[Taint, ...]
) -> None:
    then = merge_taints(now, before, wanted, owns=lambda key: key == "d")
    keys = [(taint.key, taint.effect) for taint in then]
    assert len(keys) == len(set(keys))
    assert set(wanted) <= set(then)
    ours = {(taint.key, taint.effect) for taint in (*before, *wanted)}
    for taint in now:
        if (taint.key, taint.effect) not in ours and taint.key != "d":
            assert taint in then
    assert not [t for t in then if t.key == "d" and t not in wanted]


def test_a_taint_keeps_the_time_at_which_it_was_added() -> None:
    present = Taint("a", "", "NoExecute", "2026-01-01T00:00:00Z")
    wanted = Taint("a", "", "NoExecute")
    assert merge_taints((present,), (), (wanted,), owns=lambda _: False) == (present,)
