"""Access: everything needed to reach one API server, as a value.

Where it came from does not matter any more: an Access is complete, checked and immutable, two of
them are equal exactly if a connection made with one may be used with the other, and none of its
secrets shows when it is printed.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from kubeocean.runtime.secrets import Secret

__all__ = ["Access", "Impersonation", "split_url", "token_problem"]

_HEADER_KEY = re.compile(rb"[A-Za-z0-9!#$&'*+.^_`|~-]")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Whom the API server is asked to take us for."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def headers(self) -> list[tuple[str, str]]:
        """The request headers that ask for it; a name may come several times."""
        found = [("Impersonate-User", self.user)]
        if self.uid:
            found.append(("Impersonate-Uid", self.uid))
        found += [("Impersonate-Group", group) for group in self.groups]
        for key, values in self.extra:
            found += [(f"Impersonate-Extra-{_escaped(key)}", value) for value in values]
        return found


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """How to reach an API server and as whom.

    `server` is an http or https URL without a trailing slash; it may have a path. `ca`,
    `certificate` and `private_key` are PEM. `proxy_url` may hold a password. `origin` says where
    all this was found, for people.
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
        """The headers that say who asks; the result holds secrets."""
        found: list[tuple[str, str]] = []
        if self.token is not None:
            found.append(("Authorization", f"Bearer {self.token.reveal()}"))
        elif self.username is not None:
            password = self.password.reveal() if self.password is not None else ""
            pair = base64.b64encode(f"{self.username}:{password}".encode()).decode()
            found.append(("Authorization", f"Basic {pair}"))
        if self.impersonate is not None:
            found += self.impersonate.headers()
        return found

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
    """The parts of an absolute URL that a connection can be made to, or None."""
    if any(char <= " " or char == "\x7f" for char in url):
        return None  # urlsplit would drop some of them silently
    try:
        parts = urlsplit(url)
        # Reading the port checks it; zero cannot be connected to.
        usable = bool(parts.scheme and parts.hostname) and parts.port != 0
        return parts if usable and _is_host(parts.netloc.rpartition("@")[2]) else None
    except ValueError:
        return None


def token_problem(token: str) -> str:
    """What is wrong with a bearer token; never shows it."""
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
    """Percent-encoded as client-go does it: whatever cannot be in a header name, and `%`."""
    return "".join(
        chr(byte) if _HEADER_KEY.match(bytes([byte])) else f"%{byte:02X}" for byte in key.encode()
    )


def _fingerprint(pem: bytes | None) -> str:
    return hashlib.sha256(pem).hexdigest()[:8] if pem else ""


def _without_userinfo(url: str | None) -> str:
    scheme, slashes, rest = (url or "").partition("//")
    userinfo, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{'…' if userinfo else ''}{at}{host}"
