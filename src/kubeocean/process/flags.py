"""Parsers of command-line flags that the processes share, and checks between flags."""

from __future__ import annotations

from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import integer
from kubeocean.runtime.quantity import Quantity
from kubeocean.runtime.selectors import check_subdomain

__all__ = ["any_port", "check_timings", "domain", "memory", "name", "namespaces", "port"]

_HIGHEST_PORT: Final = 65_535
_JITTER: Final = 1.2  # an election waits up to this times the retry period


def name(written: str, flag: str) -> str:
    """Parse a flag with the name of an object, which may be empty."""
    if written:
        try:
            check_subdomain(written)
        except ConfigError:
            message = "must be a lowercase DNS subdomain"
            raise ConfigError(message, source=flag, value=written) from None
    return written


def namespaces(written: str, flag: str) -> frozenset[str]:
    """Parse a flag with namespaces, separated by commas; `*` for all."""
    words = [each.strip() for each in written.split(",")]
    return frozenset(each if each == "*" else name(each, flag) for each in words if each)


def domain(written: str, flag: str) -> Domain:
    """Parse a flag with the domain of labels; empty means the default domain."""
    return Domain(name(written, flag) or group.DEFAULT.name)


def port(written: str, flag: str) -> int:
    """Parse a flag with a port that clients connect to."""
    return _port(written, flag, lowest=1)


def any_port(written: str, flag: str) -> int:
    """Parse a flag with a port to listen on; each flag documents its meaning of 0."""
    return _port(written, flag, lowest=0)


def _port(written: str, flag: str, *, lowest: int) -> int:
    number = integer(written, flag)
    if not lowest <= number <= _HIGHEST_PORT:
        raise ConfigError(f"must be a port, 1 to {_HIGHEST_PORT}", source=flag, value=written)
    return number


def check_timings(*, retry_s: float, renew_s: float, lease_s: float) -> None:
    """Check that an election with these timings has at most one leader, which can renew its Lease.

    :raises ConfigError: a timing is too short for the others.
    """
    retry, renew = "--leader-election-retry-period", "--leader-election-renew-deadline"
    for flag, value, lower_s, lower in (
        (retry, retry_s, 0.0, "0s"),
        (renew, renew_s, retry_s * _JITTER, f"{_JITTER:g} times {retry} ({retry_s:g}s)"),
        ("--leader-election-lease-duration", lease_s, renew_s, f"{renew} ({renew_s:g}s)"),
    ):
        if not value > lower_s:
            raise ConfigError(f"must be more than {lower}", source=flag, value=f"{value:g}s")


def memory(written: str, flag: str) -> int | None:
    """Parse a positive amount of bytes, such as 256Mi; None if the flag is not given."""
    if not written:
        return None
    try:
        size = int(Quantity.parse(written).value())
    except ConfigError:
        size = 0
    if size <= 0:
        raise ConfigError("must be an amount of bytes such as 256Mi", source=flag, value=written)
    return size
