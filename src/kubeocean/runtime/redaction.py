"""Secrets that cannot be printed by accident, and redaction of secrets in any text.

A `Secret` holds a token, a password or a private key. Every formatting (repr, str, f-string, log
renderer, traceback with locals) shows a short fingerprint; only `reveal()` returns the value.
Secrets are compared in constant time and cannot be pickled. The fingerprint is keyed with a random
number of the process: within one process equal secrets have equal fingerprints, and a log cannot be
used to test passwords.

`redact` converts any value into JSON data in which

- a value under a secret name (`token`, `client-key-data`, `dbPassword`) is a fingerprint,
- text that looks like a secret (JWT, bearer credential, private key, password in a URL,
  `"token": "…"` within a longer text) has that part replaced by a fingerprint,
- every other object (for example an exception) is its text, redacted the same way.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import AnyStr, Final, Generic, NoReturn, TypeAlias

__all__ = [
    "Plain",
    "Secret",
    "fingerprint",
    "is_secret_name",
    "redact",
    "redact_fields",
    "redact_text",
]

_KEY: Final = os.urandom(16)
_SHOWN_BYTES = 4


class Secret(Generic[AnyStr]):
    """A str or bytes that only `reveal()` returns; its repr is a fingerprint."""

    __slots__ = ("_value",)

    def __init__(self, value: AnyStr) -> None:
        self._value: AnyStr = value

    def reveal(self) -> AnyStr:
        """Return the secret value, which must not be kept, logged or formatted into an error."""
        return self._value

    def _bytes(self) -> bytes:
        if isinstance(self._value, bytes):
            return self._value
        return self._value.encode("utf-8", "surrogatepass")

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # No shortcut by type before the comparison: its time must depend on lengths alone.
        same = hmac.compare_digest(self._bytes(), other._bytes())
        return same and type(self._value) is type(other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        shown = hashlib.blake2b(self._bytes(), key=_KEY, digest_size=_SHOWN_BYTES).hexdigest()
        return f"Secret({shown})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    # A copy may be the same object, as for any immutable value; without these two
    # `dataclasses.asdict` would go through `__reduce__`.
    def __copy__(self) -> Secret[AnyStr]:
        return self

    def __deepcopy__(self, memo: object) -> Secret[AnyStr]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")


Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

_DEPTH = 8  # deeper than any document that is logged; also ends a cycle

# A name that ends in one of these means a secret, whatever its case and separators:
# `accessToken`, `X-Api-Key` and `client_secret` do; `token_file` and `secretName` do not.
_SECRET_ENDINGS: Final = (
    "token", "tokens", "bearer", "jwt", "password", "passwords", "passwd", "passphrase", "secret",
    "secrets", "authorization", "cookie", "cookies", "credential", "credentials", "apikey",
    "accesskey", "secretkey", "signingkey", "privatekey", "clientkey", "clientkeydata", "keydata",
)  # fmt: skip
_HASHED: Final = re.compile(r"Secret\([0-9a-f]{8}\)")
_NOT_ALNUM: Final = re.compile(r"[^a-z0-9]+")

_NAMES = (
    r"(?:token|passw(?:or)?d|passphrase|secret|authorization|cookie"
    r"|(?:api|access|secret|private|signing|client)[-_]?key(?:[-_]?data)?)"
)
_NEEDLES = ("token", "passw", "passphrase", "secret", "authorization", "cookie", "key")
# Opaque credentials are distinguished from prose ("bearer authentication") by digits or by length.
_OPAQUE = r"(?=[\w.~+/=-]*[0-9]|[\w.~+/=-]{24})[\w.~+/=-]{8,}"

# A text in lower case that each match contains, and the pattern: group `keep` is kept, group `hide`
# is hashed. Repeats that could run over the same text twice are bounded, so that no text takes
# long.
_RULES: Final = tuple(
    (frozenset(needles), re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.DOTALL))
    for needles, pattern in (
        # A private key in PEM, also one that was cut off.
        (
            ("private key-",),
            r"(?P<keep>)(?P<hide>-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
            r".*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z))",
        ),
        # base64 of a PEM block, as in a kubeconfig; a certificate is public and stays.
        (
            ("ls0tls1crudjti",),
            r"(?P<keep>)(?P<hide>LS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FUR)[A-Za-z0-9+/=]{8,})",
        ),
        # A JSON web token, signed or encrypted, also one that was cut off.
        (("eyj",), r"(?P<keep>)(?P<hide>\beyJ[\w-]{6,500}\.[\w-]{6}[\w.-]*)"),
        # An Authorization header, or the value of one.
        (("bearer", "basic"), rf"(?P<keep>\b(?:bearer|basic)\s+)(?P<hide>{_OPAQUE})"),
        (
            ("authorization",),
            rf"(?P<keep>\bauthorization\s*[:=]\s*(?:\w{{1,20}}\s+)?)(?P<hide>{_OPAQUE})",
        ),
        # user:password@host in a URL.
        (("://",), r"(?P<keep>://[^\s/:@]{0,200}:)(?P<hide>[^\s/@]+)(?=@)"),
        # "token": "…", token='…' (JSON, Python reprs), also with the quotes escaped.
        (
            _NEEDLES,
            rf"(?P<keep>{_NAMES}\\?[\"']?\s{{0,4}}[:=]\s{{0,4}}b?(?P<quote>\\?[\"']))"
            r"(?P<hide>(?:(?!(?P=quote))(?:\\.|.))+)",
        ),
        # ?token=… and --token=…
        (
            _NEEDLES,
            rf"(?P<keep>(?:[?&]|--)(?=[a-z])[\w.-]{{0,40}}{_NAMES}=)(?P<hide>[^\s&#\"']+)",
        ),
        # token: … on a line of YAML.
        (
            _NEEDLES,
            rf"(?P<keep>^[ \t]{{0,40}}(?:- )?[\w.-]{{0,40}}{_NAMES}:[ \t]{{1,8}})"
            r"(?P<hide>\S{8,})$",
        ),
    )
)
_ALL_NEEDLES: Final = tuple(sorted(frozenset().union(*(needles for needles, _ in _RULES))))
_SHORTEST = 8  # no pattern matches less
_LONGEST = 1 << 15  # enough of one text for a reader, and the patterns' time stays bounded


def fingerprint(secret: str) -> str:
    """Return the fingerprint that is printed in place of a secret."""
    return repr(Secret(secret))


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return _NOT_ALNUM.sub("", name.lower()).endswith(_SECRET_ENDINGS)


def redact_text(text: str) -> str:
    """Return the text with everything that looks like a secret replaced by a hash; cut at 32 Ki."""
    if len(text) < _SHORTEST:
        return text
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more)"
    low = text.lower()
    present = [needle for needle in _ALL_NEEDLES if needle in low]
    if not present:
        return text
    for needles, pattern in _RULES:
        if not needles.isdisjoint(present):
            text = pattern.sub(_hide, text)
    return text


def redact(value: object, *, name: str = "") -> Plain:
    """Return the value as plain JSON data without secrets; `name` is the name of its field."""
    return _plain(value, _is_secret_field(name), _DEPTH)


def redact_fields(fields: Mapping[str, object]) -> dict[str, Plain]:
    """Return the fields of a log line, each redacted by `redact`."""
    plain = _without_secrets(fields)
    if plain is not None:
        return plain
    return {name: redact(value, name=name) for name, value in fields.items()}


def _without_secrets(fields: Mapping[str, object]) -> dict[str, Plain] | None:
    """Return the fields unchanged if no name and no text among them can be that of a secret.

    Most lines have none: one search through all texts is cheaper than one in each of them.
    """
    plain: dict[str, Plain] = {}
    texts: list[str] = []
    for name, value in fields.items():
        if _is_secret_field(name):
            return None
        if type(value) is str:
            if len(value) >= _SHORTEST or not value.isascii():
                texts.append(value)
        elif value is not None and type(value) is not int and type(value) is not bool:
            return None
        plain[name] = value
    text = "\n".join(texts)
    if len(text) > _LONGEST or not text.isascii():
        return None
    low = text.lower()
    return None if any(needle in low for needle in _ALL_NEEDLES) else plain


_is_secret_field: Final = lru_cache(maxsize=1024)(is_secret_name)  # a program has few field names


def _hide(match: re.Match[str]) -> str:
    return match["keep"] + _hash_once(match["hide"])


def _hash_once(text: str) -> str:
    # A value that was replaced by its type or by an earlier pattern keeps its hash.
    return text if _HASHED.fullmatch(text) else fingerprint(text)


def _plain(value: object, secret: bool, depth: int) -> Plain:
    if value is None or isinstance(value, bool):
        return value
    if secret:
        shown = _text(value)
        return _hash_once(shown) if shown else ""
    if isinstance(value, str):
        return redact_text(_encodable(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    # Exactly a tuple: a named tuple has its own text ("namespace/name").
    if isinstance(value, Mapping | list | set | frozenset) or type(value) is tuple:
        return _container(value, depth)
    return redact_text(_text(value))


def _container(value: Mapping[object, object] | Iterable[object], depth: int) -> Plain:
    if depth == 0:
        return "…"
    if not isinstance(value, Mapping):
        return [_plain(item, False, depth - 1) for item in value]
    named = ((_text(key), item) for key, item in value.items())
    return {redact_text(n): _plain(item, is_secret_name(n), depth - 1) for n, item in named}


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    try:
        text = str(value)
    except Exception as error:  # a line must be logged, whatever its values are
        text = f"(its text cannot be computed: {type(error).__name__})"
    if isinstance(value, BaseException):
        text = f"{type(value).__name__}: {text}"
    return _encodable(text)


def _encodable(text: str) -> str:
    """Return the text without lone surrogates, which JSON and terminals refuse."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
