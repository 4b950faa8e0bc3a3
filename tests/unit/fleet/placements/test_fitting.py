"""Statuses with the reports of members stay below the size that etcd accepts."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.bindings import ResourceBindingStatus
from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    DiffedPlacement,
    DriftedPlacement,
    FailedPlacement,
    PatchDetail,
    PlacementStatus,
)
from kubeocean.fleet.status.fitting import MOST_BYTES, fair_share, fitted, stored_size
from kubeocean.fleet.status.placement import trimmed
from kubeocean.runtime.objects import Condition
from unit.fleet.placements.builders import NOW

CONDITIONS = tuple(
    Condition(each, "False" if each == "Applied" else "True", "Reason", f"about {each}", NOW)
    for each in ("Scheduled", "RolloutStarted", "WorkSynchronized", "Applied")
)


def failed(number: int, message: str) -> FailedPlacement:
    condition = Condition("Applied", "False", "ApplyFailed", message, NOW)
    return FailedPlacement(version="v1", kind="ConfigMap", name=f"c{number}", condition=condition)


def entry(name: str, count: int = 0, message: str = "") -> ClusterPlacementStatus:
    return ClusterPlacementStatus(
        name,
        conditions=CONDITIONS,
        failed_placements=tuple(failed(each, message) for each in range(count)),
    )


def test_a_member_that_reports_too_much_takes_nothing_from_the_others() -> None:
    good = tuple(entry(f"good-{each}", 100, "quota exceeded") for each in range(20))
    bad = tuple(entry(f"bad-{each}", 100, "x" * 32_000) for each in range(3))
    status = trimmed(PlacementStatus(placement_statuses=(*good, *bad)))
    assert stored_size(status) <= MOST_BYTES
    by_name = {each.cluster_name: each for each in status.placement_statuses}
    for each in good:
        kept = by_name[each.cluster_name]
        assert kept.failed_placements == each.failed_placements
        assert [(c.type, c.status) for c in kept.conditions] == [
            (c.type, c.status) for c in CONDITIONS
        ]
    for each in bad:
        kept = by_name[each.cluster_name]
        assert kept.failed_placements
        assert kept.failed_placements[0].condition.message.startswith("x" * 1000)
        assert [c.type for c in kept.conditions] == [c.type for c in CONDITIONS]


def test_characters_that_a_server_stores_as_six_are_counted_so() -> None:
    status = ResourceBindingStatus(failed_placements=(failed(0, "<" * 200_000),))
    assert stored_size(status) > 1_200_000
    assert stored_size(fitted(status)) <= MOST_BYTES


def test_a_binding_loses_long_texts_before_objects() -> None:
    detail = PatchDetail("/spec/a", "m" * 5000, "h" * 5000)
    drifts = tuple(
        DriftedPlacement(name=f"d{each}", observed_drifts=(detail,)) for each in range(100)
    )
    diffs = tuple(DiffedPlacement(name=f"e{each}", observed_diffs=(detail,)) for each in range(100))
    status = ResourceBindingStatus(
        drifted_placements=drifts, diffed_placements=diffs, conditions=CONDITIONS
    )
    fit = fitted(status)
    assert stored_size(fit) <= MOST_BYTES
    assert (len(fit.drifted_placements), len(fit.diffed_placements)) == (100, 100)
    assert fit.drifted_placements[0].observed_drifts[0].value_in_member == "m" * 1000 + "…"
    assert fit.conditions == CONDITIONS


def test_a_status_that_fits_is_not_changed() -> None:
    status = ResourceBindingStatus(failed_placements=(failed(0, "y" * 5000),))
    assert fitted(status) is status


def test_names_of_any_length_are_left_out() -> None:
    long = msgspec.structs.replace(failed(0, ""), name="n" * 2_000_000)
    status = ResourceBindingStatus(failed_placements=(long,), conditions=CONDITIONS)
    assert fitted(status) == ResourceBindingStatus(conditions=CONDITIONS)


@given(
    st.lists(st.integers(0, 10_000), max_size=30),
    st.integers(0, 100_000),
)
def test_shares_use_what_there_is_and_no_more(sizes: list[int], most: int) -> None:
    share = fair_share(sizes, most)
    cut = [min(size, share) for size in sizes]
    assert sum(cut) <= most or not sizes
    if sum(sizes) <= most:
        assert cut == sizes
    elif sizes:
        assert sum(min(size, share + 1) for size in sizes) > most
