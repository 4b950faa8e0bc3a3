from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.runtime.access import Access, Impersonation, split_url, token_problem
from kubeocean.runtime.redaction import Secret

unhurried = settings(deadline=None)  # a busy machine is no failure
full = Access(
    "https://api.example:6443",
    ca=b"authority in PEM",
    insecure=False,
    tls_server_name="other.example",
    proxy_url="http://me:open-sesame@proxy.example:3128",
    certificate=b"certificate in PEM",
    private_key=Secret(b"key in PEM"),
    token=Secret("sesame-token"),
    impersonate=Impersonation("jane"),
    namespace="team-a",
    origin="/etc/config (context here)",
)


def test_an_access_shows_everything_but_secrets() -> None:
    text = repr(full)
    for hidden in ("open-sesame", "PEM", "sesame-token"):
        assert hidden not in text
    for shown in ("api.example:6443", "other.example", "…@proxy.example:3128", "jane", "team-a"):
        assert shown in text
    assert str(full.private_key) in text


def test_an_access_without_extras_is_short() -> None:
    shown = repr(Access("http://a"))
    assert shown == "Access('http://a', namespace='default', origin='')"
    assert "proxy_url='http://p'" in repr(Access("http://a", proxy_url="http://p"))


def test_accesses_are_equal_by_value() -> None:
    assert full == dataclasses.replace(full, token=Secret("sesame-token"))
    assert hash(full) == hash(dataclasses.replace(full))
    assert full != dataclasses.replace(full, token=Secret("another token"))


def test_a_token_goes_into_the_authorization_header() -> None:
    headers = full.headers()
    assert headers == [("Authorization", "Bearer sesame-token"), ("Impersonate-User", "jane")]


def test_a_password_goes_into_the_authorization_header() -> None:
    access = Access("https://a", username="Aladdin", password=Secret("open sesame"))
    assert access.headers() == [("Authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")]
    assert Access("https://a", username="a").headers() == [("Authorization", "Basic YTo=")]


def test_no_credentials_make_no_headers() -> None:
    assert Access("https://a").headers() == []


def test_impersonation_names_user_uid_groups_and_extra() -> None:
    whom = Impersonation(
        "jane", ("dev", "ops"), "42", (("scopes", ("a", "b")), ("acme.com/Project %é", ("c",)))
    )
    assert whom.headers() == [
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "42"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-scopes", "a"),
        ("Impersonate-Extra-scopes", "b"),
        ("Impersonate-Extra-acme.com%2FProject%20%25%C3%A9", "c"),
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://a",
        "http://127.0.0.1:1",
        "https://[::1]:6443",
        "https://[fd00::1]",
        "https://host.example./path",
        "https://münchen.example",
        "http://user:password@proxy:3128",
        "https://a_b.c-d:65535/k8s/clusters/c-1",
    ],
)
def test_these_urls_can_be_connected_to(url: str) -> None:
    assert split_url(url) is not None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a",
        "a:6443",
        "//a",
        "https://",
        "https:///path",
        "https://:6443",
        "https://a:0",
        "https://a:65536",
        "https://a:port",
        "https://a b",
        "https://a\n",
        "https://a\x7f",
        "https://[::1",
        "https://[::g]",
        "https://[::1]6443",
        "https://[v1.x]",
        "https://a..b",
        "https://a%20b",
        "https://a{b}",
        "https://" + "a" * 64,
    ],
)
def test_these_urls_cannot(url: str) -> None:
    assert split_url(url) is None


@unhurried
@given(st.text())
def test_any_text_is_a_url_or_not(text: str) -> None:
    for url in (text, f"https://{text}", f"https://[{text}]", f"https://a:{text}"):
        parts = split_url(url)
        assert parts is None or parts.hostname


def test_a_token_must_fit_into_a_header() -> None:
    assert token_problem("abc.def-_~+/=") == ""
    assert token_problem("") == "is empty"
    for bad in ("a b", "a\nb", "a\0", "é", "\N{REPLACEMENT CHARACTER}"):
        assert "HTTP header" in token_problem(bad)
