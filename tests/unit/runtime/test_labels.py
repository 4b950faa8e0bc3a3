"""The syntax of label keys and values."""

from __future__ import annotations

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import check_label_key, check_label_value, check_subdomain


@pytest.mark.parametrize(
    "key",
    ["a", "A1", "a.b_c-d", "0", "x" * 63, "example.com/a", "a/b", "1-2.x/y", "a." * 126 + "a/n"],
)
def test_good_keys_are_accepted(key: str) -> None:
    check_label_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a/b/c",
        "-a",
        "a-",
        ".a",
        "a b",
        "a\n",
        "é",
        "x" * 64,
        "Example.com/a",
        "a_b/c",
        "a..b/c",
        "a-/b",
        "a." * 127 + "a/n",
    ],
)
def test_bad_keys_are_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_label_key(key, field="metadata.labels")
    assert (refused.value.field, refused.value.value) == ("metadata.labels", key)


@pytest.mark.parametrize("value", ["", "a", "A.b_c-9", "x" * 63])
def test_good_values_are_accepted(value: str) -> None:
    check_label_value(value)


@pytest.mark.parametrize("value", ["-", "a-", "_a", "a/b", "a b", "a\n", "é", "x" * 64])
def test_bad_values_are_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_label_value(value, field="metadata.labels[a]")
    assert (refused.value.field, refused.value.value) == ("metadata.labels[a]", value)


@pytest.mark.parametrize("name", ["a", "node-1.example.com", "x" * 253])
def test_good_subdomains_are_accepted(name: str) -> None:
    check_subdomain(name)


@pytest.mark.parametrize("name", ["", "A", "a_b", "a.", "a\n", "x" * 254])
def test_bad_subdomains_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_subdomain(name, field="metadata.name")
    assert (refused.value.field, refused.value.value) == ("metadata.name", name)
