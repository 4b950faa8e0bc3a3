"""Secrets: values that cannot be printed by accident.

A `Secret` holds a token, a password or a private key. Whatever formats it – repr, str, an f-string,
a log renderer, a traceback that shows locals – gets a short fingerprint; only `reveal()` gives the
value. Two secrets are compared in constant time. A secret cannot be pickled.

The fingerprint tells «it changed» from «it is the same» within one process. It is keyed with a
number that the process draws for itself, so that a log cannot be used to try out passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import AnyStr, Final, Generic, NoReturn

__all__ = ["Secret"]

_KEY: Final = os.urandom(16)
_SHOWN_BYTES = 4


class Secret(Generic[AnyStr]):
    """A str or bytes that only `reveal()` gives away."""

    __slots__ = ("_value",)

    def __init__(self, value: AnyStr) -> None:
        self._value: AnyStr = value

    def reveal(self) -> AnyStr:
        """The value itself; the result must not be kept, logged or formatted into an error."""
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
        # No short cut by type before the comparison: its time must depend on lengths alone.
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
