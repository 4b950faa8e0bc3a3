"""Node selectors: terms are ORed, requirements ANDed, and mistakes named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json
from support.label_strategies import INTEGERS, KEYS, VALUES, Wish, labels

unhurried = settings(deadline=None)  # a busy machine is no failure

OPERATORS = {
    "In": "in",
    "NotIn": "notin",
    "Exists": "exists",
    "DoesNotExist": "!",
    "Gt": ">",
    "Lt": "<",
}


@st.composite
def expressions(draw: st.DrawFn) -> Json:
    operator = draw(st.sampled_from(list(OPERATORS)))
    values = {
        "In": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
        "NotIn": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
        "Gt": st.lists(st.sampled_from(INTEGERS), min_size=1, max_size=1),
        "Lt": st.lists(st.sampled_from(INTEGERS), min_size=1, max_size=1),
    }.get(operator, st.just([]))
    return {"key": draw(st.sampled_from(KEYS)), "operator": operator, "values": draw(values)}


name_expressions = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["n1", "n2"]),
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(expressions(), max_size=3),
        "matchFields": st.lists(name_expressions, max_size=2),
    },
)


def naive_term(term: Json, name: str, carried: Mapping[str, str]) -> bool:
    on_labels = [
        Wish(e["key"], OPERATORS[e["operator"]], tuple(e["values"]), "").met_by(carried)
        for e in term.get("matchExpressions", ())
    ]
    on_name = [
        (name in e["values"]) == (e["operator"] == "In") for e in term.get("matchFields", ())
    ]
    return bool(on_labels + on_name) and all(on_labels + on_name)


@unhurried
@given(st.lists(terms, max_size=3), st.sampled_from(["n1", "n2"]), labels())
def test_one_term_must_hold_and_of_it_every_requirement(
    wanted: list[Json], name: str, carried: dict[str, str]
) -> None:
    selector = NodeSelector.from_document({"nodeSelectorTerms": wanted})
    expected = any(naive_term(term, name, carried) for term in wanted)
    assert selector.matches(name, carried) is expected


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"nodeSelectorTerms": None},
        {"nodeSelectorTerms": []},
        {"nodeSelectorTerms": [{}]},
        {"nodeSelectorTerms": [{"matchExpressions": [], "matchFields": None}, {}]},
    ],
)
def test_no_terms_and_empty_terms_select_no_node(document: Json) -> None:
    assert not NodeSelector.from_document(document).matches("n1", {"a": "b"})


def one(kind: str, expression: Json) -> Json:
    return {"nodeSelectorTerms": [{}, {kind: [expression]}]}


NAME = "metadata.name"


@pytest.mark.parametrize(
    ("kind", "expression", "path", "value"),
    [
        ("matchExpressions", {"key": "a", "operator": "Near"}, ".operator", "Near"),
        ("matchExpressions", {"key": "a", "operator": "in"}, ".operator", "in"),
        ("matchExpressions", {"key": "a", "operator": "In"}, ".values", []),
        ("matchExpressions", {"key": "a", "operator": "NotIn", "values": []}, ".values", []),
        ("matchExpressions", {"key": "", "operator": "Exists"}, ".key", ""),
        (
            "matchExpressions",
            {"key": "a", "operator": "DoesNotExist", "values": ["x"]},
            ".values",
            ["x"],
        ),
        ("matchExpressions", {"key": "a", "operator": "Gt", "values": ["x"]}, ".values", ["x"]),
        (
            "matchExpressions",
            {"key": "a", "operator": "Lt", "values": ["1", "2"]},
            ".values",
            ["1", "2"],
        ),
        (
            "matchExpressions",
            {"key": "a", "operator": "In", "values": ["x y"]},
            ".values[0]",
            "x y",
        ),
        ("matchExpressions", {"key": "a", "operator": 1}, ".operator", 1),
        ("matchFields", {"key": "spec.x", "operator": "In", "values": ["n"]}, ".key", "spec.x"),
        ("matchFields", {"key": NAME, "operator": "Exists"}, ".operator", "Exists"),
        ("matchFields", {"key": NAME, "operator": "In"}, ".values", []),
        (
            "matchFields",
            {"key": NAME, "operator": "In", "values": ["a", "b"]},
            ".values",
            ["a", "b"],
        ),
        ("matchFields", {"key": NAME, "operator": "In", "values": ["A"]}, ".values[0]", "A"),
    ],
)
def test_mistakes_are_named_by_path_and_value(
    kind: str, expression: Json, path: str, value: object
) -> None:
    with pytest.raises(ConfigError) as refused:
        NodeSelector.from_document(one(kind, expression), field="spec.nodeSelector")
    where = f"spec.nodeSelector.nodeSelectorTerms[1].{kind}[0]{path}"
    assert (refused.value.field, refused.value.value) == (where, value)


def test_a_field_that_is_not_known_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"nodeSelectorTerms\[0\]"):
        NodeSelector.from_document({"nodeSelectorTerms": [{"matchNames": []}]})
