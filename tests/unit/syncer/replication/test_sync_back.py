"""Changes of copies: which ones flow back to their sources."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids
from kubeocean.runtime.objects import Json, Meta
from kubeocean.syncer.replication.copy_forge import (
    Copy,
    CopyContext,
    Source,
    content_digest,
    digested,
    forge,
)
from kubeocean.syncer.replication.kinds.configmaps import CONFIG_MAPS, translate
from kubeocean.syncer.replication.sync_back import SyncDirection, direction_of, returned_fields

BACK, CONFLICT, NONE = SyncDirection.BACK, SyncDirection.CONFLICT, SyncDirection.NONE


def context(value: str, *, two_way: bool = True) -> CopyContext:
    annotations = {DEFAULT.sync_back: "true" if two_way else "false"}
    meta = Meta(name="c", namespace="team", uid="u", annotations=annotations)
    return CopyContext(
        kind=CONFIG_MAPS,
        source=Source(metadata=meta),
        content=translate({"data": {"k": value}}),
        name="c-hash",
        namespace="mount",
        ids=Ids("b", "c", "id"),
    )


def copy_of(made: CopyContext, value: str, **more: object) -> Copy:
    """Return a copy that was made from a context and has another value since."""
    body = forge(made) | {"data": {"k": value}} | more
    raw = msgspec.json.encode(body)
    copy = msgspec.json.decode(raw, type=Copy)
    msgspec.structs.force_setattr(copy, "raw", raw)
    return digested(copy, CONFIG_MAPS)


@pytest.mark.parametrize(
    ("last", "here", "there", "direction"),
    [
        ("a", "a", "a", NONE),
        ("a", "b", "a", NONE),
        ("a", "a", "b", BACK),
        ("a", "b", "b", NONE),
        ("a", "b", "c", CONFLICT),
    ],
)
def test_the_side_that_changed_decides(
    last: str, here: str, there: str, direction: SyncDirection
) -> None:
    copy = copy_of(context(last), there)
    assert direction_of(copy, context(here)) is direction
    assert direction_of(copy, context(here, two_way=False)) is NONE


def test_nothing_flows_back_from_a_copy_that_was_made_before_its_owner_asked_for_it() -> None:
    copy = copy_of(context("a", two_way=False), "b")
    assert DEFAULT.synced_hash not in copy.annotations
    assert direction_of(copy, context("a")) is NONE
    assert direction_of(copy_of(context("a"), "b", immutable=True), context("a")) is NONE


def test_a_copy_records_the_content_that_it_has_in_common_with_its_source() -> None:
    made = context("a")
    assert copy_of(made, "a").annotations[DEFAULT.synced_hash] == content_digest(made)


def test_a_copy_never_makes_its_source_immutable() -> None:
    content: Json = {"data": {"k": "v"}, "immutable": True}
    assert returned_fields(content, CONFIG_MAPS) == {"/data": {"k": "v"}, "/binaryData": {}}
