"""Copies: metadata of others stays, content follows the source, equal copies need no write."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.api.ownership import Ids
from kubeocean.runtime.objects import Json, decode_object
from kubeocean.syncer.replication.copy_forge import (
    Copy,
    CopyContext,
    ReplicatedKind,
    Source,
    changes,
    digested,
    forge,
    must_be_replaced,
    patch,
)
from kubeocean.syncer.replication.kinds import configmaps, secrets
from kubeocean.syncer.replication.kinds.configmaps import CONFIG_MAPS
from kubeocean.syncer.replication.kinds.secrets import SECRETS

IDS = Ids("b1", "c1", "computing-1")
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
TEXTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.text("xyz", max_size=3), max_size=3
)


def source_of(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    uid: str = "u1",
    **content: object,
) -> Source:
    metadata = {
        "name": "config",
        "namespace": "team",
        "uid": uid,
        "labels": labels or {},
        "annotations": annotations or {},
    }
    document = msgspec.json.encode({"metadata": metadata, **content})
    return decode_object(Source, document, keep_raw=True)


def context_of(source: Source, *, domain: Domain = DEFAULT) -> CopyContext:
    return CopyContext(
        kind=CONFIG_MAPS,
        source=source,
        content=configmaps.translate(source.content()),
        name="config-hash",
        namespace="mount",
        ids=IDS,
        domain=domain,
    )


def cached(document: Json, kind: ReplicatedKind = CONFIG_MAPS) -> Copy:
    """Return the copy as the cache keeps it."""
    metadata = document["metadata"] | {"uid": "copy-uid", "resourceVersion": "7"}
    raw = msgspec.json.encode(document | {"metadata": metadata})
    return digested(decode_object(Copy, raw, keep_raw=True), kind)


def applied(document: Json, change: Json) -> Json:
    """Return the document as a server stores it after the change."""
    then: Json = msgspec.json.decode(msgspec.json.encode(document))
    for path, value in change.items():
        *parents, last = path.strip("/").split("/")
        at = then
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return then


@pytest.mark.parametrize("domain", [DEFAULT, TAPESTRY])
def test_a_copy_has_the_metadata_of_its_source_and_of_its_owner(domain: Domain) -> None:
    source = source_of(
        labels={"app": "a", f"{domain.name}/synced-by-c1": "true"},
        annotations={"note": "n", APPLIED: "{}", domain.physical_name: "x"},
        data={"k": "v"},
    )
    body = forge(context_of(source, domain=domain))
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
def test_a_copy_that_was_created_needs_no_change(
    labels: Json, annotations: Json, data: Json
) -> None:
    context = context_of(source_of(labels=labels, annotations=annotations, data=data))
    assert changes(cached(forge(context)), context) == {}


@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_a_change_makes_a_copy_like_a_new_one_and_keeps_labels_of_others(
    labels: Json, data: Json, labels_then: Json, data_then: Json, theirs: Json
) -> None:
    before = context_of(source_of(labels=labels, data=data))
    now = forge(before)
    added = {f"their-{key}": value for key, value in theirs.items()}
    now["metadata"]["labels"] |= added
    after = context_of(source_of(labels=labels_then, data=data_then))
    then = applied(now, changes(cached(now), after))
    wanted = forge(after)
    assert then["metadata"]["labels"] == wanted["metadata"]["labels"] | added
    assert then["metadata"]["annotations"] == wanted["metadata"]["annotations"]
    assert (then.get("data") or {}) == data_then
    assert changes(cached(then), after) == {}


def test_a_patch_applies_to_one_version_and_replaces_maps_as_a_whole() -> None:
    context = context_of(source_of(data={"k": "v"}))
    copy = cached(forge(context))
    change = changes(copy, context_of(source_of(data={"l": "w"})))
    assert list(patch(copy, change).body) == [
        {"op": "add", "path": "/metadata/uid", "value": "copy-uid"},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/data", "value": {"l": "w"}},
        {"op": "add", "path": "/binaryData", "value": {}},
        {"op": "add", "path": "/immutable", "value": False},
    ]


def test_an_immutable_copy_is_replaced_only_if_its_content_differs() -> None:
    was = context_of(source_of(data={"k": "v"}, immutable=True))
    copy = cached(forge(was))
    assert copy.immutable
    assert not must_be_replaced(copy, was, stale=True)
    other = context_of(source_of(data={"k": "w"}))
    assert must_be_replaced(copy, other, stale=False)


def secret_context(**content: object) -> CopyContext:
    source = source_of(**content)
    return CopyContext(
        kind=SECRETS,
        source=source,
        content=secrets.translate(source.content()),
        name="s",
        namespace="mount",
        ids=IDS,
    )


def test_a_secret_of_another_type_needs_a_new_copy() -> None:
    copy = cached(forge(secret_context(type="a/b", data={"k": "AA=="})), SECRETS)
    other = secret_context(type="c/d", data={"k": "AA=="})
    assert must_be_replaced(copy, other, stale=True)
    assert not must_be_replaced(copy, other, stale=False)  # types of one Secret never change


def test_the_copy_of_a_secret_without_a_type_is_opaque() -> None:
    assert secrets.translate({"data": {"k": "AA=="}}) == {"type": "Opaque", "data": {"k": "AA=="}}


def test_secret_data_is_neither_printed_nor_kept() -> None:
    canary = base64.b64encode(b"canary").decode()
    source = source_of(data={"k": canary})
    context = secret_context(data={"k": canary})
    copy = cached(forge(context), SECRETS)
    for shown in (repr(source), repr(copy), f"{source}", f"{copy}"):
        assert canary not in shown
    assert copy.raw == b""
    assert canary not in str(msgspec.to_builtins(copy))
