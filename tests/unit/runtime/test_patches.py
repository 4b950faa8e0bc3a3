from __future__ import annotations

import dataclasses

import pytest

from kubeocean.runtime.client import ApplyPatch, JsonPatch, MergePatch, Patch, StrategicPatch


@pytest.mark.parametrize(
    ("patch", "content_type"),
    [
        (MergePatch({"a": None}), "application/merge-patch+json"),
        (StrategicPatch({"a": 1}), "application/strategic-merge-patch+json"),
        (JsonPatch([{"op": "remove", "path": "/a"}]), "application/json-patch+json"),
        (ApplyPatch({"a": 1}), "application/apply-patch+yaml"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_patch_has_its_content_type(patch: Patch, content_type: str) -> None:
    assert patch.content_type == content_type
    # The content type is not a part of the value that a caller could change.
    assert "content_type" not in {field.name for field in dataclasses.fields(patch)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        patch.body = {}


def test_an_apply_takes_fields_of_others_only_by_force() -> None:
    assert not ApplyPatch({}).force
    assert ApplyPatch({}, force=True) != ApplyPatch({})
