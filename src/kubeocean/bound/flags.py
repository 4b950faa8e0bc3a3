"""Forms of flags that every process of a binding has."""

from __future__ import annotations

from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.goflags import integer
from kubeocean.runtime.labels import check_subdomain

__all__ = ["any_port", "domain", "name", "port"]

_HIGHEST_PORT: Final = 65_535


def name(written: str, flag: str) -> str:
    """The name of an object, or none."""
    if written:
        try:
            check_subdomain(written)
        except ConfigError:
            said = "must be a lowercase DNS subdomain"
            raise ConfigError(said, source=flag, value=written) from None
    return written


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
