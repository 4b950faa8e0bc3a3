"""Tokens: asked for in the right name, renewed in time, never shown."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Claim, Ids, claim_pod
from kubeocean.errors import InternalError
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.syncer.forge import tokens
from kubeocean.syncer.forge.references import TokenSource
from kubeocean.syncer.forge.tokens import Bearer, Token

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEARER = Bearer(
    pod=Key("team", "p"),
    pod_uid="vu",
    account="robot",
    secret=Key("mount", "p-token-hash"),
    owner="p-hash",
    owner_uid="pu",
    ids=Ids("b1", "c1", "computing-1"),
)


def answered(life_s: int, *, token: str = "canary") -> Token:
    until = NOW + timedelta(seconds=life_s)
    answer = {
        "spec": {"expirationSeconds": life_s},
        "status": {"token": token, "expirationTimestamp": f"{until:%Y-%m-%dT%H:%M:%SZ}"},
    }
    return tokens.read(answer, secret="name")


def secret_of(document: Json) -> Untyped:
    metadata = document["metadata"] | {"uid": "su", "resourceVersion": "3"}
    return msgspec.convert(document | {"metadata": metadata}, Untyped)


def test_a_token_is_bound_to_the_virtual_pod() -> None:
    asked = tokens.request(TokenSource("v", 0, "p", "vault", 7200), pod="p", uid="vu")
    assert asked["spec"] == {
        "audiences": ["vault"],
        "expirationSeconds": 7200,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "vu"},
    }
    assert tokens.request(TokenSource("v", 0, "p"), pod="p", uid="u")["spec"]["audiences"] == []


@given(st.integers(600, 400_000))
def test_a_token_is_renewed_after_four_fifths_of_its_life_or_a_day(life_s: int) -> None:
    token = answered(life_s)
    latest = min(life_s * 0.8, 24 * 3600)
    due_s = (token.due - NOW).total_seconds()
    assert latest - 10 <= due_s <= latest
    assert token.expires - NOW == timedelta(seconds=life_s)


def test_not_all_are_renewed_at_once() -> None:
    answer = {
        "spec": {"expirationSeconds": 3600},
        "status": {"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"},
    }
    dues = {tokens.read(answer, secret=f"s{n}").due for n in range(50)}
    assert len(dues) == 50
    assert tokens.read(answer, secret="s1") == tokens.read(answer, secret="s1")


def test_the_secret_goes_with_the_physical_pod_and_says_when_it_is_due() -> None:
    token = answered(3600)
    secret = secret_of(tokens.forge(BEARER, token))
    assert tokens.is_held_by(secret, "pu")
    assert not tokens.is_held_by(secret, "other")
    assert tokens.pod_of(secret, DEFAULT) == (Key("team", "p"), "vu")
    due = tokens.due_of(secret, DEFAULT)
    assert due is not None
    assert timedelta() <= token.due - due < timedelta(seconds=1)
    claim = claim_pod(secret, virtual=BEARER.pod, uid="vu", ids=BEARER.ids, domain=DEFAULT)
    assert claim is Claim.OURS


def test_a_new_token_changes_this_version_alone() -> None:
    secret = secret_of(tokens.forge(BEARER, answered(3600)))
    change = tokens.changes(secret, BEARER, answered(3600, token="second"))
    assert change["data"] == {"token": base64.b64encode(b"second").decode()}
    assert (change["metadata"]["uid"], change["metadata"]["resourceVersion"]) == ("su", "3")
    assert "ownerReferences" not in change["metadata"]


@pytest.mark.parametrize("said", ["", "soon", "2026-01-01T00:00:00"])
def test_a_time_that_cannot_be_read_is_unknown(said: str) -> None:
    document = {"metadata": {"annotations": {DEFAULT.token_due: said}}}
    assert tokens.due_of(msgspec.convert(document, Untyped), DEFAULT) is None


@pytest.mark.parametrize(
    "status",
    [None, {}, {"token": ""}, {"token": "canary"}, {"token": 5, "expirationTimestamp": "x"}],
)
def test_an_answer_without_a_token_fails_and_tells_nothing(status: Json | None) -> None:
    with pytest.raises(InternalError) as raised:
        tokens.read({"status": status}, secret="name")
    assert "canary" not in str(raised.value)


def test_a_token_is_never_shown() -> None:
    assert "canary" not in repr(answered(3600))
