"""Label selectors: text, documents and meaning, against a naive reading of each requirement."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import EVERYTHING, NOTHING, LabelSelector
from support.label_strategies import Wish, labels, wishes

unhurried = settings(deadline=None)  # a busy machine is no failure

DOCUMENT_OPERATORS = {"in": "In", "notin": "NotIn", "exists": "Exists", "!": "DoesNotExist"}


def text_of(wanted: list[Wish]) -> str:
    return ",".join(wish.text for wish in wanted)


@unhurried
@given(wishes(), labels())
def test_a_text_matches_when_every_requirement_is_met(
    wanted: list[Wish], carried: dict[str, str]
) -> None:
    selector = LabelSelector.parse(text_of(wanted))
    assert selector.matches(carried) is all(wish.met_by(carried) for wish in wanted)


@unhurried
@given(wishes())
def test_the_text_of_a_selector_reads_as_the_same_selector(wanted: list[Wish]) -> None:
    selector = LabelSelector.parse(text_of(wanted))
    assert LabelSelector.parse(str(selector)) == selector
    assert str(LabelSelector.parse(str(selector))) == str(selector)


@unhurried
@given(wishes().flatmap(lambda wanted: st.tuples(st.just(wanted), st.permutations(wanted))))
def test_requirements_have_no_order(orders: tuple[list[Wish], list[Wish]]) -> None:
    one, other = (LabelSelector.parse(text_of(wanted)) for wanted in orders)
    assert one == other
    assert str(one) == str(other)


@unhurried
@given(wishes(), labels(), labels())
def test_a_document_matches_when_every_requirement_is_met(
    wanted: list[Wish], same: dict[str, str], carried: dict[str, str]
) -> None:
    wanted = [wish for wish in wanted if wish.operator in DOCUMENT_OPERATORS]
    selector = LabelSelector.from_document(
        {
            "matchLabels": same,
            "matchExpressions": [
                {
                    "key": wish.key,
                    "operator": DOCUMENT_OPERATORS[wish.operator],
                    "values": list(wish.values) or None,
                }
                for wish in wanted
            ],
        }
    )
    expected = same.items() <= carried.items() and all(wish.met_by(carried) for wish in wanted)
    assert selector.matches(carried) is expected
    assert LabelSelector.parse(str(selector)) == selector


@unhurried
@given(labels())
def test_everything_and_nothing_are_what_they_say_even_as_text(carried: dict[str, str]) -> None:
    assert EVERYTHING.matches(carried)
    assert LabelSelector.parse(str(EVERYTHING)) == EVERYTHING
    for labelled in (carried, carried | {"nothing": ""}):
        assert not NOTHING.matches(labelled)
        assert not LabelSelector.parse(str(NOTHING)).matches(labelled)
    assert LabelSelector.parse(str(NOTHING)) == NOTHING


@pytest.mark.parametrize("blank", ["", "  ", "\t\r\n"])
def test_a_blank_text_selects_everything(blank: str) -> None:
    assert LabelSelector.parse(blank) == EVERYTHING


def test_no_document_selects_nothing_and_an_empty_one_everything() -> None:
    assert LabelSelector.from_document(None) == NOTHING
    assert LabelSelector.from_document({}) == EVERYTHING
    nulls: Json = {"matchLabels": None, "matchExpressions": None}
    assert LabelSelector.from_document(nulls) == EVERYTHING


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        (" a in ( b ) ", "a=b"),
        ("a!=b", "a!=b"),
        ("a notin (b)", "a!=b"),
        ("a in (y,x,y)", "a in (x,y)"),
        ("a notin(y,x)", "a notin (x,y)"),
        ("z,a", "a,z"),
        ("a,a", "a"),
        ("!a", "!a"),
        ("! a", "!a"),
        ("a>1", "a>1"),
        ("a < 2", "a<2"),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("a in ()", "a="),
        ("a in (,x)", "a in (,x)"),
        ("a in (x,)", "a in (,x)"),
        ("a in (x,,)", "a in (,x)"),
        ("in in (in)", "in=in"),
        ("notin notin (notin)", "notin!=notin"),
        ("in", "in"),
        ("a=in,!notin", "a=in,!notin"),
        ("example.com/a=b", "example.com/a=b"),
    ],
)
def test_texts_that_mean_the_same_print_the_same(text: str, canonical: str) -> None:
    selector = LabelSelector.parse(text)
    assert selector == LabelSelector.parse(canonical)
    assert str(selector) == canonical


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "a,",
        ",a",
        "a,,b",
        "!",
        "!!a",
        "!a=b",
        "!a in (b)",
        "a b",
        "a!",
        "a!b",
        "a=b c",
        "a=(b)",
        "a=!b",
        "a===b",
        "a=<b",
        "a in",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b,",
        "a in b)",
        "a in (b))",
        "a in (=)",
        "(a)",
        "=b",
        "a>",
        "a>x",
        "a>-1",
        "a>9223372036854775808",
        "a<1.5",
        "-a",
        "a/b/c",
        "a=-",
        "a=b/c",
        "a in (b,c/d)",
        "a=" + "x" * 64,
        "a\0",
    ],
)
def test_texts_that_a_server_refuses_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^spec\.selector") as refused:
        LabelSelector.parse(text, field="spec.selector")
    assert refused.value.value is not None


@pytest.mark.parametrize(
    ("document", "field", "value"),
    [
        ({"matchLables": {}}, "sel", {"matchLables": {}}),
        ({"matchLabels": {"a": 1}}, "sel.matchLabels[...]", {"a": 1}),
        ({"matchLabels": {"-": "b"}}, "sel.matchLabels", "-"),
        ({"matchLabels": {"a": "-"}}, "sel.matchLabels[a]", "-"),
        ({"matchExpressions": [{"key": "a"}]}, "sel.matchExpressions[0]", {"key": "a"}),
        (
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
            "sel.matchExpressions[0].operator",
            "Gt",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "sel.matchExpressions[0].values",
            [],
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]},
            "sel.matchExpressions[0].values",
            ["x"],
        ),
        (
            {
                "matchExpressions": [
                    {"key": "a", "operator": "Exists"},
                    {"key": "/", "operator": "Exists"},
                ]
            },
            "sel.matchExpressions[1].key",
            "/",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", " "]}]},
            "sel.matchExpressions[0].values[1]",
            " ",
        ),
    ],
)
def test_documents_that_a_server_refuses_are_refused_by_path(
    document: Json, field: str, value: object
) -> None:
    with pytest.raises(ConfigError) as refused:
        LabelSelector.from_document(document, field="sel")
    assert (refused.value.field, refused.value.value) == (field, value)


@unhurried
@given(labels(), labels())
def test_plain_labels_select_their_supersets(
    wanted: dict[str, str], others: dict[str, str]
) -> None:
    selector = LabelSelector.from_labels(wanted)
    assert selector.matches(others | wanted)
    assert selector.matches(others) is (wanted.items() <= others.items())


def test_plain_labels_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"labels\[a\]"):
        LabelSelector.from_labels({"a": "b c"})


def test_selectors_can_be_keys() -> None:
    assert {LabelSelector.parse("a in (x,y)"): 1}[LabelSelector.parse("a in (y,x)")] == 1
