"""Problems: what is wrong with something that a user wrote.

A problem names the field, shows what stands there and says what should. One that does not block is
something that earlier versions ran with: so do we, and say what we take it for.

Zones: the names that a time zone can have.

They are those of the IANA database that is installed with us, not of whatever the machine has: a
policy has to mean the same wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import check_subdomain

__all__ = [
    "Problem",
    "blocking",
    "describe",
    "empty",
    "misnamed",
    "unreadable_selector",
    "zone_names",
]

_SHOWN: Final = 200  # characters of a value


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of one field: its path, its value and the reason."""

    field: str
    value: object
    message: str
    blocks: bool = True

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}…"
        return f"{self.field}: {self.message} (got {shown})"


def blocking(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that make an object unusable."""
    return tuple(each for each in problems if each.blocks)


def describe(problems: Iterable[Problem]) -> str:
    """Return all problems in one line, for conditions and events."""
    return "; ".join(map(str, problems))


# Checks that several kinds share


def empty(field: str, text: str, what: str) -> Iterable[Problem]:
    """`what` has to be named there."""
    if not text:
        yield Problem(field, text, f"must name {what}")


def misnamed(field: str, text: str, what: str) -> Iterable[Problem]:
    """`what` is named there, by a name that it cannot have."""
    try:
        check_subdomain(text)
    except ConfigError:
        yield Problem(field, text, f"must name {what}, and so be a lowercase DNS name")


def unreadable_selector(field: str, selector: Json | None) -> Iterable[Problem]:
    """A selector that no API server would take; none at all is one that selects every node."""
    if selector is None:
        return
    try:
        NodeSelector.from_document(selector, field=field)
    except ConfigError as error:
        reason = str(error).removeprefix(f"{error.field}: ").removesuffix(f" (got {error.value!r})")
        yield Problem(error.field, error.value, reason)


_NO_PLACE = "Factory"  # the database's name for an unconfigured machine


@cache
def zone_names() -> frozenset[str]:
    """Return all names of time zones, including links such as `US/Pacific`."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return frozenset(listed.split()) - {_NO_PLACE}
