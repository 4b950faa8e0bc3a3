"""Versions of Kubernetes that clusters report, and the oldest that is tested. Pure."""

from __future__ import annotations

import re
from typing import Final

from kubeocean.runtime.objects import Json

__all__ = ["OLDEST", "release_of"]

OLDEST: Final = (1, 28)  # the oldest version that is tested
_DIGITS: Final = re.compile(r"[0-9]{1,9}")  # Python refuses to parse thousands of digits


def release_of(version: Json) -> tuple[str, bool]:
    """Return a server's version, and whether the version is older than `OLDEST` (False if unknown).

    `version` is the answer of the server's page `/version`.
    """
    numbers = [_DIGITS.match(str(version.get(part, ""))) for part in ("major", "minor")]
    release = tuple(int(match[0]) for match in numbers if match is not None)
    old = len(release) == len(OLDEST) and release < OLDEST
    return str(version.get("gitVersion", "")), old
