"""What is said of nodes, and which rule decides."""

from __future__ import annotations

import pytest

from explained import CLOSED, NIGHT, VIRTUAL, binding, counted, lease, node, pnode, policy, side
from explained import vnode as virtual
from kubeocean.explaining.facts import NodeFacts, Side
from kubeocean.explaining.nodes import explain_node
from kubeocean.explaining.story import Rule, document, page

HALF = [{"resource": "cpu", "percent": 50}]


def test_a_limit_is_told_with_its_figures_and_those_of_others() -> None:
    others = counted("a", cpu="2", memory="8Gi")
    mine = counted("b", ours=True, cpu="1")
    facts = node(policy(resourceLimits=HALF), counted=(others, mine), vnode=virtual(cpu="3"))
    story = explain_node(facts)
    assert story.rule is Rule.LENT
    assert "cpu 3 of 8 (policy p lends 50 % of the 6 that are left)" in story.verdict
    assert "memory 24Gi of 32Gi (pods of others request 8Gi)" in story.verdict
    (cpu, *_) = story.figures
    assert (cpu.allocatable, cpu.others, cpu.leftover) == ("8", "2", "6")
    assert (cpu.limit, cpu.lent, cpu.used, cpu.offered) == ("50 %", "3", "1", "3")
    assert any("memory 32Gi instead of 24Gi" in each for each in story.reasons)


def test_what_runs_is_not_denied() -> None:
    used = counted("b", ours=True, cpu="6")
    story = explain_node(node(policy(resourceLimits=HALF), counted=(used,)))
    assert "cpu 6 of 8 (our pods use that much already; only 4 would be lent now)" in story.verdict
    assert story.remedies == ("other resourceLimits in policy p",)


def test_a_name_that_nodes_of_several_workers_have_is_told() -> None:
    story = explain_node(node(policy(), namesakes=("c", "d")))
    assert "it is the one of binding b; of that name, by --binding: c, d" in story.reasons


def test_the_oldest_policy_decides_and_the_others_are_told_why_not() -> None:
    old = policy("old", created="2025-01-01T00:00:00Z")
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}
    other = policy("other", created="2024-01-01T00:00:00Z", nodeSelector=elsewhere)
    story = explain_node(node(policy("young"), old, other))
    (policies,) = [each for each in story.sections if each.title == "policies"]
    assert policies.lines[0].startswith("old decides")
    assert "other does not: it does not select this node" in policies.lines
    assert any(each.startswith("young does not: policy old is older") for each in policies.lines)


def test_a_closed_window_tells_the_next_edge_in_its_zone() -> None:
    closed = policy(timeWindows=NIGHT, timeZone="Europe/Berlin", forceReclaim=True)
    story = explain_node(node(closed, vnode=virtual(taints=(VIRTUAL, CLOSED))))
    assert story.rule is Rule.WINDOW_CLOSED
    assert "window of policy p is closed until Mon 2026-11-16 20:00:00 Europe/Berlin" in (
        story.verdict
    )
    assert "Mon 13:00 Europe/Berlin" in story.verdict


def _gone(**metadata: object) -> Side:
    meta = {"name": "b", "deletionTimestamp": "2026-11-16T11:00:00Z"}
    return side(policy(), binding=binding(metadata=meta))


@pytest.mark.parametrize(
    ("facts", "rule", "said"),
    [
        (node(vnode=None), Rule.NO_POLICY, "no policy of the worker names the binding b"),
        (node(policy(), pnode=None), Rule.TAKEN_BACK, "the worker's node n1 is gone"),
        (node(side=_gone()), Rule.TAKEN_BACK, "the binding b is being deleted"),
        (node(policy(timeZone="Nowhere")), Rule.POLICY_INVALID, "policy p is invalid"),
        (node(policy(), pnode=pnode(ready=False)), Rule.NOT_READY, "KubeletDown"),
        (node(policy(), vnode=None), Rule.SYNCER_SILENT, "is not there"),
        (
            node(policy(), heartbeat=lease("2026-11-16T11:00:00Z")),
            Rule.SYNCER_SILENT,
            "its syncer is not at work",
        ),
        (node(side=side(problem="no route")), Rule.WORKER_UNREAD, "cannot be read"),
        (node(side=side(binding=None)), Rule.BINDING_GONE, "does not exist"),
        (
            node(policy(), vnode=virtual(taints=(VIRTUAL, CLOSED))),
            Rule.COOLING,
            "takes no new pods yet",
        ),
        (NodeFacts(side=side(), name="x"), Rule.NOT_FOUND, "there is no such node"),
        (node(policy(), pnode=pnode(type="virtual-kubelet")), Rule.TAKEN_BACK, "does not select"),
    ],
)  # fmt: skip
def test_the_first_rule_with_an_answer_decides(facts: NodeFacts, rule: Rule, said: str) -> None:
    story = explain_node(facts)
    assert (story.rule, said in story.verdict) == (rule, True), story.verdict


def test_a_page_begins_with_the_verdict_and_a_document_holds_all_of_it() -> None:
    story = explain_node(node(policy(resourceLimits=HALF)))
    lines = list(page(story))
    assert lines[0] == f"node vnode-w1-n1: {story.verdict}"
    assert lines[1] == "  decided by: Lent"
    assert any("node has" in line and "offered" in line for line in lines)
    assert document(story)["rule"] == "Lent"
    assert len(lines) < 40
