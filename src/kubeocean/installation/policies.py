"""Policies: a lease as somebody writes it on a command line.

`cpu=50%,memory=8Gi` are limits, `20:00-06:00` is a window, `Mon-Fri` and `Sat,Sun` are days. What
comes out has been checked as a syncer would check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from kubeocean.api.group import APP_PART_OF, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.policy import (
    DAYS,
    RESOURCE_LEASING_POLICIES,
    PolicySpec,
    ResourceLimit,
    TimeWindow,
    problems,
)
from kubeocean.errors import ConfigError
from kubeocean.installation.parts import named
from kubeocean.runtime.objects import Json

__all__ = ["limits", "policy", "windows"]

_SPAN: Final = re.compile(r"(?P<start>[0-9:]+)-(?P<end>[0-9:]+)(?:[ @](?P<days>.+))?")
_OPTIONS: Final = {
    "spec.cluster": "NAME",
    "spec.gracefulReclaimPeriodSeconds": "--grace",
    "spec.timeZone": "--zone",
}
_SHORT: Final = {day[:3]: day for day in DAYS}


def limits(written: str, *, source: str = "--lease") -> tuple[ResourceLimit, ...]:
    """`cpu=50%,memory=8Gi` as limits; `all` and nothing are none.

    :raises ConfigError: an entry is neither `name=percent%` nor `name=quantity`.
    """
    if written.strip() in ("", "all"):
        return ()
    found: dict[str, ResourceLimit] = {}
    for entry in filter(None, (part.strip() for part in written.split(","))):
        name, equals, amount = (part.strip() for part in entry.partition("="))
        if not (name and equals and amount):
            said = "must be name=50% or name=8Gi, with commas"
            raise ConfigError(said, source=source, value=entry)
        if name in found:
            raise ConfigError(f"names {name} twice", source=source, value=written)
        found[name] = _limit(name, amount, source)
    return tuple(found.values())


def _limit(name: str, amount: str, source: str) -> ResourceLimit:
    if not amount.endswith("%"):
        limit = ResourceLimit(name, amount)
        for problem in problems(PolicySpec(name, resource_limits=(limit,))):
            raise ConfigError(problem.message, source=source, field=name, value=amount)
        return limit
    percent = amount.removesuffix("%").strip()
    if not percent.isdecimal() or not 1 <= int(percent) <= 100:
        said = "must be from 1% to 100%"
        raise ConfigError(said, source=source, field=name, value=amount)
    return ResourceLimit(name, percent=int(percent))


def windows(written: Iterable[str], *, source: str = "--between") -> tuple[TimeWindow, ...]:
    """`20:00-06:00`, or `20:00-06:00 Mon-Fri`, each a window.

    :raises ConfigError: one of them is not.
    """
    return tuple(_window(each.strip(), source) for each in written)


def _window(written: str, source: str) -> TimeWindow:
    found = _SPAN.fullmatch(written)
    if found is None:
        said = "must be HH:MM-HH:MM, and days after it if not every day"
        raise ConfigError(said, source=source, value=written)
    days = _days(found["days"], source) if found["days"] else None
    window = TimeWindow(found["start"], found["end"], days)
    for problem in problems(PolicySpec("any", time_windows=(window,))):
        raise ConfigError(problem.message, source=source, value=written)
    if window.start == window.end:
        said = "begins when it ends, which would be one minute a day; all day is 00:00-23:59"
        raise ConfigError(said, source=source, value=written)
    return window


def _days(written: str, source: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in written.replace(" ", ",").split(","):
        if part:
            first, dash, last = part.partition("-")
            start, end = _day(first, source), _day(last if dash else first, source)
            span = (end - start) % len(DAYS)
            found += [DAYS[(start + step) % len(DAYS)].capitalize() for step in range(span + 1)]
    return tuple(dict.fromkeys(found))


def _day(written: str, source: str) -> int:
    day = written.strip().lower()
    day = _SHORT.get(day, day)
    if day not in DAYS:
        said = "must be a day of the week such as Mon or Monday"
        raise ConfigError(said, source=source, value=written)
    return DAYS.index(day)


def policy(binding: str, spec: PolicySpec, *, domain: Domain) -> Json:
    """A policy for one binding, in the worker.

    :raises ConfigError: a syncer would not lend by it.
    """
    for problem in problems(spec):
        known = _OPTIONS.get(problem.field, "")
        field = "" if known else problem.field
        raise ConfigError(problem.message, source=known, field=field, value=problem.value)
    ours = {APP_PART_OF: domain.product, domain.cluster_binding: label_value(binding)}
    resource = RESOURCE_LEASING_POLICIES
    return named(
        resource.kind,
        resource.api_version,
        binding,
        labels=ours,
        spec=msgspec.to_builtins(spec),
    )
