"""Certificates of the webhook server: a certificate authority, and the certificate it issues. Pure.

One Secret that all replicas share holds the authority and the certificate. Each is renewed when two
thirds of its life are over. A new authority is published a day before the first certificate that it
issues, and the old authority stays published for a day after, so that API servers trust the webhook
server at every time.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.pki import Authority, Identity, Subject, load_key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.server_tls import ServerCertificate

__all__ = ["CertificateSet", "Renewal", "renew"]

_AUTHORITY_DAYS: Final = 5 * 365
_CERTIFICATE_DAYS: Final = 90
_RENEWED_AT: Final = 2 / 3
_OVERLAP: Final = timedelta(days=1)  # between the publication of an authority and its first use
_COMMON_NAME: Final = "kubeocean-fleet-webhooks"
_BUNDLE: Final = "ca.crt"
_AUTHORITY_KEY: Final = "ca.key"
_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """The webhook server's certificates as a Secret holds them, all PEM.

    `bundle` holds the authorities; `authority_key` is the key of the last one.
    """

    bundle: bytes
    authority_key: Secret[bytes]
    certificate: bytes
    key: Secret[bytes]

    @classmethod
    def from_data(cls, data: Mapping[str, str]) -> CertificateSet | None:
        """Read the data of a Secret; None if an entry is missing or is not base64."""
        try:
            bundle, authority_key, certificate, key = (
                base64.b64decode(data[name], validate=True)
                for name in (_BUNDLE, _AUTHORITY_KEY, _CERTIFICATE, _KEY)
            )
        except (KeyError, binascii.Error, ValueError):
            return None
        return cls(bundle, Secret(authority_key), certificate, Secret(key))

    def data(self) -> dict[str, str]:
        """Return the certificates as the `data` of a Secret."""
        content = {
            _BUNDLE: self.bundle,
            _AUTHORITY_KEY: self.authority_key.reveal(),
            _CERTIFICATE: self.certificate,
            _KEY: self.key.reveal(),
        }
        return {name: base64.b64encode(pem).decode() for name, pem in content.items()}

    def server_certificate(self, source: str) -> ServerCertificate:
        """Return the certificate that the webhook server presents.

        :raises ConfigError: the certificate and the key are not PEM, or do not match.
        """
        return ServerCertificate.load(self.certificate, self.key.reveal(), source)


@dataclass(frozen=True, slots=True)
class Renewal:
    """Certificates to use, and the time at which the next one of them is due to be replaced."""

    certificates: CertificateSet
    next_at: datetime


@dataclass(frozen=True, slots=True)
class _Chain:
    """Parsed certificates: all authorities, the last of which signs, and the server's `leaf`."""

    authorities: tuple[x509.Certificate, ...]
    signer: Authority
    leaf: x509.Certificate
    identity: Identity

    @property
    def newest(self) -> x509.Certificate:
        return self.authorities[-1]

    @property
    def is_signed_by_newest(self) -> bool:
        return _is_issued_by(self.leaf, self.newest)

    @property
    def leaf_is_trusted(self) -> bool:
        return any(_is_issued_by(self.leaf, each) for each in self.authorities)


def renew(stored: CertificateSet | None, names: Sequence[str], clock: Clock) -> Renewal:
    """Return `stored` with the certificates that are due replaced; unchanged if none is due.

    :param names: hosts and addresses by which API servers reach the webhook server.
    """
    now = clock.now()
    chain = _read(stored, clock) if stored is not None else None
    if chain is None or not _is_valid(chain.newest, now):
        chain = _new_chain(names, clock)
    authorities, signer = chain.authorities, chain.signer
    is_leaf_due = now >= _due(chain.leaf) or not set(names) <= _names(chain.leaf)
    identity = chain.identity
    if now >= _due(chain.newest):
        # The old authority signs once more: API servers do not trust the new one yet.
        identity = _issue(signer, names)
        signer = _new_authority(clock)
        authorities = (*authorities, _parse(signer.certificate))
    elif is_leaf_due or not chain.leaf_is_trusted or _is_takeover_due(chain, now):
        identity = _issue(signer, names)
    leaf = _parse(identity.certificate)
    if _is_issued_by(leaf, authorities[-1]) and now >= _valid_from(leaf) + _OVERLAP:
        authorities = authorities[-1:]
    authorities = tuple(each for each in authorities if _is_valid(each, now))
    certificates = CertificateSet(
        b"".join(each.public_bytes(Encoding.PEM) for each in authorities),
        Secret(signer.identity.private_key),
        identity.certificate,
        Secret(identity.private_key),
    )
    return Renewal(certificates, min(_due_times(authorities, leaf)))


def _is_takeover_due(chain: _Chain, now: datetime) -> bool:
    return not chain.is_signed_by_newest and now >= _valid_from(chain.newest) + _OVERLAP


def _due_times(
    authorities: Sequence[x509.Certificate], leaf: x509.Certificate
) -> Iterable[datetime]:
    yield _due(leaf)
    yield _due(authorities[-1])
    if not _is_issued_by(leaf, authorities[-1]):
        yield _valid_from(authorities[-1]) + _OVERLAP
    elif len(authorities) > 1:
        yield _valid_from(leaf) + _OVERLAP


def _read(stored: CertificateSet, clock: Clock) -> _Chain | None:
    """Parse `stored`; None if a certificate or key cannot be read, or a key does not match."""
    try:
        authorities = tuple(x509.load_pem_x509_certificates(stored.bundle))
        leaf = x509.load_pem_x509_certificates(stored.certificate)[0]
        newest = Identity(authorities[-1].public_bytes(Encoding.PEM), stored.authority_key.reveal())
        signer = Authority(newest, clock=clock)
        authority_key = load_key(stored.authority_key.reveal(), _AUTHORITY_KEY)
        key = load_key(stored.key.reveal(), _KEY)
    except (ValueError, IndexError, ConfigError):
        return None
    belong_together = (
        authority_key.public_key() == authorities[-1].public_key()
        and key.public_key() == leaf.public_key()
    )
    if not belong_together:
        return None
    return _Chain(authorities, signer, leaf, Identity(stored.certificate, stored.key.reveal()))


def _new_chain(names: Sequence[str], clock: Clock) -> _Chain:
    signer = _new_authority(clock)
    identity = _issue(signer, names)
    return _Chain((_parse(signer.certificate),), signer, _parse(identity.certificate), identity)


def _new_authority(clock: Clock) -> Authority:
    return Authority.create(_COMMON_NAME, days=_AUTHORITY_DAYS, clock=clock)


def _issue(signer: Authority, names: Sequence[str]) -> Identity:
    subject = Subject(_COMMON_NAME, sans=tuple(names), server=True)
    return signer.sign(subject, days=_CERTIFICATE_DAYS)


def _parse(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _valid_from(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _due(certificate: x509.Certificate) -> datetime:
    begins = _valid_from(certificate)
    return begins + (certificate.not_valid_after_utc - begins) * _RENEWED_AT


def _names(leaf: x509.Certificate) -> set[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {str(general.value) for general in names}
