from __future__ import annotations

import gc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.runtime.kinds import ConfigMap, Pod
from kubeocean.runtime.objects import (
    ListMeta,
    Untyped,
    WatchEvent,
    decode_list,
    decode_object,
    encode,
    event_decoder,
    raw_event_decoder,
    with_raw,
)

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
DOCUMENTS = st.dictionaries(
    st.text().filter(lambda name: name not in ("metadata", "data", "binaryData", "immutable")),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
).filter(lambda document: " raw" not in document)


def config(name: str, **data: str) -> dict[str, object]:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}, "data": data}


@given(DOCUMENTS)
def test_what_we_do_not_read_does_not_disturb(document: dict[str, object]) -> None:
    body = encode(document | config("x", a="1"))
    partial = decode_object(ConfigMap, body, keep_raw=False)
    assert (partial.key, partial.data, partial.raw) == (("ns", "x"), {"a": "1"}, b"")
    whole = decode_object(ConfigMap, body, keep_raw=True)
    assert whole.content() == document | config("x", a="1")


@pytest.mark.parametrize("keep_raw", [False, True], ids=["partial", "whole"])
def test_a_list_is_its_items_and_where_it_stands(keep_raw: bool) -> None:
    body = encode(
        {
            "kind": "ConfigMapList",
            "metadata": {"resourceVersion": "7", "continue": "next", "remainingItemCount": 3},
            "items": [config("a", x="1"), config("b")],
        }
    )
    meta, items = decode_list(ConfigMap, body, keep_raw=keep_raw)
    assert meta == ListMeta("7", "next")
    assert [item.name for item in items] == ["a", "b"]
    for item, sent in zip(items, (config("a", x="1"), config("b")), strict=True):
        assert item.raw == (encode(sent) if keep_raw else b"")


@pytest.mark.parametrize("keep_raw", [False, True], ids=["partial", "whole"])
@pytest.mark.parametrize("body", [b"{}", b'{"items":null}', b'{"items":[]}'])
def test_a_list_of_nothing_is_empty(body: bytes, keep_raw: bool) -> None:
    assert decode_list(Pod, body, keep_raw=keep_raw) == (ListMeta(), [])


def test_one_item_does_not_keep_its_page_alive() -> None:
    body = encode({"items": [config(str(n)) for n in range(100)]})
    _, items = decode_list(ConfigMap, body, keep_raw=True)
    assert all(type(item.raw) is bytes and len(item.raw) < 200 for item in items)
    assert not any(gc.is_tracked(item) for item in items)


def test_an_event_has_the_object_of_its_type() -> None:
    line = encode({"type": "ADDED", "object": config("x", a="1")})
    event = event_decoder(ConfigMap).decode(line)
    assert (event.type, event.object.data) == ("ADDED", {"a": "1"})
    assert event_decoder(ConfigMap) is event_decoder(ConfigMap)


def test_an_event_of_any_kind_can_be_read_as_bytes() -> None:
    line = b'{"type":"ERROR","object":{"kind":"Status","code":410}}'
    event: WatchEvent[msgspec.Raw] = raw_event_decoder().decode(line)
    assert (event.type, bytes(event.object)) == ("ERROR", b'{"kind":"Status","code":410}')


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"metadata":5}', b'{"metadata":{"name":1}}']
)
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_object(Untyped, body, keep_raw=False)


@pytest.mark.parametrize("line", [b'{"type":"ADDED"}', b'{"type":"NEW","object":{}}'])
def test_what_is_not_an_event_is_refused(line: bytes) -> None:
    for decoder in (event_decoder(Untyped), raw_event_decoder()):
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(line)


def test_an_object_is_given_its_bytes_in_place() -> None:
    made = Untyped(kind="Thing")
    assert with_raw(made, b"{}") is made
    assert made.raw == b"{}"
