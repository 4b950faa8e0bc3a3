"""Tests of the decision whether the deletion of a binding waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kubeocean.api.bindings import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.manager.deletion import Proceed, Wait, decide, unconfirmed_objects
from kubeocean.manager.syncer_leader import SyncerLeader
from kubeocean.runtime.objects import Meta

DELETED = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 300.0


def after(seconds: float) -> datetime:
    return DELETED + timedelta(seconds=seconds)


def ends(
    leader: SyncerLeader, seconds: float, *, syncs: bool = True, force: str | None = None
) -> Wait | Proceed:
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


def test_a_binding_without_the_syncers_finalizer_is_deleted_at_once() -> None:
    assert ends(SyncerLeader(False), 0, syncs=False) == Proceed()


def test_the_deletion_waits_while_a_syncer_leads() -> None:
    for seconds in (0, 100_000):
        decision = ends(SyncerLeader(True), seconds)
        assert isinstance(decision, Wait)
        assert decision.until is None
        assert "Drained" in decision.waits


def test_the_deletion_waits_until_the_deadline_if_no_syncer_leads() -> None:
    decision = ends(SyncerLeader(False), DEADLINE_S - 1)
    assert isinstance(decision, Wait)
    assert decision.until == after(DEADLINE_S)
    assert f"the wait ends at 2026-01-01T00:05:00Z, or at once with the annotation {_force()}" in (
        decision.waits
    )
    gone = ends(SyncerLeader(False), DEADLINE_S)
    assert gone == Proceed("no syncer has led since 2026-01-01T00:00:00Z")


def test_the_deadline_starts_at_the_last_renewal_of_a_syncer() -> None:
    silent = SyncerLeader(False, after(100))
    assert isinstance(ends(silent, DEADLINE_S), Wait)
    assert isinstance(ends(silent, DEADLINE_S + 100), Proceed)
    assert isinstance(ends(SyncerLeader(False, after(-9_999)), DEADLINE_S - 1), Wait)


def test_the_force_annotation_ends_each_wait() -> None:
    for leader in (SyncerLeader(True), SyncerLeader(False)):
        assert ends(leader, 0, force="true") == Proceed("the wait was ended by force")
        assert isinstance(ends(leader, 0, force="false"), Wait)


def test_unconfirmed_objects_are_described_with_their_labels() -> None:
    binding = ClusterBinding(spec=BindingSpec(cluster_id="c1"))
    description = unconfirmed_objects(binding, 2, DEFAULT)
    assert description.startswith("2 virtual nodes were deleted; ")
    assert DEFAULT.synced_by("c1") in description
    assert DEFAULT.finalizer_for("c1") in description


def _force() -> str:
    return f"{DEFAULT.force_deletion}=true"
