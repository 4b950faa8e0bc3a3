"""Addresses: where a server listens, as controller-runtime's flags have it.

`:8080` is every interface, `host:port` and `[::1]:8080` one of them; port 0 is any free one. A bare
`0`, or nothing, switches the server off.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["BindAddress"]

_HIGHEST_PORT = 65535
_HOST: Final = re.compile(r"[A-Za-z0-9_.-]*")
_FORM = "must be :PORT, HOST:PORT or [IPV6]:PORT, or 0 for off"


@dataclass(frozen=True, slots=True)
class BindAddress:
    """A host (empty: every interface), a port, and the flag that said so, for messages."""

    host: str
    port: int
    flag: str = ""

    @classmethod
    def parse(cls, text: str, *, flag: str = "") -> BindAddress | None:
        """The address in `text`, None where it means off; ConfigError names flag and value."""
        if text.strip() in ("", "0"):
            return None
        host, colon, port = text.strip().rpartition(":")
        if not colon:
            raise ConfigError(f"{_FORM}: the port is missing", value=text, source=flag)
        return cls(_host(host, text, flag), _port(port, text, flag), flag)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _host(host: str, text: str, flag: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as error:
            raise ConfigError(f"not an IPv6 address: {error}", value=text, source=flag) from None
    if ":" in host:
        hint = "an IPv6 address goes in brackets, and there is no scheme"
        raise ConfigError(f"{_FORM}: {hint}", value=text, source=flag)
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{_FORM}: {host!r} is not a host", value=text, source=flag)
    return host


def _port(port: str, text: str, flag: str) -> int:
    if not (port.isascii() and port.isdigit()):
        raise ConfigError(f"{_FORM}: {port!r} is not a port number", value=text, source=flag)
    # Compared by length first: Python refuses to read a number of thousands of digits.
    if len(port.lstrip("0")) > len(str(_HIGHEST_PORT)) or int(port) > _HIGHEST_PORT:
        raise ConfigError(f"the port must be 0 to {_HIGHEST_PORT}", value=text, source=flag)
    return int(port)
