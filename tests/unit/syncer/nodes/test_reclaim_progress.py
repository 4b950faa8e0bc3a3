"""The progress of reclaims: records of nodes and policies, and records that a written status
drops."""

from __future__ import annotations

from datetime import UTC, datetime

from kubeocean.api.policies import Eviction
from kubeocean.leasing.decision import ReclaimCause
from kubeocean.leasing.progress import NodeReport, PolicyProgress
from kubeocean.leasing.reclaim import ReclaimPhase
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
EVICTION = Eviction("a", "b", "v")


def report(node: str = "v", phase: ReclaimPhase = ReclaimPhase.EVICTING) -> NodeReport:
    return NodeReport(node, ReclaimCause.BINDING_DELETED, phase, NOON, NOON, NOON)


def recorded() -> tuple[ReclaimProgress, list[str]]:
    """Return empty progress, and the list of policies for which its handler was called."""
    progress, called = ReclaimProgress(), list[str]()
    progress.on_change(called.append)
    return progress, called


def test_only_a_change_calls_the_handlers() -> None:
    progress, called = recorded()
    progress.record_lent("v", "p")
    assert called == []
    progress.record_reclaim("p", report())
    progress.record_reclaim("p", report())
    assert called == ["p"]
    progress.record_reclaim("p", report(phase=ReclaimPhase.FORCING))
    progress.forget_node("v")
    progress.forget_node("v")
    assert called == ["p"] * 3
    assert progress.of_policy("p", lends=False).reports == ()


def test_progress_that_a_written_status_shows_is_dropped() -> None:
    progress, called = recorded()
    progress.record_reclaim("p", report())
    progress.record_eviction("p", EVICTION, NOON)
    shown = progress.of_policy("p", lends=True)
    assert shown == PolicyProgress((report(),), (EVICTION,), report(), False, True)
    progress.record_eviction("p", EVICTION, NOON)  # while the status is being written
    progress.mark_written("p", shown)
    assert progress.of_policy("p", lends=False) == PolicyProgress((report(),), (EVICTION,))
    progress.mark_written("p", progress.of_policy("p", lends=False))
    progress.mark_written("p", progress.of_policy("p", lends=False))
    assert progress.of_policy("p", lends=False) == PolicyProgress((report(),))
    assert called == ["p"] * 3


def test_a_node_that_is_lent_again_counts_until_no_reclaim_is_under_way() -> None:
    progress, _ = recorded()
    progress.record_reclaim("p", report("v"))
    progress.record_reclaim("p", report("w"))
    progress.record_lent("v", "p")
    shown = progress.of_policy("p", lends=True)
    assert shown.lent_again
    progress.mark_written("p", shown)
    assert progress.of_policy("p", lends=True).lent_again
    progress.record_lent("w", "p")
    progress.mark_written("p", progress.of_policy("p", lends=True))
    assert progress.of_policy("p", lends=True) == PolicyProgress(lends=True)


def test_a_virtual_node_has_one_policy_at_a_time() -> None:
    progress, called = recorded()
    assert not progress.is_known("v")
    progress.record_reclaim("p", report())
    assert progress.reports() == [report()]
    progress.record_lent("v", "q")
    assert called == ["p", "p"]
    assert progress.is_known("v")
    assert progress.reports() == []
    progress.record_eviction("q", EVICTION, NOON)
    progress.forget_policy("q")
    assert progress.of_policy("q", lends=False) == PolicyProgress()


def test_a_node_is_reclaimed_from_its_first_report_until_it_is_lent() -> None:
    progress, _ = recorded()
    assert not progress.is_reclaimed("v")
    progress.record_lent("v", "p")
    assert not progress.is_reclaimed("v"), "known, but not reconciled since the window closed"
    progress.record_reclaim("p", report())
    assert progress.is_reclaimed("v")
    progress.record_lent("v", "p")
    assert not progress.is_reclaimed("v")


def test_a_node_that_is_lent_again_calls_the_handlers_once() -> None:
    progress, called = recorded()
    progress.record_reclaim("p", report())
    progress.record_lent("v", "p")
    progress.record_lent("v", "p")
    assert called == ["p", "p"]


def test_an_eviction_is_remembered_until_its_node_is_gone() -> None:
    progress, _ = recorded()
    assert progress.last_eviction("v") is None
    progress.record_eviction("p", EVICTION, NOON)
    assert progress.last_eviction("v") == NOON
    assert not progress.is_known("v"), "an eviction is no complete reconcile"
    progress.forget_node("v")
    assert progress.last_eviction("v") is None
