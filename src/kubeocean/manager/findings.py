"""Findings: what one look at a worker found.

Pure. A finding says whether the worker can be worked with and, if not, what stands in the way; the
first thing that does, for what comes after it could not be looked at. What a worker answers is read
as what a stranger says: one that answers nonsense must not end a manager that has others to see to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.runtime.objects import Json

__all__ = ["OLDEST", "Cause", "Finding", "release_in", "release_of"]

OLDEST: Final = (1, 28)  # older ones were never tried
_DIGITS: Final = re.compile(r"[0-9]{1,9}")  # Python refuses to read a number of thousands

_decode_json = msgspec.json.Decoder(Json).decode


class Cause(StrEnum):
    """What stands in the way."""

    KUBECONFIG = "Kubeconfig"  # there is no Secret, or it holds no kubeconfig that can be used
    CREDENTIAL = "Credential"  # the worker does not know us
    UNREACHABLE = "Unreachable"  # the worker does not answer
    ANOTHER = "Another"  # who answers is another cluster than the binding is for
    NAMESPACE = "Namespace"  # the mount namespace is not there
    RIGHTS = "Rights"  # we may not do there what has to be done


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One look.

    - `error`: what stands in the way, as a sentence; empty if `cause` is none.
    - `missing`: rights that are needed, and not granted; `without`: add-ons that are not.
    - `checked`: whether namespace and rights were looked at, with this credential.
    """

    cause: Cause | None = None
    error: str = ""
    server: str = ""
    version: str = ""
    old: bool = False
    checked: bool = False
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def answers(self) -> bool:
        """Whether the worker was reached, and knows us."""
        return self.cause in (None, Cause.NAMESPACE, Cause.RIGHTS)

    @property
    def fit(self) -> bool:
        """Whether a syncer could do its work there."""
        return self.cause is None and self.checked


def release_of(version: Json) -> tuple[str, bool]:
    """What a server says of its version, and whether it is older than what we know to work; one
    that says nothing is not."""
    numbers = [_DIGITS.match(str(version.get(part, ""))) for part in ("major", "minor")]
    found = tuple(int(each[0]) for each in numbers if each is not None)
    old = len(found) == len(OLDEST) and found < OLDEST
    return str(version.get("gitVersion", "")), old


def release_in(body: bytes) -> tuple[str, bool]:
    """The same of the bytes that it answered; whatever they are, this never raises."""
    try:
        return release_of(_decode_json(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", False  # it answers, and will not tell us
