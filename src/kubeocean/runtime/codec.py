"""Codec: between the server's JSON and our objects.

Decoding is typed and partial. `keep_raw` copies the bytes of each object beside the decoded struct,
so that `Object.content()` works and a page of a list is not kept alive by one of its items.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from kubeocean.runtime.objects import ObjectT

__all__ = [
    "EventType",
    "ListMeta",
    "WatchEvent",
    "decode_list",
    "decode_object",
    "encode",
    "event_decoder",
    "raw_event_decoder",
    "with_raw",
]

EventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
T = TypeVar("T")

encode = msgspec.json.Encoder().encode


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a list says of itself."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class _List(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One line of a watch."""

    type: EventType
    object: T


@lru_cache(maxsize=256)
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def decode_object(type_: type[ObjectT], body: bytes, *, keep_raw: bool) -> ObjectT:
    """One object.

    :raises msgspec.DecodeError: the bytes are not JSON, or not of this type.
    """
    obj: ObjectT = _decoder(type_).decode(body)
    return with_raw(obj, bytes(body)) if keep_raw else obj


def decode_list(
    type_: type[ObjectT], body: bytes, *, keep_raw: bool
) -> tuple[ListMeta, list[ObjectT]]:
    """A list or one page of it."""
    if not keep_raw:
        typed: _List[ObjectT] = _decoder(_List[type_]).decode(body)  # type: ignore[valid-type]
        return typed.metadata, typed.items or []
    raws: _List[msgspec.Raw] = _decoder(_List[msgspec.Raw]).decode(body)
    one = _decoder(type_).decode
    return raws.metadata, [with_raw(one(raw), bytes(raw)) for raw in raws.items or ()]


def event_decoder(type_: type[ObjectT]) -> msgspec.json.Decoder[WatchEvent[ObjectT]]:
    """For lines of a watch on objects of this type."""
    return _decoder(WatchEvent[type_])  # type: ignore[valid-type]


def raw_event_decoder() -> msgspec.json.Decoder[WatchEvent[msgspec.Raw]]:
    """For lines whose object is something else (a Status, a bookmark) or is kept as bytes."""
    return _decoder(WatchEvent[msgspec.Raw])


def with_raw(obj: ObjectT, raw: bytes) -> ObjectT:
    """The same object with its bytes; only for one that was just decoded and is nobody else's."""
    msgspec.structs.force_setattr(obj, "raw", raw)
    return obj
