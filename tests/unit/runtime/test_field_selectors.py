"""Field selectors: text, escapes and meaning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import FieldSelector, FieldTerm

unhurried = settings(deadline=None)  # a busy machine is no failure

fields = st.sampled_from(["metadata.name", "spec.nodeName", "status.phase"])
values = st.text("ab,=\\! ", max_size=5) | st.sampled_from(["", "Running", "näme"])
terms = st.lists(st.builds(FieldTerm, fields, values, st.booleans()), max_size=4)


@unhurried
@given(terms)
def test_the_text_of_a_selector_reads_as_the_same_selector(wanted: list[FieldTerm]) -> None:
    selector = FieldSelector.of(wanted)
    assert FieldSelector.parse(str(selector)) == selector
    assert str(FieldSelector.parse(str(selector))) == str(selector)


@unhurried
@given(terms, st.dictionaries(fields, values))
def test_it_matches_when_every_term_is_met_and_a_missing_field_is_empty(
    wanted: list[FieldTerm], actual: dict[str, str]
) -> None:
    expected = all((actual.get(t.field, "") == t.value) == t.equal for t in wanted)
    selector = FieldSelector.of(wanted)
    assert selector.matches(actual) is expected
    assert selector.matches(lambda field: actual.get(field, "")) is expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (",", ""),
        ("b=1,,a!=2,", "a!=2,b=1"),
        ("a==1", "a=1"),
        ("a=1,a==1", "a=1"),
        ("a=", "a="),
        (r"a=x\,y\=z\\", r"a=x\,y\=z\\"),
        (r"a=\\,b=1", r"a=\\,b=1"),
        ("a=b!", "a=b!"),
        ("a=1\n", "a=1\n"),
    ],
)
def test_texts_are_read_as_a_server_reads_them(text: str, canonical: str) -> None:
    assert str(FieldSelector.parse(text)) == canonical


@pytest.mark.parametrize(
    "text", ["a", "a=b,c", "a=b=c", "a===b", "a=\\", r"a=\x", "=b", "!=b", r"a\,b=c", "a!b=c"]
)
def test_texts_that_make_no_sense_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^fieldSelector") as refused:
        FieldSelector.parse(text)
    assert refused.value.value is not None


def test_values_of_a_built_selector_are_escaped() -> None:
    selector = FieldSelector.of([FieldTerm("b", "1,2"), FieldTerm("a", "x")])
    assert str(selector) == r"a=x,b=1\,2"
    assert selector.matches({"a": "x", "b": "1,2"})
