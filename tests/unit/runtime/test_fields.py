from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import Fields, parse_yaml

unhurried = settings(deadline=None)  # a busy machine is no failure
FILE = Path("/etc/config")


def fields(text: str) -> Fields:
    return Fields.of(parse_yaml(text.encode(), source=str(FILE)), FILE)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: *unknown",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: !!int ''",
        "a: !!float ''",
        "a: !!binary é",
        "a: !!python/object/apply:os.getcwd []",
        "? {a: b}\n: c",
        "1" * 5000,
        "a: 0b_",
        "a\0b",
        "--- a\n--- b",
        "\t",
        "%YAML 9.0\n--- a",
    ],
)
def test_what_is_not_yaml_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="f: is not a YAML document"):
        parse_yaml(text.encode(), source="f")


def test_the_error_says_where_and_shows_nothing_of_the_document() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(b"users:\n- token: *sesame\n", source="f")
    assert str(caught.value) == "f: is not a YAML document (line 2, column 10)"


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 50_000, "{a: " * 5_000 + "}" * 5_000])
def test_deep_nesting_does_not_end_the_process(text: str) -> None:
    with pytest.raises(ConfigError, match="nested deeper than 100 levels"):
        parse_yaml(text.encode(), source="f")


@unhurried
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_document_or_a_config_error(content: bytes) -> None:
    try:
        parse_yaml(content, source="f")
    except ConfigError as error:
        assert "f: is n" in str(error)


def test_a_date_is_a_string() -> None:
    assert parse_yaml(b"a: 2026-01-01", source="f") == {"a": "2026-01-01"}


def test_an_empty_document_has_no_fields() -> None:
    assert fields("").content == {}
    assert fields("").text("a") == ""


def test_a_document_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="/etc/config: must be a mapping, not a list"):
        fields("[a]")
    with pytest.raises(ConfigError, match="not of type int"):
        fields("3")


def test_absent_and_null_are_empty() -> None:
    both = fields("b: null")
    for name in ("a", "b"):
        assert not both.has(name)
        assert both.text(name) == ""
        assert both.flag(name) is False
        assert both.texts(name) == ()
        assert both.section(name).content == {}
        assert both.sections(name) == []
        assert both.file_path(name) is None


def test_fields_of_the_right_type_are_returned() -> None:
    some = fields("{t: x, f: true, l: [a, b], m: {k: v}, ms: [{k: w}]}")
    assert some.text("t") == "x"
    assert some.flag("f") is True
    assert some.texts("l") == ("a", "b")
    assert some.section("m").text("k") == "v"
    assert [each.text("k") for each in some.sections("ms")] == ["w"]


@pytest.mark.parametrize(
    ("getter", "value", "complaint"),
    [
        ("text", "3", "a: must be a string, not of type int (quote it)"),
        ("text", "1.5", "a: must be a string, not of type float (quote it)"),
        ("text", "yes", "a: must be a string, not true or false (quote it)"),
        ("text", "[x]", "a: must be a string, not a list"),
        ("text", "{x: y}", "a: must be a string, not a mapping"),
        ("flag", "'true'", "a: must be true or false, not a string"),
        ("texts", "x", "a: must be a list, not a string"),
        ("texts", "[x, {y: z}]", "a[1]: must be a string, not a mapping"),
        ("section", "x", "a: must be a mapping, not a string"),
        ("sections", "[{}, x]", "a[1]: must be a mapping, not a string"),
    ],
)
def test_fields_of_another_type_are_refused(getter: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(fields(f"a: {value}"), getter)("a")
    assert str(caught.value) == f"/etc/config: {complaint}"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="a: has a character that cannot be encoded as UTF-8"):
        Fields.of({"a": "x\ud800"}, FILE).text("a")


def test_errors_name_the_whole_path_and_the_context() -> None:
    deep = fields("a: {b: [{c: {d: 3}}]}").within("here")
    with pytest.raises(ConfigError) as caught:
        deep.section("a").sections("b")[0].section("c").text("d")
    assert caught.value.field == "a.b[0].c.d"
    assert caught.value.source == "/etc/config (context here)"


def test_an_error_can_be_about_the_section_itself() -> None:
    assert fields("a: {}").section("a").error("", "is wrong").field == "a"


def test_named_entries_are_found_by_name() -> None:
    users = fields("users: [{name: a, user: {token: x}}, {name: b}]").named("users", "user")
    assert users["a"].text("token") == "x"
    assert users["b"].content == {}
    assert users["a"].error("token", "is wrong").field == "users[a].token"


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="users: has two entries named a"):
        fields("users: [{name: a}, {name: a}]").named("users", "user")


def test_a_name_cannot_take_over_the_terminal() -> None:
    users = fields('users: [{name: "a\\e[2J"}]').named("users", "user")
    assert users["a\x1b[2J"].error("token", "is wrong").field == r"users['a\x1b[2J'].token"


def test_a_relative_file_starts_where_the_document_stands() -> None:
    assert fields("a: pki/ca.crt").file_path("a") == Path("/etc/pki/ca.crt")
    assert fields("a: /pki/ca.crt").file_path("a") == Path("/pki/ca.crt")
    here = Fields.of({"a": "ca.crt"}, Path("config"))
    assert here.file_path("a") == Path.cwd() / "ca.crt"
