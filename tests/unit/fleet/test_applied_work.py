"""AppliedWork: the objects that are listed before and after a pass."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.conditions import ManifestReason
from kubeocean.api.fleet.limits import WORK_BYTES
from kubeocean.fleet.applier.applied_work import (
    applied_resources,
    write_ahead,
)
from kubeocean.fleet.applier.manifests import Identifier
from kubeocean.fleet.applier.plan import Result
from kubeocean.fleet.applier.report import Processed
from kubeocean.runtime.objects import encode

KNOWN = {"version": "v1", "kind": "ConfigMap", "resource": "configmaps", "namespace": "web"}


def identifier(ordinal: int, name: str, **more: str) -> Identifier:
    return Identifier(ordinal, name=name, **{**KNOWN, **more})


def processed(place: Identifier, reason: ManifestReason, uid: str = "u") -> Processed:
    return Processed(place, Result(reason, live={"metadata": {"uid": uid}}))


def test_only_new_objects_are_listed_ahead() -> None:
    a, b = identifier(0, "a"), identifier(1, "b")
    entries = [{**a.to_json(), "uid": "u"}]
    assert write_ahead(entries, [replace(a, ordinal=7)]) == (entries, frozenset())
    assert write_ahead(entries, [a, b]) == ([*entries, b.to_json()], frozenset())


def test_what_cannot_be_listed_is_not_written() -> None:
    many = [identifier(number, f"object-{number}") for number in range(10_000)]
    ahead, unlisted = write_ahead([], many)
    assert len(ahead) + len(unlisted) == len(many)
    assert unlisted == set(many[len(ahead) :])
    full = [{**entry, "uid": "u" * 36} for entry in ahead]
    size = len(encode(full))
    assert WORK_BYTES - 200 < size <= WORK_BYTES
    again, _ = write_ahead(full, many)
    assert [entry["name"] for entry in again[: len(full)]] == [entry["name"] for entry in full]


def test_the_list_has_what_was_applied_and_what_may_have_been() -> None:
    a, b, c, d = (identifier(number, name) for number, name in enumerate("abcd"))
    gone = replace(identifier(4, "e"), resource="")
    left = identifier(9, "left")
    entries = [each.to_json() for each in (a, b, replace(gone, resource="x"), left)]
    entries[1]["uid"] = "old"
    after = applied_resources(
        entries,
        [
            processed(a, ManifestReason.APPLIED),
            processed(b, ManifestReason.APPLY_FAILED, "another"),
            processed(c, ManifestReason.NOT_TAKEN_OVER),
            processed(d, ManifestReason.APPLIED, "w"),
            Processed(gone, Result(ManifestReason.DECODING_ERRED)),
        ],
        [left],
    )
    assert after == [
        {**a.to_json(), "uid": "u"},
        {**b.to_json(), "uid": "old"},
        {**d.to_json(), "uid": "w"},
        entries[2],
        entries[3],
    ]


names = st.sampled_from("abcde")


@given(st.lists(names, unique=True), st.lists(names, unique=True))
def test_nothing_is_listed_twice_and_nothing_is_lost(old: list[str], new: list[str]) -> None:
    entries = [identifier(number, name).to_json() for number, name in enumerate(old)]
    ahead, _ = write_ahead(entries, [identifier(n, name) for n, name in enumerate(new)])
    listed = [entry["name"] for entry in ahead]
    assert len(listed) == len(set(listed))
    assert set(listed) == {*old, *new}
    applied = [processed(identifier(n, name), ManifestReason.APPLIED) for n, name in enumerate(new)]
    after = applied_resources(ahead, applied, ())
    assert [entry["name"] for entry in after] == new
    assert applied_resources(after, applied, ()) == after
