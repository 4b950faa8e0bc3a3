"""Tests of explanations of nodes."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.inspect.explain.node import explain_node
from kubeocean.inspect.explain.report import ExplanationRule, document, page
from kubeocean.inspect.explain.snapshots import BindingSnapshot, NodeSnapshot
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.kinds import Node
from support.explain_objects import (
    CLOSED,
    NIGHT,
    UNREAD,
    VIRTUAL,
    binding,
    bound,
    counted,
    lease,
    node,
    pnode,
    policy,
)
from support.explain_objects import vnode as virtual

HALF = [{"resource": "cpu", "percent": 50}]


def test_an_offer_is_explained_by_the_limit_and_the_requests_of_others() -> None:
    others = counted("a", cpu="2", memory="8Gi")
    mine = counted("b", ours=True, cpu="1")
    known = node(policy(resourceLimits=HALF), worker_pods=(others, mine), vnode=virtual(cpu="3"))
    explanation = explain_node(known)
    assert explanation.rule is ExplanationRule.LENT
    assert "cpu 3 of 8 (policy p lends 50 % of the 6 that are left)" in explanation.verdict
    assert "memory 24Gi of 32Gi (pods of others request 8Gi)" in explanation.verdict
    (cpu, *_) = explanation.resources
    assert (cpu.allocatable, cpu.others, cpu.leftover) == ("8", "2", "6")
    assert (cpu.limit, cpu.lent, cpu.used, cpu.offered) == ("50 %", "3", "1", "3")
    assert any("memory 32Gi instead of 24Gi" in each for each in explanation.reasons)


def test_a_node_offers_at_least_what_its_pods_use() -> None:
    used = counted("b", ours=True, cpu="6")
    explanation = explain_node(node(policy(resourceLimits=HALF), worker_pods=(used,)))
    assert (
        "cpu 6 of 8 (pods of the binding request that much already; only 4 would be lent now)"
        in explanation.verdict
    )
    assert explanation.remedies == ("other resourceLimits in policy p",)


TYPO = [{"resource": "memroy", "percent": 50}, {"resource": "cpu", "percent": 50}]


def test_a_limit_of_a_resource_that_no_node_has_is_read_cautiously() -> None:
    explanation = explain_node(node(policy(resourceLimits=TYPO), worker_nodes=(pnode(),)))
    assert explanation.rule is ExplanationRule.LENT
    assert "memory 0 of 32Gi (policy p limits memroy, which no node has)" in explanation.verdict
    assert "cpu 4 of 8 (policy p lends 50 % of the 8 that are left)" in explanation.verdict
    assert any("limits memroy, a resource of no node" in each for each in explanation.reasons)
    assert explanation.remedies[0] == "a correct name instead of memroy in policy p"
    (memory,) = [each for each in explanation.resources if each.resource == "memory"]
    assert (memory.limit, memory.lent) == ("withheld", "0")


def test_a_limit_of_a_resource_that_another_selected_node_has_is_no_mistake() -> None:
    amounts = {"cpu": "8", "memory": "32Gi", "memroy": "1"}
    body = {"metadata": {"name": "n2"}, "status": {"allocatable": amounts}}
    other = msgspec.convert(body, Node)
    explanation = explain_node(node(policy(resourceLimits=TYPO), worker_nodes=(pnode(), other)))
    assert "memroy" not in explanation.verdict
    assert "32Gi" in next(e.offered for e in explanation.resources if e.resource == "memory")


def test_what_a_doubtful_limit_lends_is_not_concluded_from_nodes_that_were_not_read() -> None:
    explanation = explain_node(node(policy(resourceLimits=TYPO), worker_nodes=UNREAD))
    assert explanation.verdict == "it is lent by policy p; how much it offers is not known"
    assert explanation.unread


def test_probable_mistakes_of_the_policy_that_decides_are_shown() -> None:
    nothing = [{"resource": "cpu"}]
    explanation = explain_node(node(policy(resourceLimits=nothing)))
    (policies,) = [each for each in explanation.sections if each.title == "policies"]
    assert any(each.startswith("  probable mistakes: ") for each in policies.lines), policies
    assert "cpu 0 of 8 (policy p lends none, without a number of the 8" in explanation.verdict


def test_other_bindings_with_a_node_of_that_name_are_named() -> None:
    explanation = explain_node(node(policy(), namesakes=("c", "d")))
    assert "it is the one of binding b; of that name, by --binding: c, d" in explanation.reasons


def test_the_oldest_policy_decides_and_each_other_has_a_reason_why_not() -> None:
    old = policy("old", created="2025-01-01T00:00:00Z")
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}
    other = policy("other", created="2024-01-01T00:00:00Z", nodeSelector=elsewhere)
    explanation = explain_node(node(policy("young"), old, other))
    (policies,) = [each for each in explanation.sections if each.title == "policies"]
    assert policies.lines[0].startswith("old decides")
    assert "other does not: it does not select this node" in policies.lines
    assert any(each.startswith("young does not: policy old is older") for each in policies.lines)


def test_a_closed_window_is_explained_with_its_next_edge_in_its_zone() -> None:
    closed = policy(timeWindows=NIGHT, timeZone="Europe/Berlin", forceReclaim=True)
    explanation = explain_node(node(closed, vnode=virtual(taints=(VIRTUAL, CLOSED))))
    assert explanation.rule is ExplanationRule.WINDOW_CLOSED
    assert "window of policy p is closed until Mon 2026-11-16 20:00:00 Europe/Berlin" in (
        explanation.verdict
    )
    assert "Mon 13:00 Europe/Berlin" in explanation.verdict


def _deleted() -> BindingSnapshot:
    meta = {"name": "b", "deletionTimestamp": "2026-11-16T11:00:00Z"}
    return bound(policy(), binding=binding(metadata=meta))


@pytest.mark.parametrize(
    ("known", "rule", "text"),
    [
        (
            node(vnode=None),
            ExplanationRule.NO_POLICY,
            "no policy of the worker names the binding b",
        ),
        (node(policy(), pnode=None), ExplanationRule.TAKEN_BACK, "the worker's node n1 is gone"),
        (node(binding=_deleted()), ExplanationRule.TAKEN_BACK, "the binding b is being deleted"),
        (node(policy(timeZone="Nowhere")), ExplanationRule.POLICY_INVALID, "policy p is invalid"),
        (node(policy(), pnode=pnode(ready=False)), ExplanationRule.NOT_READY, "KubeletDown"),
        (
            node(policy(), pnode=pnode(cordoned=True)),
            ExplanationRule.CORDONED,
            "the worker's node is cordoned",
        ),
        (
            node(policy(), vnode=virtual(cordoned=True)),
            ExplanationRule.CORDONED,
            "the virtual node is cordoned",
        ),
        (node(policy(), vnode=None), ExplanationRule.SYNCER_SILENT, "does not exist"),
        (
            node(policy(), heartbeat=lease("2026-11-16T11:00:00Z")),
            ExplanationRule.SYNCER_SILENT,
            "its syncer is not at work",
        ),
        (node(binding=bound(problem="no route")), ExplanationRule.WORKER_UNREAD, "cannot be read"),
        (node(binding=bound(worker=None)), ExplanationRule.BINDING_GONE, "does not exist"),
        (
            node(policy(), vnode=virtual(taints=(VIRTUAL, CLOSED))),
            ExplanationRule.COOLING,
            "takes no new pods yet",
        ),
        (
            NodeSnapshot(binding=bound(worker=None), name="x"),
            ExplanationRule.NOT_FOUND,
            "there is no such node",
        ),
        (
            node(policy(), pnode=pnode(type="virtual-kubelet")),
            ExplanationRule.TAKEN_BACK,
            "does not select",
        ),
    ],
)
def test_the_first_rule_with_an_answer_decides(
    known: NodeSnapshot, rule: ExplanationRule, text: str
) -> None:
    explanation = explain_node(known)
    assert (explanation.rule, text in explanation.verdict) == (rule, True), explanation.verdict


@pytest.mark.parametrize(
    ("known", "part"),
    [
        (node(policy(), vnode=NotRead("node v", "403")), "node v"),
        (node(binding=bound(worker=NotRead("binding b", "403"))), "binding b"),
        (node(policy(), pnode=NotRead("node n1 of the worker", "503")), "node n1 of the worker"),
        (node(binding=bound(parts={"policies": NotRead("policies", "403")})), "policies"),
        (
            node(binding=bound(policy(), parts={"ids": NotRead("kube-system", "403")})),
            "kube-system",
        ),
        (
            NodeSnapshot(
                binding=bound(worker=None), name="x", searched=(NotRead("worker c", "silent"),)
            ),
            "worker c",
        ),
    ],
)
def test_a_part_that_was_not_read_is_not_taken_for_absent(known: NodeSnapshot, part: str) -> None:
    explanation = explain_node(known)
    assert explanation.rule is ExplanationRule.NOT_READ, explanation.verdict
    assert explanation.verdict.endswith(f"could not read {part}")
    assert any(each.startswith(f"{part}: ") for each in explanation.unread)
    assert not any("finalizer" in each for each in explanation.remedies)


def test_amounts_are_not_known_without_the_pods_on_the_worker_s_node() -> None:
    explanation = explain_node(node(policy(resourceLimits=HALF), worker_pods=UNREAD))
    assert explanation.rule is ExplanationRule.LENT
    assert explanation.verdict == "it is lent by policy p; how much it offers is not known"
    assert explanation.resources == ()


def test_a_lease_that_was_not_read_is_no_missing_heartbeat() -> None:
    assert explain_node(node(policy(), heartbeat=UNREAD)).rule is ExplanationRule.LENT


def test_a_page_begins_with_the_verdict_and_a_document_holds_all_of_it() -> None:
    explanation = explain_node(node(policy(resourceLimits=HALF)))
    lines = list(page(explanation))
    assert lines[0] == f"node vnode-w1-n1: {explanation.verdict}"
    assert lines[1] == "  decided by: Lent"
    assert any("node has" in line and "offered" in line for line in lines)
    assert document(explanation)["rule"] == "Lent"
    assert len(lines) < 40
