"""What is remembered of nodes on their way back, and said of a binding that is drained."""

from __future__ import annotations

from datetime import UTC, datetime

from kubeocean.api.policy import Eviction, ReclaimPod
from kubeocean.leasing.plans import Phase
from kubeocean.leasing.report import News, NodeReport
from kubeocean.leasing.rules import Cause
from kubeocean.syncer.bottomup.drain import Unconfirmed, ends_by, first_few, remaining
from kubeocean.syncer.bottomup.reclaims import Reclaims

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
EVICTION = Eviction("a", "b", "v")


def report(node: str = "v", phase: Phase = Phase.EVICTING, pods: int = 0) -> NodeReport:
    named = tuple(ReclaimPod("team", f"p{n}", node, "Budget") for n in range(pods))
    return NodeReport(
        node, Cause.BINDING_DELETED, phase, NOON, NOON, NOON, pending=pods, pods=named
    )


def listening() -> tuple[Reclaims, list[str]]:
    reclaims, heard = Reclaims(), list[str]()
    reclaims.on_change(heard.append)
    return reclaims, heard


def test_only_a_change_is_news() -> None:
    reclaims, heard = listening()
    reclaims.lent("v", "p")
    assert heard == []
    reclaims.note("p", report())
    reclaims.note("p", report())
    assert heard == ["p"]
    reclaims.note("p", report(phase=Phase.FORCING))
    reclaims.gone("v")
    reclaims.gone("v")
    assert heard == ["p"] * 3
    assert reclaims.news("p", lends=False).reports == ()


def test_what_was_told_is_told_no_more() -> None:
    reclaims, heard = listening()
    reclaims.note("p", report())
    reclaims.evicted("p", EVICTION)
    news = reclaims.news("p", lends=True)
    assert news == News((report(),), (EVICTION,), report(), False, True)
    reclaims.evicted("p", EVICTION)  # while the news are being written
    reclaims.told("p", news)
    assert reclaims.news("p", lends=False) == News((report(),), (EVICTION,))
    reclaims.told("p", reclaims.news("p", lends=False))
    reclaims.told("p", reclaims.news("p", lends=False))
    assert reclaims.news("p", lends=False) == News((report(),))
    assert heard == ["p"] * 3


def test_a_node_that_is_lent_again_is_remembered_until_the_end() -> None:
    reclaims, _ = listening()
    reclaims.note("p", report("v"))
    reclaims.note("p", report("w"))
    reclaims.lent("v", "p")
    news = reclaims.news("p", lends=True)
    assert news.lent_again
    reclaims.told("p", news)
    assert reclaims.news("p", lends=True).lent_again
    reclaims.lent("w", "p")
    reclaims.told("p", reclaims.news("p", lends=True))
    assert reclaims.news("p", lends=True) == News(lends=True)


def test_a_node_belongs_to_one_policy() -> None:
    reclaims, heard = listening()
    assert not reclaims.knows("v")
    reclaims.note("p", report())
    reclaims.lent("v", "q")
    assert heard == ["p", "p"]
    assert reclaims.knows("v")
    assert reclaims.reports() == []
    reclaims.evicted("q", EVICTION)
    reclaims.forget("q")
    assert reclaims.news("q", lends=False) == News()


def test_what_remains_is_named_as_far_as_one_can_read() -> None:
    assert remaining([], ["v"]) == "1 virtual node: v"
    said = remaining([report("v", pods=2), report("w")], ["w", "v", "x"])
    assert said == "3 virtual nodes: v (2 pods: team/p0 Budget, team/p1 Budget), w, x"
    many = remaining([report("v00", pods=9)], [f"v{n:02}" for n in range(1000)])
    assert many.endswith("v04 and 995 more")
    assert "team/p4 Budget and 4 more" in many
    assert first_few([]) == ""


def test_an_end_is_promised_while_pods_are_waited_for() -> None:
    assert ends_by([]) == ""
    assert ends_by([report(phase=Phase.RECLAIMED)]) == ""
    assert ends_by([report()]) == "; ends by 2026-11-16T12:02:00Z"


def test_what_the_worker_did_not_confirm_is_named() -> None:
    unconfirmed = Unconfirmed()
    assert "(" not in unconfirmed.describe()
    unconfirmed.node("n1")
    unconfirmed.pod("team/p")
    assert "in the worker (team/p), our label on its nodes (n1)" in unconfirmed.describe()
    unconfirmed.clear()
    assert "(" not in unconfirmed.describe()
