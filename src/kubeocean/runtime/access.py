"""Access: server, trust and credentials for one API server, as an immutable value.

An Access is complete and validated. Two Access values are equal exactly if a connection made with
one may be used with the other. The secrets of an Access are not printed.

`ssl_context` uses TLS 1.2 or newer and HTTP/1.1 only, with the trust of Go's clients: every
certificate in the bundle is a root, including intermediates, and a server is identified by its
subject alternative names only. Without a bundle the machine's roots are trusted. The caller passes
the server name to verify (`tls_server_name`).

The PEM checks load certificates and keys with OpenSSL, which will use them. A check returns a
sentence without any of the material, or an empty text. OpenSSL reads private keys only from files:
`as_file` uses an anonymous file where the kernel has them, else a file of mode 0600 that is deleted
immediately after use.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from kubeocean.errors import ConfigError
from kubeocean.runtime.files import scratch_file
from kubeocean.runtime.redaction import Secret

__all__ = [
    "Access",
    "Impersonation",
    "as_file",
    "certificates_problem",
    "key_problem",
    "load_pair",
    "split_url",
    "ssl_context",
    "token_problem",
    "trust",
]

_HEADER_KEY = re.compile(rb"[A-Za-z0-9!#$&'*+.^_`|~-]")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Impersonation:
    """User, groups and extras that the API server is asked to impersonate."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that request this impersonation; a name may occur several times."""
        headers = [("Impersonate-User", self.user)]
        if self.uid:
            headers.append(("Impersonate-Uid", self.uid))
        headers += [("Impersonate-Group", group) for group in self.groups]
        for key, values in self.extra:
            headers += [(f"Impersonate-Extra-{_escaped(key)}", value) for value in values]
        return headers


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """Server, trust and credentials for one API server.

    `server` is an http or https URL without a trailing slash; a path is allowed. `ca`,
    `certificate` and `private_key` are PEM. `proxy_url` may hold a password. `origin` names the
    source of the access, such as a file, for people.
    """

    server: str
    ca: bytes | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    certificate: bytes | None = None
    private_key: Secret[bytes] | None = None
    token: Secret[str] | None = None
    username: str | None = None
    password: Secret[str] | None = None
    impersonate: Impersonation | None = None
    namespace: str = "default"
    origin: str = ""

    def headers(self) -> list[tuple[str, str]]:
        """Return the authentication and impersonation headers; they contain secrets."""
        headers: list[tuple[str, str]] = []
        if self.token is not None:
            headers.append(("Authorization", f"Bearer {self.token.reveal()}"))
        elif self.username is not None:
            password = self.password.reveal() if self.password is not None else ""
            pair = base64.b64encode(f"{self.username}:{password}".encode()).decode()
            headers.append(("Authorization", f"Basic {pair}"))
        if self.impersonate is not None:
            headers += self.impersonate.headers()
        return headers

    def __repr__(self) -> str:
        shown = {
            "ca": _fingerprint(self.ca),
            "insecure": self.insecure,
            "tls_server_name": self.tls_server_name,
            "proxy_url": _without_userinfo(self.proxy_url),
            "certificate": _fingerprint(self.certificate),
            "private_key": self.private_key,
            "token": self.token,
            "username": self.username,
            "password": self.password,
            "impersonate": self.impersonate,
        }
        parts = [f"{name}={value!r}" for name, value in shown.items() if value]
        ends = [f"namespace={self.namespace!r}", f"origin={self.origin!r}"]
        return f"Access({', '.join([repr(self.server), *parts, *ends])})"


def split_url(url: str) -> SplitResult | None:
    """Return the parts of an absolute URL that a connection can be made to, or None."""
    if any(char <= " " or char == "\x7f" for char in url):
        return None  # urlsplit would drop some of these characters silently
    try:
        parts = urlsplit(url)
        # Reading the attribute checks the port; port zero cannot be connected to.
        usable = bool(parts.scheme and parts.hostname) and parts.port != 0
        return parts if usable and _is_host(parts.netloc.rpartition("@")[2]) else None
    except ValueError:
        return None


