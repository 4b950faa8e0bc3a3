"""PKI: a certificate authority in memory, and the certificates that it issues.

An `Authority` signs; an `Identity` is a certificate and its key. Keys are EC P-256, which are
generated in less than a millisecond.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["Authority", "Identity", "Subject", "key_pem", "load_key", "new_key", "self_signed"]

_DAYS: Final = 3650
_NAME_LENGTH: Final = 64  # X.520's upper bound for common names and organizations
_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject and usages of a certificate."""

    common_name: str
    organizations: tuple[str, ...] = ()
    sans: tuple[str, ...] = ()
    client: bool = False
    server: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    private_key: bytes = field(repr=False)


class Authority:
    """Certificate authority; `source` names where its key was read, for errors.

    :raises ConfigError: the key cannot be used.
    """

    def __init__(self, identity: Identity, *, clock: Clock | None = None, source: str = "") -> None:
        self.identity = identity
        self._clock = clock or RealClock()
        self._key = load_key(identity.private_key, source)
        self._certificate = x509.load_pem_x509_certificate(identity.certificate)

    @property
    def certificate(self) -> bytes:
        return self.identity.certificate

    @classmethod
    def create(cls, common_name: str, *, days: int = _DAYS, clock: Clock | None = None) -> Self:
        """Return a new authority with a self-signed certificate."""
        clock = clock or RealClock()
        key = new_key()
        builder = (
            _certificate(common_name, (), key, clock, days=days)
            .issuer_name(_name(common_name, ()))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        certificate = builder.sign(key, hashes.SHA256())
        return cls(Identity(_pem(certificate), key_pem(key)), clock=clock)

    def sign(self, subject: Subject, *, days: int = _DAYS) -> Identity:
        """Return a certificate for `subject`, with a new key."""
        key = new_key()
        builder = (
            _certificate(subject.common_name, subject.organizations, key, self._clock, days=days)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_purposes(subject)), critical=False)
            .add_extension(self._signer_identifier(), critical=False)
        )
        if subject.sans:
            names = x509.SubjectAlternativeName([_alternative(san) for san in subject.sans])
            builder = builder.add_extension(names, critical=False)
        return Identity(_pem(builder.sign(self._key, hashes.SHA256())), key_pem(key))

    def _signer_identifier(self) -> x509.AuthorityKeyIdentifier:
        extension = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


def self_signed(host: str, *, life: timedelta, skew: timedelta, clock: Clock) -> Identity:
    """Return a self-signed certificate of a server, valid from `skew` ago for `life` from now."""
    key, now = new_key(), clock.now()
    subject = _name(host[:_NAME_LENGTH], ())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - skew)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Identity(_pem(certificate), key_pem(key))


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def load_key(pem: bytes, source: str) -> ec.EllipticCurvePrivateKey:
    """Read a private key in PEM; `source` names the origin of the key, for errors.

    :raises ConfigError: the text is not the private key of an elliptic curve.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ValueError as error:
        raise ConfigError(f"could not read the private key: {error}", source=source) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("could not use the private key: it is not an EC key", source=source)
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM in the traditional form, which every component of Kubernetes
    accepts."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(
    common_name: str,
    organizations: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    clock: Clock,
    *,
    days: int,
) -> x509.CertificateBuilder:
    now = clock.now()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name, organizations))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    for name in (common_name, *organizations):
        if not 0 < len(name) <= _NAME_LENGTH:
            message = (
                f"could not create a certificate: a name must have 1 to {_NAME_LENGTH} characters"
            )
            raise ConfigError(message, value=name)
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(san: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(san))
    except ValueError:
        return x509.DNSName(san)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(subject: Subject) -> list[x509.ObjectIdentifier]:
    client = [ExtendedKeyUsageOID.CLIENT_AUTH] if subject.client else []
    server = [ExtendedKeyUsageOID.SERVER_AUTH] if subject.server else []
    return client + server
