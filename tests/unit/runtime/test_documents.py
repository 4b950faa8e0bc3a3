"""Documents that do not fit are refused by path and value."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import join_path, read_document


class Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    part_name: str
    sizes: list[int] = []


class Whole(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    parts: list[Part] = []
    tags: dict[str, str] = {}
    by_name: dict[str, Part] = {}


def test_a_document_that_fits_is_read() -> None:
    whole = read_document({"parts": [{"partName": "a", "sizes": [1]}], "tags": {"x": "y"}}, Whole)
    assert whole == Whole(parts=[Part("a", [1])], tags={"x": "y"})


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        (7, "", 7),
        (None, "", None),
        ({"party": 1}, "", {"party": 1}),
        ({"parts": 1}, ".parts", 1),
        ({"parts": [{"partName": "a"}, {"partName": 2}]}, ".parts[1].partName", 2),
        ({"parts": [{"partName": "a", "sizes": [1, "2"]}]}, ".parts[0].sizes[1]", "2"),
        ({"parts": [{}]}, ".parts[0]", {}),
        ({"tags": {"a": 1}}, ".tags[...]", {"a": 1}),
        ({"tags": {1: "a"}}, ".tags", {1: "a"}),
        ({"byName": {"a": {"partName": 1}}}, ".byName[...].partName", {"a": {"partName": 1}}),
    ],
)
def test_what_does_not_fit_is_refused_by_path_and_value(
    document: object, path: str, value: object
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_document(document, Whole, field="spec")
    assert (refused.value.field, refused.value.value) == (f"spec{path}", value)


def test_paths_need_no_root() -> None:
    assert join_path("", ".a[0].b") == "a[0].b"
    assert join_path("spec", ".a") == "spec.a"
    assert join_path("spec", "") == "spec"