def token_problem(token: str) -> str:
    """Return the problem of a bearer token, or an empty text; the result never contains the
    token."""
    if not token:
        return "is empty"
    if not _TOKEN.fullmatch(token):
        return "has characters that an HTTP header cannot carry"
    return ""


def _is_host(netloc: str) -> bool:
    """Whether `host`, `host:port`, `[ipv6]` or `[ipv6]:port` names a host. Raises ValueError."""
    if netloc.startswith("["):
        address, _, rest = netloc[1:].partition("]")
        return ipaddress.IPv6Address(address) is not None and rest[:1] in ("", ":")
    host = netloc.partition(":")[0]
    return _HOST.fullmatch(host.encode("idna").decode("ascii")) is not None


def _escaped(key: str) -> str:
    """Percent-encode the characters of `key` that no header name has, and `%`, as client-go
    does."""
    return "".join(
        chr(byte) if _HEADER_KEY.match(bytes([byte])) else f"%{byte:02X}" for byte in key.encode()
    )


def _fingerprint(pem: bytes | None) -> str:
    return hashlib.sha256(pem).hexdigest()[:8] if pem else ""


def _without_userinfo(url: str | None) -> str:
    scheme, slashes, rest = (url or "").partition("//")
    userinfo, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{'…' if userinfo else ''}{at}{host}"


# The key has another value; the key has another type than the certificate, in newer and older
# versions of OpenSSL.
_MISMATCH = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_ENCRYPTED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")


def trust(context: ssl.SSLContext, certificates: bytes) -> None:
    """Add these PEM certificates to the roots of `context`. Raises ssl.SSLError."""
    # OpenSSL takes bytes for DER; characters beyond ASCII can only be in text between PEM blocks.
    text = certificates.decode("ascii", "ignore")
    if not text:
        raise ssl.SSLError("the file contains no certificate")
    context.load_verify_locations(cadata=text)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: Secret[bytes]) -> None:
    """Load a certificate and its key into `context`. Raises ssl.SSLError, also for an encrypted
    key."""
    with as_file(certificate + b"\n" + key.reveal()) as path:
        # Without a password OpenSSL would prompt on the terminal.
        context.load_cert_chain(path, password="")


def certificates_problem(certificates: bytes) -> str:
    """Return the problem of a bundle of PEM certificates, or an empty text if there is none."""
    try:
        trust(_scratch(), certificates)
    except ssl.SSLError:
        return "is not a PEM certificate"
    return ""


def key_problem(certificate: bytes, key: Secret[bytes]) -> str:
    """Return the problem of a private key for a valid certificate, or an empty text if there is
    none."""
    if any(mark in key.reveal() for mark in _ENCRYPTED):
        return "is encrypted, and its password is unknown; use an unencrypted key"
    try:
        load_pair(_scratch(), certificate, key)
    except ssl.SSLError as error:
        if error.reason in _MISMATCH:
            return "does not match the client certificate"
        if error.library == "SSL" and error.reason:
            return f"cannot be used with the client certificate ({error.reason})"
        return "is not a PEM private key"
    return ""


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Yield a path from which only this process can read `content` within the block."""
    if hasattr(os, "memfd_create"):
        with scratch_file() as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:  # created with mode 0600
        file.write(content)
        yield file.name


def _scratch() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def ssl_context(access: Access) -> ssl.SSLContext | None:
    """Return a new TLS context for an Access; None for plain HTTP. Raises ConfigError on invalid
    certificates or keys."""
    if not access.server.startswith("https:"):
        return None
    # Not create_default_context: in newer Pythons that requires extensions that many cluster
    # certificates lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    try:
        _verify(context, access)
        if access.certificate is not None and access.private_key is not None:
            load_pair(context, access.certificate, access.private_key)
    except ssl.SSLError as error:
        reason = error.reason or "not PEM"
        raise ConfigError(
            f"the certificates or the key cannot be used: {reason}", source=access.origin
        ) from None
    return context


def _verify(context: ssl.SSLContext, access: Access) -> None:
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.ca is not None:
        trust(context, access.ca)
    else:
        context.load_default_certs()
