"""PKI: the certificates of a cluster on this machine.

An `Authority` signs; an `Identity` is a certificate and its key. Keys are EC P-256, which the
whole set for a cluster needs a few milliseconds for, and their files are readable by their owner
only. Files on disk are used again as long as they match and stay valid for a month.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeocean.errors import LocalError
from kubeocean.local.files import write_private
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["Authority", "Identity", "ServiceAccountKeys", "Subject"]

_CA_DAYS = 3650
_LEAF_DAYS = 3650  # no process renews certificates of a local cluster
_RENEW_BEFORE = timedelta(days=30)
_NAME_LENGTH = 64  # X.520's upper bound for common names and organizations
_SKEW = timedelta(minutes=5)


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

    def save(self, directory: Path, name: str) -> None:
        """Write `name.crt` and `name.key`."""
        write_private(directory / f"{name}.key", self.private_key)
        write_private(directory / f"{name}.crt", self.certificate)

    @classmethod
    def load(cls, directory: Path, name: str) -> Identity:
        """Load a saved pair.

        :raises FileNotFoundError: no pair was saved there.
        """
        return cls(
            (directory / f"{name}.crt").read_bytes(), (directory / f"{name}.key").read_bytes()
        )


@dataclass(frozen=True, slots=True)
class ServiceAccountKeys:
    """Key pair with which an API server signs service account tokens."""

    public_key: bytes
    private_key: bytes = field(repr=False)

    @classmethod
    def ensure(cls, directory: Path, name: str = "sa") -> ServiceAccountKeys:
        """Load `name.key` and `name.pub`, or create them."""
        path = directory / f"{name}.key"
        key = _load_key(path.read_bytes(), str(path)) if path.exists() else _new_key()
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        keys = cls(public, _key_pem(key))
        write_private(path, keys.private_key)
        write_private(directory / f"{name}.pub", public)
        return keys


class Authority:
    """A certificate authority."""

    def __init__(self, identity: Identity, *, clock: Clock | None = None, source: str = "") -> None:
        self.identity = identity
        self._clock = clock or RealClock()
        self._key = _load_key(identity.private_key, source)
        self._certificate = x509.load_pem_x509_certificate(identity.certificate)

    @property
    def certificate(self) -> bytes:
        return self.identity.certificate

    @classmethod
    def create(cls, common_name: str, *, clock: Clock | None = None) -> Authority:
        """A new one, in memory."""
        clock = clock or RealClock()
        key = _new_key()
        builder = (
            _certificate(common_name, (), key, clock, days=_CA_DAYS)
            .issuer_name(_name(common_name, ()))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        certificate = builder.sign(key, hashes.SHA256())
        return cls(Identity(_pem(certificate), _key_pem(key)), clock=clock)

    @classmethod
    def ensure(
        cls, directory: Path, name: str, *, common_name: str = "", clock: Clock | None = None
    ) -> Authority:
        """The one in `name.crt` and `name.key`, made if there is none."""
        try:
            return cls.load(directory, name, clock=clock)
        except FileNotFoundError:
            authority = cls.create(common_name or name, clock=clock)
            authority.identity.save(directory, name)
            return authority

    @classmethod
    def load(cls, directory: Path, name: str, *, clock: Clock | None = None) -> Authority:
        """:raises FileNotFoundError: there is none."""
        source = str(directory / f"{name}.key")
        return cls(Identity.load(directory, name), clock=clock, source=source)

    def issue(self, subject: Subject, *, days: int = _LEAF_DAYS) -> Identity:
        """A certificate for `subject`, with a new key."""
        key = _new_key()
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
        return Identity(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))

    def ensure_issued(self, directory: Path, name: str, subject: Subject) -> Identity:
        """Load the saved certificate if it matches `subject`; else issue and save a new one."""
        try:
            identity = Identity.load(directory, name)
        except FileNotFoundError:
            identity = None
        if identity is None or not self._fits(identity, subject):
            identity = self.issue(subject)
            identity.save(directory, name)
        return identity

    def _fits(self, identity: Identity, subject: Subject) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(identity.certificate)
            key = _load_key(identity.private_key, subject.common_name)
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, LocalError):
            return False
        return (
            certificate.public_key() == key.public_key()
            and certificate.not_valid_after_utc - self._clock.now() > _RENEW_BEFORE
            and _subject_of(certificate) == subject
        )

    def _signer_identifier(self) -> x509.AuthorityKeyIdentifier:
        extension = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _load_key(pem: bytes, source: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ValueError as error:
        raise LocalError(f"could not read the private key in {source}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise LocalError(f"could not use the private key in {source}: it is not an EC key")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The traditional form, which every component of Kubernetes accepts.
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
            raise LocalError(
                f"could not create a certificate for {name!r}: a name must have 1 to {_NAME_LENGTH}"
                " characters"
            )
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


def _subject_of(certificate: x509.Certificate) -> Subject:
    """The inverse of `Authority.issue`."""
    name = certificate.subject
    extensions = certificate.extensions
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        sans = tuple(str(general.value) for general in names)
    except x509.ExtensionNotFound:
        sans = ()
    return Subject(
        _text(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0]),
        tuple(_text(group) for group in name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)),
        sans,
        client=ExtendedKeyUsageOID.CLIENT_AUTH in purposes,
        server=ExtendedKeyUsageOID.SERVER_AUTH in purposes,
    )


def _text(attribute: x509.NameAttribute[str | bytes]) -> str:
    return attribute.value if isinstance(attribute.value, str) else attribute.value.decode()
