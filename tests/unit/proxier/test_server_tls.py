"""The serving certificate and the client CA of the server's TLS."""

from __future__ import annotations

import ssl
from datetime import timedelta

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.pki import LocalAuthority
from kubeocean.proxier import server_tls
from kubeocean.proxier.server_tls import ServerTls
from kubeocean.runtime.clock import VirtualClock
from support.proxier_server import pair_of


async def test_the_server_is_not_ready_with_an_expired_certificate() -> None:
    clock = VirtualClock()
    tls, authority = ServerTls(clock=clock), LocalAuthority.create("a", clock=clock)
    tls.trust_clients(authority.certificate)
    assert not tls.ready
    assert tls.use_certificate(pair_of(authority))
    assert tls.ready
    await clock.advance(timedelta(days=4000).total_seconds())
    assert not tls.ready


async def test_a_certificate_that_is_not_valid_yet_does_not_replace_a_valid_one() -> None:
    clock = VirtualClock()
    tls, authority = ServerTls(clock=clock), LocalAuthority.create("a", clock=clock)
    tls.trust_clients(authority.certificate)
    future = VirtualClock()
    await future.advance(timedelta(days=400).total_seconds())
    good, early = pair_of(authority), pair_of(LocalAuthority.create("b", clock=future))
    assert tls.use_certificate(good)
    assert not tls.use_certificate(early)
    assert tls.certificate == good
    assert good.names == {"127.0.0.1"}


def test_a_certificate_that_tls_cannot_use_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the old one would be in use and the new one reported."""
    tls, authority = ServerTls(), LocalAuthority.create("a")
    tls.trust_clients(authority.certificate)
    good = pair_of(authority)
    tls.use_certificate(good)

    def unusable(*_: object) -> None:
        error = ssl.SSLError(1, "no")
        error.reason = "NO"
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(server_tls, "load_pair", unusable)
        with pytest.raises(ConfigError):
            tls.use_certificate(pair_of(authority, "127.0.0.1", "other"))
        epoch = tls.trust_epoch
        with pytest.raises(ConfigError):
            tls.trust_clients(LocalAuthority.create("b").certificate)
    assert tls.certificate == good
    assert tls.trust_epoch == epoch
    renewed = pair_of(authority, "127.0.0.1", "renewed")
    assert tls.use_certificate(renewed)
    assert tls.certificate == renewed
