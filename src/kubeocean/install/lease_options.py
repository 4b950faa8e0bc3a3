"""Parses the options of `kubeocean join` that describe a ResourceLeasingPolicy.

`cpu=50%,memory=8Gi` are limits, `20:00-06:00` is a window, `Mon-Fri` and `Sat,Sun` are days. The
resulting policy has passed the same validation as in a syncer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from kubeocean.api.group import APP_PART_OF, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.policies import (
    DAYS,
    RESOURCE_LEASING_POLICIES,
    PolicySpec,
    ResourceLimit,
    TimeWindow,
    problems,
)
from kubeocean.api.validation import blocking
from kubeocean.errors import ConfigError
from kubeocean.install.object_parts import named
from kubeocean.runtime.objects import Json

__all__ = ["limits", "policy", "windows"]

_SPAN: Final = re.compile(r"(?P<start>[0-9:]+)-(?P<end>[0-9:]+)(?:[ @](?P<days>.+))?")
_OPTIONS: Final = {
    "spec.cluster": "NAME",
    "spec.gracefulReclaimPeriodSeconds": "--grace",
    "spec.timeZone": "--zone",
}
_SHORT: Final = {day[:3]: day for day in DAYS}


def limits(text: str, *, source: str = "--lease") -> tuple[ResourceLimit, ...]:
    """Parse limits such as `cpu=50%,memory=8Gi`; `all` and an empty text mean no limits.

    :raises ConfigError: an entry is neither `name=percent%` nor `name=quantity`.
    """
    if text.strip() in ("", "all"):
        return ()
    parsed: dict[str, ResourceLimit] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = (part.strip() for part in entry.partition("="))
        if not (name and equals and amount):
            message = "must be name=50% or name=8Gi, with commas"
            raise ConfigError(message, source=source, value=entry)
        if name in parsed:
            raise ConfigError(f"names {name} twice", source=source, value=text)
        parsed[name] = _limit(name, amount, source)
    return tuple(parsed.values())


def _limit(name: str, amount: str, source: str) -> ResourceLimit:
    if not amount.endswith("%"):
        limit = ResourceLimit(name, amount)
        for problem in blocking(problems(PolicySpec(name, resource_limits=(limit,)))):
            raise ConfigError(problem.message, source=source, field=name, value=amount)
        return limit
    percent = amount.removesuffix("%").strip()
    if not percent.isdecimal() or not 1 <= int(percent) <= 100:
        message = "must be from 1% to 100%"
        raise ConfigError(message, source=source, field=name, value=amount)
    return ResourceLimit(name, percent=int(percent))


def windows(text: Iterable[str], *, source: str = "--between") -> tuple[TimeWindow, ...]:
    """Parse windows such as `20:00-06:00` or `20:00-06:00 Mon-Fri`.

    :raises ConfigError: a text is not a valid window.
    """
    return tuple(_window(each.strip(), source) for each in text)


def _window(text: str, source: str) -> TimeWindow:
    match = _SPAN.fullmatch(text)
    if match is None:
        message = "must be HH:MM-HH:MM, and days after it if not every day"
        raise ConfigError(message, source=source, value=text)
    days = _days(match["days"], source) if match["days"] else None
    window = TimeWindow(match["start"], match["end"], days)
    for problem in blocking(problems(PolicySpec("any", time_windows=(window,)))):
        raise ConfigError(problem.message, source=source, value=text)
    if window.start == window.end:
        message = "begins when it ends, which would be one minute a day; all day is 00:00-23:59"
        raise ConfigError(message, source=source, value=text)
    return window


def _days(text: str, source: str) -> tuple[str, ...]:
    days: list[str] = []
    for part in text.replace(" ", ",").split(","):
        if part:
            first, dash, last = part.partition("-")
            start, end = _day(first, source), _day(last if dash else first, source)
            span = (end - start) % len(DAYS)
            days += [DAYS[(start + step) % len(DAYS)].capitalize() for step in range(span + 1)]
    return tuple(dict.fromkeys(days))


def _day(text: str, source: str) -> int:
    day = text.strip().lower()
    day = _SHORT.get(day, day)
    if day not in DAYS:
        message = "must be a day of the week such as Mon or Monday"
        raise ConfigError(message, source=source, value=text)
    return DAYS.index(day)


def policy(binding: str, spec: PolicySpec, *, domain: Domain) -> Json:
    """Return the ResourceLeasingPolicy of one binding, for its worker cluster.

    :raises ConfigError: the policy is invalid.
    """
    for problem in blocking(problems(spec)):
        option = _OPTIONS.get(problem.field, "")
        field = "" if option else problem.field
        raise ConfigError(problem.message, source=option, field=field, value=problem.value)
    ours = {APP_PART_OF: domain.product, domain.cluster_binding: label_value(binding)}
    resource = RESOURCE_LEASING_POLICIES
    return named(
        resource.kind,
        resource.api_version,
        binding,
        labels=ours,
        spec=msgspec.to_builtins(spec),
    )
