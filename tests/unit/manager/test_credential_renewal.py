"""Which credentials the manager renews, and which tokens it accepts."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import ApiError
from kubeocean.install.credentials import kubeconfig, kubeconfig_secret, read_token
from kubeocean.manager.credential_renewal import accepted, credential_of
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import SecretWithData
from kubeocean.runtime.objects import Json, Meta
from kubeocean.worker_access.credentials import SecretAccess

NOW = datetime(2026, 11, 17, tzinfo=UTC)
BINDING = ClusterBinding(metadata=Meta(name="berlin"))


def token(*, begins: datetime = NOW, days: float = 365, **own: object) -> str:
    claims = {
        "iat": int(begins.timestamp()),
        "exp": int((begins + timedelta(days=days)).timestamp()),
        "kubernetes.io": {
            "namespace": "m",
            "serviceaccount": {"name": "kubeocean-syncer", "uid": "a"},
            "secret": {"name": "kubeocean-berlin-01234567", "uid": "s"},
            **own,
        },
    }
    parts = (b"{}", msgspec.json.encode(claims), b"signature")
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)


def secret(content: str = "", **metadata: object) -> SecretWithData:
    text = content or kubeconfig(Access("https://w"), token(), namespace="m")
    body: Json = kubeconfig_secret("berlin", text, ends="2027-11-17T00:00:00Z", domain=DEFAULT)
    body["metadata"] |= metadata
    return msgspec.convert(body, SecretWithData)


def renews(stored: SecretWithData) -> bool:
    access = SecretAccess(stored).current()
    return credential_of(stored, access, BINDING, DEFAULT).renews is not None


def test_a_credential_is_renewed_in_the_last_third_of_its_lifetime() -> None:
    stored = secret()
    credential = credential_of(stored, SecretAccess(stored).current(), BINDING, DEFAULT)
    assert credential.renews is not None
    assert credential.ends == NOW + timedelta(days=365)
    assert not credential.is_due(NOW + timedelta(days=243))
    assert credential.is_due(NOW + timedelta(days=244))


@pytest.mark.parametrize(
    "other",
    [
        secret(name="mine"),
        secret(namespace="default"),
        secret(labels={}),
        secret(labels={"kubeocean.io/cluster-binding": "berlin"}),
        secret(labels=secret().labels | {"kubeocean.io/cluster-binding": "paris"}),
        secret(annotations={}),
        secret(kubeconfig(Access("https://w"), token(secret={}), namespace="m")),
        secret(kubeconfig(Access("https://w"), "opaque", namespace="m")),
    ],
)
def test_a_kubeconfig_that_join_did_not_make_is_not_renewed(other: SecretWithData) -> None:
    assert renews(secret())
    assert not renews(other)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "worker's API server has none"),
        (7, "worker's API server has none"),
        ("a" * 20_000, "worker's API server has none"),
        ("a.b.c", "issued no service account token"),
        (token(days=400) + "\n", "issued no service account token"),
        (token(days=400, namespace="kube-system"), "for another account"),
        (token(days=400, serviceaccount={"name": "admin"}), "for another account"),
        (token(days=400, secret={}), "not bound to the Secret"),
        (token(days=400, secret={"name": "own", "uid": "o"}), "not bound to the Secret"),
        (token(), "no later than the present one"),
        (token(days=1), "expires at 2026-11-18T00:00:00Z, no later"),
    ],
)
def test_a_token_that_must_not_replace_the_present_one(answer: object, message: str) -> None:
    present = read_token(token())
    assert present is not None
    with pytest.raises(ApiError, match=message):
        accepted(answer, present)


def test_a_later_token_of_the_same_account_and_secret_is_accepted() -> None:
    present, later = read_token(token()), token(begins=NOW + timedelta(days=300))
    assert present is not None
    assert accepted(later, present).token == later
    assert later not in repr(accepted(later, present))


@given(st.text() | st.binary().map(lambda each: base64.urlsafe_b64encode(each).decode()))
def test_no_answer_raises_anything_else(payload: str) -> None:
    present = read_token(token())
    assert present is not None
    with pytest.raises(ApiError):
        accepted(f"e30.{payload}.x", present)
