"""PKI: the certificates of a cluster on this machine, kept in files.

A `LocalAuthority` signs; a `LocalIdentity` is a certificate and its key. Files of keys are readable
by their owner only. Files on disk are used again as long as they match and stay valid for a month.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeocean.errors import ConfigError
from kubeocean.local.files import write_private
from kubeocean.runtime import pki
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.pki import Subject

__all__ = ["LocalAuthority", "LocalIdentity", "ServiceAccountKeys", "Subject"]

_LEAF_DAYS = 3650  # no process renews certificates of a local cluster
_RENEW_BEFORE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class LocalIdentity(pki.Identity):
    """A certificate and its private key that can be kept in files."""

    def save(self, directory: Path, name: str) -> None:
        """Write the certificate to `name.crt` and its key to `name.key`."""
        write_private(directory / f"{name}.key", self.private_key)
        write_private(directory / f"{name}.crt", self.certificate)

    @classmethod
    def load(cls, directory: Path, name: str) -> LocalIdentity:
        """Load a certificate and its key that `save` has written.

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
        """Load the key pair `name.key` and `name.pub`, or create it."""
        path = directory / f"{name}.key"
        key = pki.load_key(path.read_bytes(), str(path)) if path.exists() else pki.new_key()
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        keys = cls(public, pki.key_pem(key))
        write_private(path, keys.private_key)
        write_private(directory / f"{name}.pub", public)
        return keys


class LocalAuthority(pki.Authority):
    """A certificate authority whose files are in a directory."""

    @classmethod
    def ensure(
        cls, directory: Path, name: str, *, common_name: str = "", clock: Clock | None = None
    ) -> Self:
        """Load the authority of `name.crt` and `name.key`, or create it."""
        try:
            return cls.load(directory, name, clock=clock)
        except FileNotFoundError:
            authority = cls.create(common_name or name, clock=clock)
            _saved(authority.identity, directory, name)
            return authority

    @classmethod
    def load(cls, directory: Path, name: str, *, clock: Clock | None = None) -> Self:
        """Load the authority of `name.crt` and `name.key`.

        :raises FileNotFoundError: one of the two files does not exist.
        """
        source = str(directory / f"{name}.key")
        return cls(LocalIdentity.load(directory, name), clock=clock, source=source)

    def issue(self, subject: Subject, *, days: int = _LEAF_DAYS) -> LocalIdentity:
        """Issue a certificate for `subject`, with a new key."""
        issued = self.sign(subject, days=days)
        return LocalIdentity(issued.certificate, issued.private_key)

    def ensure_issued(self, directory: Path, name: str, subject: Subject) -> LocalIdentity:
        """Load the saved certificate if it matches `subject`; else issue and save a new one."""
        try:
            identity = LocalIdentity.load(directory, name)
        except FileNotFoundError:
            identity = None
        if identity is None or not self._fits(identity, subject):
            identity = self.issue(subject)
            identity.save(directory, name)
        return identity

    def _fits(self, identity: LocalIdentity, subject: Subject) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(identity.certificate)
            key = pki.load_key(identity.private_key, subject.common_name)
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, ConfigError):
            return False
        return (
            certificate.public_key() == key.public_key()
            and certificate.not_valid_after_utc - self._clock.now() > _RENEW_BEFORE
            and _subject_of(certificate) == subject
        )


def _saved(identity: pki.Identity, directory: Path, name: str) -> None:
    LocalIdentity(identity.certificate, identity.private_key).save(directory, name)


def _subject_of(certificate: x509.Certificate) -> Subject:
    """Return the subject for which `LocalAuthority.issue` issued a certificate."""
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
