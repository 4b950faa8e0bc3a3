"""Bind addresses: the forms that controller-runtime's flags take, and clear refusals."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import BindAddress


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8080", "", 8080),
        (" :8080 ", "", 8080),
        (":0", "", 0),
        (":65535", "", 65535),
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:80", "localhost", 80),
        ("my-host.example.com:1", "my-host.example.com", 1),
        ("[::1]:8080", "::1", 8080),
        ("[::]:8080", "::", 8080),
        ("[fe80::1%eth0]:8080", "fe80::1%eth0", 8080),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    address = BindAddress.parse(text, flag="--metrics-bind-address")
    assert address == BindAddress(host, port, "--metrics-bind-address")


@pytest.mark.parametrize("text", ["0", "", " 0 ", "  "])
def test_zero_or_nothing_means_off(text: str) -> None:
    assert BindAddress.parse(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8080", "port is missing"),
        ("localhost", "port is missing"),
        ("host:", "'' is not a port number"),
        (":http", "'http' is not a port number"),
        (":-1", "'-1' is not a port number"),
        (":８0", "is not a port number"),
        (":65536", "0 to 65535"),
        (":" + "9" * 5000, "0 to 65535"),
        ("::1:8080", "brackets"),
        ("http://localhost:8080", "scheme"),
        ("[localhost]:80", "not an IPv6 address"),
        ("[::1]x:80", "brackets"),
        ("a b:80", "'a b' is not a host"),
    ],
)
def test_a_wrong_address_is_refused_by_flag_and_value(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match="--health-probe-bind-address") as refused:
        BindAddress.parse(text, flag="--health-probe-bind-address")
    assert why in str(refused.value)
    assert refused.value.value == text
    assert repr(text)[:200] in str(refused.value)  # of a long text only the beginning


@given(
    host=st.sampled_from(["", "127.0.0.1", "::1", "2001:db8::7", "a.example"]),
    port=st.integers(0, 65535),
)
def test_text_of_an_address_parses_to_the_same(host: str, port: int) -> None:
    address = BindAddress(host, port)
    assert BindAddress.parse(str(address)) == address


@given(st.text())
def test_any_text_is_an_address_or_off_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        BindAddress.parse(text)
