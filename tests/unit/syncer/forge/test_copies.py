"""Copies: theirs and ours in the metadata, what follows, and nothing written for nothing."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.api.ownership import Ids
from kubeocean.runtime.codec import decode_object
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge import configmaps, secrets
from kubeocean.syncer.forge.configmaps import CONFIG_MAPS
from kubeocean.syncer.forge.copies import (
    Copied,
    Copy,
    Original,
    Recipe,
    changes,
    forge,
    is_replaced,
    lean,
    patch,
)
from kubeocean.syncer.forge.secrets import SECRETS

IDS = Ids("b1", "c1", "computing-1")
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
TEXTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.text("xyz", max_size=3), max_size=3
)


def original_of(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    uid: str = "u1",
    **content: object,
) -> Original:
    metadata = {
        "name": "config",
        "namespace": "team",
        "uid": uid,
        "labels": labels or {},
        "annotations": annotations or {},
    }
    document = msgspec.json.encode({"metadata": metadata, **content})
    return decode_object(Original, document, keep_raw=True)


def copied_of(original: Original, *, domain: Domain = DEFAULT) -> Copied:
    return Copied(
        original=original,
        content=configmaps.translate(original.content()),
        name="config-hash",
        namespace="mount",
        ids=IDS,
        domain=domain,
    )


def stored(document: Json, recipe: Recipe = CONFIG_MAPS) -> Copy:
    """What the cache has of it."""
    metadata = document["metadata"] | {"uid": "copy-uid", "resourceVersion": "7"}
    raw = msgspec.json.encode(document | {"metadata": metadata})
    return lean(decode_object(Copy, raw, keep_raw=True), recipe)


def applied(document: Json, change: Json) -> Json:
    """What a server makes of a change."""
    then: Json = msgspec.json.decode(msgspec.json.encode(document))
    for path, value in change.items():
        *parents, last = path.strip("/").split("/")
        at = then
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return then


@pytest.mark.parametrize("domain", [DEFAULT, TAPESTRY])
def test_a_copy_says_whose_it_is(domain: Domain) -> None:
    original = original_of(
        labels={"app": "a", f"{domain.name}/synced-by-c1": "true"},
        annotations={"note": "n", APPLIED: "{}", domain.physical_name: "x"},
        data={"k": "v"},
    )
    body = forge(copied_of(original, domain=domain), CONFIG_MAPS)
    assert body["data"] == {"k": "v"}
    metadata = body["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("config-hash", "mount")
    assert metadata["labels"] == {
        "app": "a",
        domain.managed_by: domain.product,
        domain.cluster_binding: "b1",
        domain.physical_cluster_id: "c1",
        domain.computing_cluster_id: "computing-1",
    }
    assert {k: v for k, v in metadata["annotations"].items() if k != domain.expected_metadata} == {
        "note": "n",
        domain.virtual_name: "config",
        domain.virtual_namespace: "team",
        domain.virtual_uid: "u1",
    }


@given(TEXTS, TEXTS, TEXTS)
def test_what_was_made_needs_no_change(labels: Json, annotations: Json, data: Json) -> None:
    copied = copied_of(original_of(labels=labels, annotations=annotations, data=data))
    assert changes(stored(forge(copied, CONFIG_MAPS)), copied, CONFIG_MAPS) == {}


@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_a_change_ends_where_a_new_copy_would_be_and_keeps_what_others_added(
    labels: Json, data: Json, labels_then: Json, data_then: Json, theirs: Json
) -> None:
    before = copied_of(original_of(labels=labels, data=data))
    now = forge(before, CONFIG_MAPS)
    added = {f"their-{key}": value for key, value in theirs.items()}
    now["metadata"]["labels"] |= added
    after = copied_of(original_of(labels=labels_then, data=data_then))
    then = applied(now, changes(stored(now), after, CONFIG_MAPS))
    wanted = forge(after, CONFIG_MAPS)
    assert then["metadata"]["labels"] == wanted["metadata"]["labels"] | added
    assert then["metadata"]["annotations"] == wanted["metadata"]["annotations"]
    assert (then.get("data") or {}) == data_then
    assert changes(stored(then), after, CONFIG_MAPS) == {}


def test_a_change_is_of_one_version_and_replaces_maps_whole() -> None:
    copied = copied_of(original_of(data={"k": "v"}))
    copy = stored(forge(copied, CONFIG_MAPS))
    change = changes(copy, copied_of(original_of(data={"l": "w"})), CONFIG_MAPS)
    assert list(patch(copy, change).body) == [
        {"op": "add", "path": "/metadata/uid", "value": "copy-uid"},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/data", "value": {"l": "w"}},
        {"op": "add", "path": "/binaryData", "value": {}},
        {"op": "add", "path": "/immutable", "value": False},
    ]


def test_an_immutable_copy_is_replaced_only_if_it_holds_something_else() -> None:
    was = copied_of(original_of(data={"k": "v"}, immutable=True))
    copy = stored(forge(was, CONFIG_MAPS))
    assert copy.immutable
    assert not is_replaced(copy, was, CONFIG_MAPS, stale=True)
    other = copied_of(original_of(data={"k": "w"}))
    assert is_replaced(copy, other, CONFIG_MAPS, stale=False)


def secret_copied(**content: object) -> Copied:
    original = original_of(**content)
    return Copied(
        original=original,
        content=secrets.translate(original.content()),
        name="s",
        namespace="mount",
        ids=IDS,
    )


def test_another_type_needs_another_secret() -> None:
    copy = stored(forge(secret_copied(type="a/b", data={"k": "AA=="}), SECRETS), SECRETS)
    other = secret_copied(type="c/d", data={"k": "AA=="})
    assert is_replaced(copy, other, SECRETS, stale=True)
    assert not is_replaced(copy, other, SECRETS, stale=False)  # types of one Secret never change


def test_a_secret_without_a_type_is_opaque_below() -> None:
    assert secrets.translate({"data": {"k": "AA=="}}) == {"type": "Opaque", "data": {"k": "AA=="}}


def test_nothing_secret_is_shown_or_kept() -> None:
    canary = base64.b64encode(b"canary").decode()
    original = original_of(data={"k": canary})
    copied = secret_copied(data={"k": canary})
    copy = stored(forge(copied, SECRETS), SECRETS)
    for shown in (repr(original), repr(copy), f"{original}", f"{copy}"):
        assert canary not in shown
    assert copy.raw == b""
    assert canary not in str(msgspec.to_builtins(copy))
