"""Forms of flags that all our processes have, and what has to hold between them."""

from __future__ import annotations

from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.goflags import integer
from kubeocean.runtime.labels import check_subdomain

__all__ = ["any_port", "check_timings", "domain", "name", "namespaces", "port"]

_HIGHEST_PORT: Final = 65_535
_SLACK: Final = 1.2  # an election's pauses are up to this times the retry period


def name(written: str, flag: str) -> str:
    """The name of an object, or none."""
    if written:
        try:
            check_subdomain(written)
        except ConfigError:
            said = "must be a lowercase DNS subdomain"
            raise ConfigError(said, source=flag, value=written) from None
    return written


def namespaces(written: str, flag: str) -> frozenset[str]:
    """Namespaces, with commas between them; `*` for all."""
    words = [each.strip() for each in written.split(",")]
    return frozenset(each if each == "*" else name(each, flag) for each in words if each)


def domain(written: str, flag: str) -> Domain:
    """The domain of labels; none means the default one."""
    return Domain(name(written, flag) or group.DEFAULT.name)


def port(written: str, flag: str) -> int:
    """A port that somebody else can be told of."""
    return _port(written, flag, lowest=1)


def any_port(written: str, flag: str) -> int:
    """A port to listen on; 0 has a meaning of its own there."""
    return _port(written, flag, lowest=0)


def _port(written: str, flag: str, *, lowest: int) -> int:
    number = integer(written, flag)
    if not lowest <= number <= _HIGHEST_PORT:
        raise ConfigError(f"must be a port, 1 to {_HIGHEST_PORT}", source=flag, value=written)
    return number


def check_timings(*, retry_s: float, renew_s: float, lease_s: float) -> None:
    """That an election with these timings has one leader at most, and one that can renew."""
    retry, renew = "--leader-election-retry-period", "--leader-election-renew-deadline"
    for flag, value, bound_s, said in (
        (retry, retry_s, 0.0, "0s"),
        (renew, renew_s, retry_s * _SLACK, f"{_SLACK:g} times {retry} ({retry_s:g}s)"),
        ("--leader-election-lease-duration", lease_s, renew_s, f"{renew} ({renew_s:g}s)"),
    ):
        if not value > bound_s:
            raise ConfigError(f"must be more than {said}", source=flag, value=f"{value:g}s")
