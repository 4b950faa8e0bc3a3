"""Tokens: for which pod they are requested, when they are renewed, and that they stay secret."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, Ownership, pod_ownership
from kubeocean.errors import InternalError
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.syncer.pods.referenced_objects import TokenSource
from kubeocean.syncer.replication.tokens import (
    Token,
    TokenContext,
    due_of,
    forge_secret,
    is_owned_by,
    pod_of,
    read_token,
    secret_changes,
    token_request,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = TokenContext(
    pod=Key("team", "p"),
    pod_uid="vu",
    account="robot",
    secret=Key("mount", "p-token-hash"),
    owner="p-hash",
    owner_uid="pu",
    ids=Ids("b1", "c1", "computing-1"),
)


def issued(life_s: int, *, token: str = "canary") -> Token:
    until = NOW + timedelta(seconds=life_s)
    response = {
        "spec": {"expirationSeconds": life_s},
        "status": {"token": token, "expirationTimestamp": f"{until:%Y-%m-%dT%H:%M:%SZ}"},
    }
    return read_token(response, secret="name")


def secret_of(document: Json) -> Untyped:
    metadata = document["metadata"] | {"uid": "su", "resourceVersion": "3"}
    return msgspec.convert(document | {"metadata": metadata}, Untyped)


def test_a_token_is_bound_to_the_virtual_pod() -> None:
    request = token_request(TokenSource("v", 0, "p", "vault", 7200), pod="p", uid="vu")
    assert request["spec"] == {
        "audiences": ["vault"],
        "expirationSeconds": 7200,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "vu"},
    }
    assert request["metadata"] == {"labels": {"kubeocean.io/token-request": "true"}}
    assert token_request(TokenSource("v", 0, "p"), pod="p", uid="u")["spec"]["audiences"] == []


def test_a_token_is_requested_for_a_day_at_most() -> None:
    request = token_request(TokenSource("v", 0, "p", "vault", 31_536_000), pod="p", uid="u")
    assert request["spec"]["expirationSeconds"] == 86_400


@given(st.integers(600, 400_000))
def test_a_token_is_renewed_after_four_fifths_of_its_life_or_a_day(life_s: int) -> None:
    token = issued(life_s)
    latest = min(life_s * 0.8, 24 * 3600)
    due_s = (token.due - NOW).total_seconds()
    assert latest - 10 <= due_s <= latest
    assert token.expires - NOW == timedelta(seconds=life_s)


def test_the_times_of_renewal_differ_between_secrets() -> None:
    response = {
        "spec": {"expirationSeconds": 3600},
        "status": {"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"},
    }
    dues = {read_token(response, secret=f"s{n}").due for n in range(50)}
    assert len(dues) == 50
    assert read_token(response, secret="s1") == read_token(response, secret="s1")


def test_the_physical_pod_owns_the_secret_which_records_when_it_is_due() -> None:
    token = issued(3600)
    secret = secret_of(forge_secret(CONTEXT, token))
    assert is_owned_by(secret, "pu")
    assert not is_owned_by(secret, "other")
    assert pod_of(secret, DEFAULT) == (Key("team", "p"), "vu")
    due = due_of(secret, DEFAULT)
    assert due is not None
    assert timedelta() <= token.due - due < timedelta(seconds=1)
    ownership = pod_ownership(
        secret, virtual=CONTEXT.pod, uid="vu", ids=CONTEXT.ids, domain=DEFAULT
    )
    assert ownership is Ownership.OURS


def test_a_renewal_patches_one_version_of_the_secret() -> None:
    secret = secret_of(forge_secret(CONTEXT, issued(3600)))
    change = secret_changes(secret, CONTEXT, issued(3600, token="second"))
    assert change["data"] == {"token": base64.b64encode(b"second").decode()}
    assert (change["metadata"]["uid"], change["metadata"]["resourceVersion"]) == ("su", "3")
    assert "ownerReferences" not in change["metadata"]


@pytest.mark.parametrize("due", ["", "soon", "2026-01-01T00:00:00"])
def test_a_recorded_time_that_cannot_be_parsed_is_unknown(due: str) -> None:
    document = {"metadata": {"annotations": {DEFAULT.token_due: due}}}
    assert due_of(msgspec.convert(document, Untyped), DEFAULT) is None


@pytest.mark.parametrize(
    "status",
    [None, {}, {"token": ""}, {"token": "canary"}, {"token": 5, "expirationTimestamp": "x"}],
)
def test_a_response_without_a_token_fails_without_showing_its_content(
    status: Json | None,
) -> None:
    with pytest.raises(InternalError) as raised:
        read_token({"status": status}, secret="name")
    assert "canary" not in str(raised.value)


def test_a_token_is_not_in_its_representation() -> None:
    assert "canary" not in repr(issued(3600))
