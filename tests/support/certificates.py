"""Certificates and kubeconfig documents for tests, real ones."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

__all__ = ["Identity", "encoded", "identity", "issue", "kubeconfig", "write"]


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    issued: x509.Certificate
    secret: PrivateKey

    @property
    def certificate(self) -> bytes:
        return self.issued.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        return self.secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def traditional_key(self) -> bytes:
        form = PrivateFormat.TraditionalOpenSSL
        return self.secret.private_bytes(Encoding.PEM, form, NoEncryption())

    def locked_key(self, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
        return self.secret.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"pass"))


def issue(
    name: str,
    *,
    issuer: Identity | None = None,
    authority: bool = False,
    san: str = "",
    secret: PrivateKey | None = None,
) -> Identity:
    """Return a new identity, signed by `issuer` or by itself."""
    secret = secret or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.issued.subject if issuer else subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if san:
        alternative = x509.SubjectAlternativeName([x509.DNSName(san)])
        builder = builder.add_extension(alternative, critical=False)
    signer = issuer.secret if issuer else secret
    return Identity(builder.sign(signer, hashes.SHA256()), secret)


@cache
def identity(name: str = "someone") -> Identity:
    """Return a self-signed identity, the same one each time."""
    return issue(name, authority=True)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def kubeconfig(
    user: Mapping[str, object] | None = None,
    cluster: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return a kubeconfig with the current context `here`."""
    server = {"server": "https://api.example:6443"}
    here = {"cluster": "sea", "user": "admin"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": here | dict(context or {})}],
        "clusters": [{"name": "sea", "cluster": server | dict(cluster or {})}],
        "users": [{"name": "admin", "user": dict(user or {})}],
    }


def write(path: Path, document: object) -> Path:
    """Write the document as YAML; return the path."""
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    return path
