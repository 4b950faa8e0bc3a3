"""Redaction: secrets, recognised by name or form, become hashes; other text is unchanged."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import (
    Secret,
    fingerprint,
    is_secret_name,
    redact,
    redact_fields,
    redact_text,
)

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkNBTkFSWSJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.CANARYsignature-_0"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nCANARYkey+/\n-----END RSA PRIVATE KEY-----"
PEM64 = base64.b64encode(PEM.encode()).decode()


@pytest.mark.parametrize(
    "name",
    [
        "token", "Token", "access_token", "accessToken", "id-token", "X-Auth-Token", "password",
        "db.password", "PASSWD", "passphrase", "secret", "client-secret", "clientSecret",
        "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "client-key",
        "client-key-data", "clientKeyData", "private_key", "X-Api-Key", "aws_secret_access_key",
        "credentials", "tokens",
    ],
)  # fmt: skip
def test_a_name_that_means_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["token_file", "secretName", "secret_name", "password_set_at", "key", "name", "keys", ""],
)
def test_a_name_that_only_speaks_of_a_secret_is_not_one(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "canary"),
    [
        (JWT, "CANARYsignature"),
        (f"sent {JWT}, was refused", "CANARYsignature"),
        (JWT.rpartition(".")[0], "eyJpc3Mi"),
        (PEM, "CANARYkey"),
        (PEM.partition("-----END")[0], "CANARYkey"),
        (repr(PEM), "CANARYkey"),
        (f"key {PEM64} read", PEM64[40:]),
        ("Authorization: Bearer canary42opaque", "canary42opaque"),
        ("authorization=Token canary42opaque", "canary42opaque"),
        ("Bearer abcdefghijklmnopqrstuvwxyzcanary", "canary"),
        ("proxy http://user:canary@proxy:3128/", "canary"),
        ('{"token": "canary"}', "canary"),
        ('{"token": "it\'s \\"canary"}', "canary"),
        (r'body: "{\"token\": \"canary\"}"', "canary"),
        ("Access(token='canary', password=\"canary\")", "canary"),
        ("Access(token=b'canary')", "canary"),
        ("GET /api?watch=1&access_token=canary&x=1", "canary"),
        ("kubectl --token=canary get pods", "canary"),
        ("users:\n- name: a\n  user:\n    token: canary-1\n", "canary"),
    ],
)
def test_text_that_looks_like_a_secret_is_hashed(text: str, canary: str) -> None:
    shown = redact_text(text)
    assert canary not in shown
    assert "Secret(" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Created secret team-a/db in cluster w1",
        "could not get serviceaccounts/token: forbidden",
        "bearer authentication is off",
        "basic information",
        "token: expired",
        "self.connect(token=token, password=password)",
        "https://10.0.0.1:6443/api/v1/secrets?watch=true",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIBpublic\n").decode(),
        "short",
        "",
    ],
)
def test_text_that_speaks_of_secrets_stays(text: str) -> None:
    assert redact_text(text) == text


def test_a_value_under_a_secret_name_is_hashed_whole() -> None:
    assert redact("canary", name="token") == fingerprint("canary")
    assert redact({"a": "canary"}, name="client-secret") == fingerprint("{'a': 'canary'}")
    assert redact(4711, name="password") == fingerprint("4711")


def test_what_cannot_be_a_secret_stays_under_a_secret_name() -> None:
    assert redact(None, name="token") is None
    assert redact(True, name="has_token") is True
    assert redact("", name="token") == ""


def test_a_secret_keeps_its_own_hash() -> None:
    secret = Secret("canary")
    assert redact(secret) == repr(secret)
    assert redact(secret, name="token") == repr(secret)
    assert redact_text(f'"token": "{secret}"') == f'"token": "{secret}"'
    assert redact("Secret(canary)", name="token") != "Secret(canary)"


def test_secrets_inside_a_document_are_found() -> None:
    shown = redact(
        {"user": {"name": "a", "token": "canary"}, "seen": [JWT, {"Password": "canary"}]}
    )
    assert shown == {
        "user": {"name": "a", "token": fingerprint("canary")},
        "seen": [fingerprint(JWT), {"Password": fingerprint("canary")}],
    }


def test_things_become_plain_data() -> None:
    class Thing:
        def __repr__(self) -> str:
            return "Thing(token='canary')"

    assert redact(Key("ns", "name")) == "ns/name"
    assert redact((1, 2.5, True, None)) == [1, 2.5, True, None]
    assert redact({"x"}) == ["x"]
    assert redact({1: float("inf"), Key("", "n"): float("nan")}) == {"1": "inf", "n": "nan"}
    assert redact(ValueError("no")) == "ValueError: no"
    assert redact(b"abc\xff") == "abc\\xff"
    assert redact(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00+00:00"
    assert redact(Thing()) == f"Thing(token='{fingerprint('canary')}')"
    assert redact("a\ud800b") == "a\\ud800b"


_NAMES = st.sampled_from(["msg", "vpod", "key", "token", "client-key-data", "tries"])
_TEXTS = st.sampled_from(["web-0", "Bearer canary4711", "?token=canary4711", "a\ud800b", "é"])
_VALUES = st.one_of(
    _TEXTS, st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(_TEXTS)
)


@given(st.dictionaries(_NAMES, _VALUES))
@example({"msg": "Read", "tries": 2, "header": "Bearer canary4711"})
@example({"msg": "Read", "token": "canary"})
@example({"msg": "Read", "text": "a\ud800b"})
@example({"msg": "x" * 40_000})
def test_fields_of_a_line_are_redacted_like_each_of_them(fields: dict[str, object]) -> None:
    each = {name: redact(value, name=name) for name, value in fields.items()}
    assert redact_fields(fields) == each


def test_a_document_that_contains_itself_ends() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert json.dumps(redact(loop), ensure_ascii=False).count("[") == 8


def test_a_long_text_is_cut() -> None:
    shown = redact_text("x" * 100_000)
    assert len(shown) < 33_000
    assert shown.endswith("… (67232 more)")


@pytest.mark.parametrize(
    "unit",
    ["eyJabcdef-", "-", "--a", "token= ", "://a:", "bearer a", "a.b-", "    token", '"token": "'],
)
def test_no_text_takes_long(unit: str) -> None:
    started = time.process_time()
    redact_text((unit * 100_000) + "token=")
    assert time.process_time() - started < 1


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_whatever_is_logged_becomes_json(value: object) -> None:
    json.dumps(redact(value), allow_nan=False).encode()
