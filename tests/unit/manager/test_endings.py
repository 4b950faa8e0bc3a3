"""Endings: when a binding that is deleted may go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.api.binding import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.manager.endings import Go, Wait, decide, left_behind
from kubeocean.manager.leaders import Leader
from kubeocean.runtime.objects import Meta

DELETED = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 300.0


def after(seconds: float) -> datetime:
    return DELETED + timedelta(seconds=seconds)


def ends(
    leader: Leader, seconds: float, *, syncs: bool = True, force: str | None = None
) -> Wait | Go:
    held = (DEFAULT.finalizer_manager, *((DEFAULT.finalizer_syncer,) if syncs else ()))
    binding = ClusterBinding(
        metadata=Meta(
            name="b",
            deletion_timestamp="2026-01-01T00:00:00Z",
            finalizers=held,
            annotations={DEFAULT.force_deletion: force} if force else None,
        ),
        spec=BindingSpec(cluster_id="c1"),
    )
    now = after(seconds)
    return decide(binding, leader, now=now, deadline_s=DEADLINE_S, domain=DEFAULT)


def test_who_has_no_syncer_goes_at_once() -> None:
    assert ends(Leader(False), 0, syncs=False) == Go()


def test_a_syncer_at_work_is_waited_for_however_long_its_rules_take() -> None:
    for seconds in (0, 100_000):
        found = ends(Leader(True), seconds)
        assert isinstance(found, Wait)
        assert found.until is None
        assert "Drained" in found.waits


def test_a_syncer_that_never_comes_is_waited_for_until_the_deadline() -> None:
    found = ends(Leader(False), DEADLINE_S - 1)
    assert isinstance(found, Wait)
    assert found.until == after(DEADLINE_S)
    assert f"given up at 2026-01-01T00:05:00Z, or at once with the annotation {_force()}" in (
        found.waits
    )
    gone = ends(Leader(False), DEADLINE_S)
    assert gone == Go("no syncer has been at work since 2026-01-01T00:00:00Z")


def test_the_deadline_begins_when_the_last_syncer_falls_silent() -> None:
    silent = Leader(False, after(100))
    assert isinstance(ends(silent, DEADLINE_S), Wait)
    assert isinstance(ends(silent, DEADLINE_S + 100), Go)
    assert isinstance(ends(Leader(False, after(-9_999)), DEADLINE_S - 1), Wait)


def test_force_ends_every_wait() -> None:
    for leader in (Leader(True), Leader(False)):
        assert ends(leader, 0, force="true") == Go("the wait was ended by force")
        assert isinstance(ends(leader, 0, force="false"), Wait)


def test_what_may_be_left_names_what_to_look_for() -> None:
    binding = ClusterBinding(spec=BindingSpec(cluster_id="c1"))
    said = left_behind(binding, 2, DEFAULT)
    assert said.startswith("2 virtual nodes were removed; ")
    assert DEFAULT.synced_by("c1") in said
    assert DEFAULT.finalizer_for("c1") in said


def _force() -> str:
    return f"{DEFAULT.force_deletion}=true"
