"""Tests of access to metrics: limits of reviews, and certificates."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError, Refusal
from kubeocean.local.pki import LocalAuthority
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.health import metrics_app
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.metrics_access import CertificateFiles, MetricsAccess, ServingCertificate
from kubeocean.runtime.server import Server
from kubeocean.runtime.token_reviews import MAX_TOKEN, bearer_token
from support.proxier_server import pair_of
from support.scripted_transport import Scripted, answer

UNKNOWN = b'{"status": {"authenticated": false}}'


def test_a_bearer_token_is_read_from_its_header_only() -> None:
    assert bearer_token("Bearer  abc ") == bearer_token("bearer abc") == "abc"
    for header in ("", "abc", "Basic abc", "Bearer", f"Bearer {'a' * (MAX_TOKEN + 1)}"):
        assert bearer_token(header) == ""


async def refusal(access: MetricsAccess, token: str) -> int:
    with pytest.raises(Refusal) as refused:
        await access.check(f"Bearer {token}" if token else "")
    return refused.value.status


async def test_unknown_tokens_cause_a_limited_number_of_reviews() -> None:
    clock = VirtualClock()
    transport = Scripted(*[answer(201, UNKNOWN)] * 100)
    access = MetricsAccess(Client(transport, cluster="test"), clock=clock)
    codes = [await refusal(access, f"bad{number}") for number in range(30)]
    assert codes == [401] * 20 + [429] * 10
    assert await refusal(access, "bad0") == 401  # from the cache
    assert await refusal(access, "") == 401  # without a review
    assert len(transport.requests) == 20
    await clock.advance(1.0)
    assert await refusal(access, "another") == 401
    assert len(transport.requests) == 21


async def presented(certificate: ServingCertificate) -> bytes:
    """Return the certificate that the server presents, in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = BindAddress("127.0.0.1", 0)
    async with Server(metrics_app(Metrics()), address, tls=certificate.context) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port, ssl=context)
        seen = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
    assert isinstance(seen, bytes)
    return seen


async def test_a_self_signed_certificate_is_replaced_before_it_expires() -> None:
    clock = VirtualClock()
    certificate = ServingCertificate(clock=clock)
    first = await presented(certificate)
    certificate.refresh()
    assert await presented(certificate) == first
    await clock.advance(timedelta(days=300).total_seconds())
    certificate.refresh()
    assert await presented(certificate) != first


async def test_changed_certificate_files_are_used_and_invalid_ones_are_not(tmp_path: Path) -> None:
    authority = LocalAuthority.create("metrics")
    files = CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key")

    def write() -> bytes:
        pair = pair_of(authority)
        files.certificate.write_bytes(pair.certificate)
        files.key.write_bytes(pair.key.reveal())
        return ssl.PEM_cert_to_DER_cert(pair.certificate.decode().split("-----\n\n")[0])

    with pytest.raises(ConfigError, match="--metrics-cert-path"):
        ServingCertificate(files)
    first = write()
    certificate = ServingCertificate(files)
    assert await presented(certificate) == first
    second = write()
    certificate.refresh()
    assert await presented(certificate) == second
    files.certificate.write_text("not a certificate")
    certificate.refresh()
    assert await presented(certificate) == second
    with pytest.raises(ConfigError, match="must contain a certificate"):
        ServingCertificate(files)
