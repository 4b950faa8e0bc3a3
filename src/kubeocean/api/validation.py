"""Problems of objects that users wrote, and the names of time zones.

A problem has the path of the field, its value, and a message that describes the correction. A
problem that does not block was accepted by earlier versions: its message describes how the value is
interpreted.

Names of time zones are those of the IANA database that is installed with Kubeocean, not those of
the machine: a policy has to mean the same in every process.
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

_SHOWN: Final = 200  # characters of a value in a message


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
    """Return all problems as one line of text, for conditions and events."""
    return "; ".join(map(str, problems))


# Checks that several kinds share


def empty(field: str, text: str, what: str) -> Iterable[Problem]:
    """Return a problem if the text of a field, which has to name `what`, is empty."""
    if not text:
        yield Problem(field, text, f"must name {what}")


def misnamed(field: str, text: str, what: str) -> Iterable[Problem]:
    """Return a problem if the text of a field cannot be the name of an object of kind `what`."""
    try:
        check_subdomain(text)
    except ConfigError:
        yield Problem(field, text, f"must name {what}, and so be a lowercase DNS name")


def unreadable_selector(field: str, selector: Json | None) -> Iterable[Problem]:
    """Return the problem of an invalid node selector; None is valid and selects every node."""
    if selector is None:
        return
    try:
        NodeSelector.from_document(selector, field=field)
    except ConfigError as error:
        reason = str(error).removeprefix(f"{error.field}: ").removesuffix(f" (got {error.value!r})")
        yield Problem(error.field, error.value, reason)


_NO_PLACE = "Factory"  # the database's zone for an unconfigured machine


@cache
def zone_names() -> frozenset[str]:
    """Return all names of time zones, including links such as `US/Pacific`."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return frozenset(listed.split()) - {_NO_PLACE}
