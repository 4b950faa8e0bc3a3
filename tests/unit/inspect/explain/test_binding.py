"""Tests of explanations of bindings."""

from __future__ import annotations

import pytest

from kubeocean.inspect.explain.binding import explain_binding
from kubeocean.inspect.explain.report import ExplanationRule
from kubeocean.inspect.explain.snapshots import BindingDetails, BindingSnapshot, RolloutSnapshot
from kubeocean.inspect.snapshot import NotRead, WorkerState
from support.explain_objects import NIGHT, UNREAD, binding, bound, policy, vnode


def details(known: BindingSnapshot | None = None, **more: object) -> BindingDetails:
    return BindingDetails(binding=known or bound(policy()), **more)


def with_worker(**parts: object) -> BindingDetails:
    return details(bound(policy(), parts=parts))


def leaving() -> BindingSnapshot:
    meta = {
        "name": "b",
        "deletionTimestamp": "2026-11-16T11:00:00Z",
        "finalizers": ["kubeocean.io/clusterbinding-syncer"],
    }
    drained = {
        "type": "Drained",
        "status": "False",
        "reason": "Draining",
        "message": "Still there: 2 virtual nodes",
    }
    return bound(binding=binding(metadata=meta, status={"conditions": [drained]}))


def older(name: str = "a") -> object:
    meta = {"name": name, "creationTimestamp": "2020-01-01T00:00:00Z"}
    return binding(metadata=meta)


@pytest.mark.parametrize(
    ("known", "rule", "text"),
    [
        (details(bound(worker=None)), ExplanationRule.NOT_FOUND, "no such binding"),
        (details(leaving()), ExplanationRule.DRAINING, "Still there: 2 virtual nodes"),
        (
            details(bound(binding=binding(spec={"clusterID": "W!"}))),
            ExplanationRule.INVALID,
            "spec.clusterID: must be",
        ),
        (
            details(
                bound(binding=binding(metadata={"name": "b", "creationTimestamp": "2026-01-01"})),
                others=(older(),),
            ),
            ExplanationRule.DUPLICATE,
            "belongs to binding a",
        ),
        (
            with_worker(state=WorkerState.UNUSABLE, message="is missing"),
            ExplanationRule.NO_CREDENTIAL,
            "Secret default/s holds no usable credential",
        ),
        (
            details(bound(problem="refused")),
            ExplanationRule.UNREACHABLE,
            "does not answer: refused",
        ),
        (with_worker(missing=("list pods",)), ExplanationRule.RIGHTS, "lacks 1 right"),
        (with_worker(namespace=False), ExplanationRule.NO_NAMESPACE, "namespace m does not exist"),
        (details(bound()), ExplanationRule.NO_POLICY, "no policy of the worker names it"),
        (
            details(bound(policy(timeZone="X"))),
            ExplanationRule.POLICY_INVALID,
            "none of its policies is valid",
        ),
        (
            details(bound(policy(), binding=binding(status={"phase": "Pending"}))),
            ExplanationRule.UNFINISHED,
            "it is Pending",
        ),
        (
            details(rollouts=(RolloutSnapshot("s", "1 of 2", False),)),
            ExplanationRule.UNFINISHED,
            "s: 1 of 2",
        ),
        (
            details(nodes=(vnode(),)),
            ExplanationRule.WORKS,
            "1 of 1 virtual node Ready; lent now by p",
        ),
        (details(bound(policy(timeWindows=NIGHT))), ExplanationRule.WORKS, "no window is open now"),
    ],
)
def test_the_first_rule_with_an_answer_decides(
    known: BindingDetails, rule: ExplanationRule, text: str
) -> None:
    explanation = explain_binding(known)
    assert (explanation.rule, text in explanation.verdict) == (rule, True), explanation.verdict


@pytest.mark.parametrize(
    ("known", "part"),
    [
        (details(bound(worker=UNREAD)), "part"),
        (with_worker(state=WorkerState.NOT_ALLOWED, message="forbidden"), "Secret default/s"),
        (with_worker(state=WorkerState.NOT_ASKED, message="503"), "Secret default/s"),
        (with_worker(policies=NotRead("policies", "503")), "policies"),
        (with_worker(ids=NotRead("namespace kube-system", "503")), "namespace kube-system"),
        (with_worker(missing=NotRead("rights", "503")), "rights"),
        (with_worker(namespace=NotRead("namespace m", "503")), "namespace m"),
        (details(nodes=NotRead("nodes", "503")), "nodes"),
        (details(rollouts=NotRead("Deployments", "503")), "Deployments"),
        (details(others=NotRead("bindings", "503")), "bindings"),
    ],
)
def test_a_part_that_was_not_read_is_not_taken_for_absent(known: BindingDetails, part: str) -> None:
    explanation = explain_binding(known)
    assert explanation.rule is ExplanationRule.NOT_READ, explanation.verdict
    assert explanation.verdict.endswith(f"could not read {part}")
    assert not any("join" in each for each in explanation.remedies)


def test_missing_rights_decide_although_policies_were_not_read() -> None:
    known = with_worker(missing=("list nodes",), policies=UNREAD)
    assert explain_binding(known).rule is ExplanationRule.RIGHTS


def test_missing_rights_are_named_one_by_one() -> None:
    explanation = explain_binding(with_worker(missing=("list pods", "get nodes")))
    assert explanation.reasons == ("it may not list pods", "it may not get nodes")
