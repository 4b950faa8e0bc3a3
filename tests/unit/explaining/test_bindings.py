"""What is said of bindings, and which rule decides."""

from __future__ import annotations

import pytest

from explained import NIGHT, binding, policy, side, vnode
from kubeocean.explaining.bindings import explain_binding
from kubeocean.explaining.facts import BindingFacts, Roll, Side
from kubeocean.explaining.story import Rule


def facts(known: Side | None = None, **more: object) -> BindingFacts:
    return BindingFacts(side=known or side(policy()), **more)


def leaving() -> Side:
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
    return side(binding=binding(metadata=meta, status={"conditions": [drained]}))


def older(name: str = "a") -> object:
    meta = {"name": name, "creationTimestamp": "2020-01-01T00:00:00Z"}
    return binding(metadata=meta)


@pytest.mark.parametrize(
    ("known", "rule", "said"),
    [
        (facts(side(binding=None)), Rule.NOT_FOUND, "no such binding"),
        (facts(leaving()), Rule.DRAINING, "Still there: 2 virtual nodes"),
        (
            facts(side(binding=binding(spec={"clusterID": "W!"}))),
            Rule.INVALID,
            "spec.clusterID: must be",
        ),
        (
            facts(
                side(binding=binding(metadata={"name": "b", "creationTimestamp": "2026-01-01"})),
                others=(older(),),
            ),
            Rule.DUPLICATE,
            "belongs to binding a",
        ),
        (facts(secret="is missing"), Rule.NO_CREDENTIAL, "Secret default/s gives no way"),
        (facts(side(problem="refused")), Rule.UNREACHABLE, "does not answer: refused"),
        (facts(missing=("list pods",)), Rule.RIGHTS, "lacks 1 right"),
        (facts(namespace=False), Rule.NO_NAMESPACE, "namespace m is not there"),
        (facts(side()), Rule.NO_POLICY, "no policy of the worker names it"),
        (facts(side(policy(timeZone="X"))), Rule.POLICY_INVALID, "none of its policies is valid"),
        (
            facts(side(policy(), binding=binding(status={"phase": "Pending"}))),
            Rule.UNFINISHED,
            "it is Pending",
        ),
        (facts(rolls=(Roll("s", "1 of 2", False),)), Rule.UNFINISHED, "s: 1 of 2"),
        (
            facts(namespace=True, nodes=(vnode(),)),
            Rule.WORKS,
            "1 of 1 virtual node Ready; lent now by p",
        ),
        (facts(side(policy(timeWindows=NIGHT))), Rule.WORKS, "no window is open now"),
    ],
)  # fmt: skip
def test_the_first_rule_with_an_answer_decides(known: BindingFacts, rule: Rule, said: str) -> None:
    story = explain_binding(known)
    assert (story.rule, said in story.verdict) == (rule, True), story.verdict


def test_missing_rights_are_named_one_by_one() -> None:
    story = explain_binding(facts(missing=("list pods", "get nodes")))
    assert story.reasons == ("it may not list pods", "it may not get nodes")
