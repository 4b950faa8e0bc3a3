"""Zones: the names that a time zone can have.

They are those of the IANA database that is installed with us, not of whatever the machine has: a
policy has to mean the same wherever it is read.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["zone_names"]

_NO_PLACE = "Factory"  # what the database gives a computer that nobody has set up


@cache
def zone_names() -> frozenset[str]:
    """All names, links such as `US/Pacific` among them."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return frozenset(listed.split()) - {_NO_PLACE}
