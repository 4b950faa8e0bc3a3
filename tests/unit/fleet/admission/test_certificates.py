"""Certificates of the webhook server over their whole life, in virtual time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography import x509

from kubeocean.fleet.admission.certificates import CertificateSet, Renewal, renew
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.redaction import Secret

NAMES = ("fleetwebhook.fleet-system.svc", "127.0.0.1")


def authorities(certificates: CertificateSet) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(certificates.bundle)


def leaf(certificates: CertificateSet) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificates.certificate)


def is_trusted(served: CertificateSet, trusted: CertificateSet) -> bool:
    """Whether a client with the authorities of `trusted` accepts the server of `served`."""
    for authority in authorities(trusted):
        try:
            leaf(served).verify_directly_issued_by(authority)
        except Exception:
            continue
        return True
    return False


async def advance_to(clock: VirtualClock, renewal: Renewal) -> None:
    await clock.advance((renewal.next_at - clock.now()).total_seconds() + 1)


def test_new_certificates_are_for_the_names_and_can_be_stored() -> None:
    clock = VirtualClock()
    made = renew(None, NAMES, clock).certificates
    assert CertificateSet.from_data(made.data()) == made
    assert made.server_certificate("here").names == set(NAMES)
    assert is_trusted(made, made)
    assert "PRIVATE" not in repr(made)
    assert leaf(made).not_valid_after_utc - clock.now() == timedelta(days=90)


def test_nothing_changes_before_something_is_due() -> None:
    clock = VirtualClock()
    made = renew(None, NAMES, clock)
    assert renew(made.certificates, NAMES, clock) == made
    assert renew(made.certificates, NAMES[:1], clock) == made  # fewer names


async def test_the_certificate_is_renewed_by_the_same_authority() -> None:
    clock = VirtualClock()
    first = renew(None, NAMES, clock)
    await advance_to(clock, first)
    second = renew(first.certificates, NAMES, clock)
    assert second.certificates.bundle == first.certificates.bundle
    assert second.certificates.certificate != first.certificates.certificate
    assert leaf(first.certificates).not_valid_after_utc > clock.now()


def test_other_names_need_another_certificate() -> None:
    clock = VirtualClock()
    first = renew(None, NAMES, clock).certificates
    second = renew(first, (*NAMES, "example.com"), clock).certificates
    assert second.bundle == first.bundle
    assert second.server_certificate("here").names == {*NAMES, "example.com"}


async def test_over_ten_years_every_certificate_is_trusted_by_what_was_published_before() -> None:
    clock = VirtualClock()
    end = clock.now() + timedelta(days=3650)
    renewal = renew(None, NAMES, clock)
    bundles = {renewal.certificates.bundle}
    while clock.now() < end:
        before = renewal
        await advance_to(clock, renewal)
        renewal = renew(before.certificates, NAMES, clock)
        assert renewal.certificates != before.certificates  # each time that was named was due
        assert renewal.next_at > clock.now()
        # API servers learn the new authorities a moment later, and replicas the new certificate.
        assert is_trusted(renewal.certificates, before.certificates)
        assert is_trusted(before.certificates, renewal.certificates)
        assert leaf(renewal.certificates).not_valid_after_utc > renewal.next_at
        assert len(authorities(renewal.certificates)) <= 2
        bundles.add(renewal.certificates.bundle)
    newest = {
        authorities(CertificateSet(each, Secret(b""), b"", Secret(b"")))[-1] for each in bundles
    }
    assert len(newest) >= 3  # five years, renewed at two thirds


@pytest.mark.parametrize("entry", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("damage", ["!", "", "aGFsZg=="])
def test_damaged_certificates_are_made_anew(entry: str, damage: str) -> None:
    clock = VirtualClock()
    data = renew(None, NAMES, clock).certificates.data()
    stored = CertificateSet.from_data(data | {entry: damage})
    renewed = renew(stored, NAMES, clock).certificates
    assert is_trusted(renewed, renewed)
    assert renewed.server_certificate("here").names == set(NAMES)


def test_keys_of_others_are_not_used() -> None:
    clock = VirtualClock()
    one, two = (renew(None, NAMES, clock).certificates.data() for _ in range(2))
    for entry in ("ca.key", "tls.key"):
        mixed = CertificateSet.from_data(one | {entry: two[entry]})
        renewed = renew(mixed, NAMES, clock).certificates
        assert renewed.bundle not in (mixed and mixed.bundle, b"")
        assert is_trusted(renewed, renewed)


async def test_expired_authorities_are_replaced() -> None:
    clock = VirtualClock()
    first = renew(None, NAMES, clock).certificates
    await clock.advance(timedelta(days=4000).total_seconds())
    second = renew(first, NAMES, clock).certificates
    assert len(authorities(second)) == 1
    assert second.bundle != first.bundle


def test_incomplete_data_is_no_certificate() -> None:
    assert CertificateSet.from_data({}) is None
    assert CertificateSet.from_data({"ca.crt": "eA=="}) is None
