"""Command-line flags in the format of Go programs, declared as fields of a dataclass.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        leader_elect: bool = flag("leader-elect", boolean, "true", "Work only while leading.")

`parse` accepts `--name=value`, `--name value`, and both with one dash. A boolean takes a value only
after `=` and is true without one. The last of several occurrences wins. An invalid flag or value
raises a ConfigError that names both; `usage` lists all flags with their defaults. Durations and
booleans are those of Go: `15s`, `1m30s`; `t`, `FALSE`.

A `BindAddress` is written as in controller-runtime: `:8080` binds every interface, `host:port` and
`[::1]:8080` one of them, port 0 any free port; `0` or an empty text disables the server.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from textwrap import wrap
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from kubeocean.errors import ConfigError

__all__ = [
    "BindAddress",
    "Reader",
    "address",
    "boolean",
    "duration",
    "flag",
    "integer",
    "number",
    "one_of",
    "optional_boolean",
    "parse",
    "text",
    "usage",
]

_HIGHEST_PORT = 65535
_HOST: Final = re.compile(r"[A-Za-z0-9_.-]*")
_FORM = "must be :PORT, HOST:PORT or [IPV6]:PORT, or 0 for off"


@dataclass(frozen=True, slots=True)
class BindAddress:
    """Address to listen on: host (empty: every interface), port, and the name of the flag, for
    messages."""

    host: str
    port: int
    flag: str = ""

    @classmethod
    def parse(cls, text: str, *, flag: str = "") -> BindAddress | None:
        """Return the address in `text`, None if the text disables the server; ConfigError names
        flag and value."""
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
        hint = "write an IPv6 address in brackets, and leave out the scheme"
        raise ConfigError(f"{_FORM}: {hint}", value=text, source=flag)
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{_FORM}: {host!r} is not a host", value=text, source=flag)
    return host


def _port(port: str, text: str, flag: str) -> int:
    if not (port.isascii() and port.isdigit()):
        raise ConfigError(f"{_FORM}: {port!r} is not a port number", value=text, source=flag)
    # Compared by length first: Python refuses to parse a number of thousands of digits.
    if len(port.lstrip("0")) > len(str(_HIGHEST_PORT)) or int(port) > _HIGHEST_PORT:
        raise ConfigError(f"the port must be 0 to {_HIGHEST_PORT}", value=text, source=flag)
    return int(port)


T = TypeVar("T")
Reader: TypeAlias = Callable[[str, str], T]  # the value as written, the flag for messages


class _FlagSettings(Protocol):
    """Dataclass whose fields are all flags."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


S = TypeVar("S", bound=_FlagSettings)

_KEY: Final = "flag"
_HELP: Final = ("h", "help")
_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(
    r"[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,2})?", re.IGNORECASE
)
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # the micro sign
    "μs": Fraction(1, 10**6),  # the Greek letter
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_LONGEST: Final = 40  # characters of the longest sensible number or duration
_WIDTH: Final = 100
_INDENT: Final = "      "


@dataclass(frozen=True, slots=True)
class _Flag:
    """Name, parser, default and help of one flag."""

    name: str
    read: Reader[object]
    default: str
    meaning: str
    required: bool

    @property
    def switch(self) -> bool:
        return self.read in (boolean, optional_boolean)


def flag(name: str, read: Reader[T], default: str, meaning: str, *, required: bool = False) -> T:
    """Return a dataclass field for a flag; `default` is written as a user would write the value."""
    declared = _Flag(name, read, default, meaning, required)
    return field(default=read(default, f"--{name}"), metadata={_KEY: declared})


# Parsers of values


def text(written: str, flag: str) -> str:
    """Return the value of a flag that takes any text."""
    return written


def boolean(written: str, flag: str) -> bool:
    """Parse the value of a boolean flag, as Go's strconv.ParseBool does."""
    if written not in (*_TRUE, *_FALSE):
        raise ConfigError("must be true or false", source=flag, value=written)
    return written in _TRUE


def optional_boolean(written: str, flag: str) -> bool | None:
    """Parse the value of a boolean flag; None if the flag is not given."""
    return boolean(written, flag) if written else None


def integer(written: str, flag: str) -> int:
    """Parse the value of a flag that takes a whole number."""
    if not _INTEGER.fullmatch(written):
        raise ConfigError("must be a whole number", source=flag, value=written)
    return int(written)


def number(written: str, flag: str) -> float:
    """Parse the value of a flag that takes a number, whole or not."""
    if len(written) > _LONGEST or not _NUMBER.fullmatch(written):
        raise ConfigError("must be a number", source=flag, value=written)
    return float(written)


def duration(written: str, flag: str) -> float:
    """Parse a duration as Go's time.ParseDuration does, and return its seconds."""
    sign, digits = (-1, written[1:]) if written.startswith("-") else (1, written.removeprefix("+"))
    if digits == "0":
        return 0.0
    parts = list(_DURATION.finditer(digits))
    whole = "".join(part.group() for part in parts) == digits
    if not parts or not whole or len(written) > _LONGEST:
        raise ConfigError(
            "must be a duration such as 15s, 1m30s or 500ms", source=flag, value=written
        )
    return float(sign * sum(Fraction(part[1]) * _SECONDS[part[2]] for part in parts))


def address(written: str, flag: str) -> BindAddress | None:
    """Parse a bind address; `0` disables the server and yields None."""
    return BindAddress.parse(written, flag=flag)


def one_of(*choices: str) -> Reader[str]:
    """Return the parser of a flag that takes one of `choices`."""

    def read(written: str, flag: str) -> str:
        if written not in choices:
            known = ", ".join(choice or '""' for choice in choices)
            raise ConfigError(f"must be one of {known}", source=flag, value=written)
        return written

    return read


# Parsing of a command line


def parse(settings: type[S], words: Sequence[str]) -> S | None:
    """Parse a command line into settings; None if the command line asks for help.

    :raises ConfigError: a flag or value is invalid, or a required flag is missing.
    """
    declared = _flags(settings)
    by_name = {each.name: attribute for attribute, each in declared.items()}
    given: dict[str, object] = {}
    rest = list(words)
    while rest:
        name, equals, value = _split(rest.pop(0))
        if name in _HELP and name not in by_name:
            return None
        if name not in by_name:
            raise ConfigError(f"there is no such flag{_hint(name, by_name)}", source=f"--{name}")
        known = declared[by_name[name]]
        if not equals and known.switch:
            value = "true"
            _refuse_loose_boolean(known, rest)
        elif not equals:
            if not rest:
                raise ConfigError("needs a value", source=f"--{name}")
            value = rest.pop(0)
        given[by_name[name]] = known.read(value, f"--{name}")
    for attribute, each in declared.items():
        if each.required and not given.get(attribute):
            raise ConfigError("is required", source=f"--{each.name}")
    return settings(**given)


def _flags(settings: type[_FlagSettings]) -> dict[str, _Flag]:
    """Return the flags of a settings class, by the name of their field."""
    fields = dataclasses.fields(settings)
    return {each.name: each.metadata[_KEY] for each in fields if _KEY in each.metadata}


def _split(word: str) -> tuple[str, str, str]:
    """Return the name of the flag in `word`, "=" if it has a value, and the value."""
    bare = word.removeprefix("-").removeprefix("-")
    if bare == word or not bare or bare[0] in "-=":
        raise ConfigError(
            "is not a flag; this command accepts only flags, such as --name=value", value=word
        )
    return bare.partition("=")


def _refuse_loose_boolean(known: _Flag, rest: Sequence[str]) -> None:
    # Go would take this word for the first argument, and ignore all flags after it.
    if rest and rest[0] in (*_TRUE, *_FALSE):
        hint = f"write --{known.name}={rest[0]}"
        raise ConfigError(
            f"takes its value after an equals sign: {hint}", source=f"--{known.name}", value=rest[0]
        )


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean --{close[0]}?" if close else "; --help lists them all"


# Help


def usage(settings: type[_FlagSettings], *, program: str, about: str) -> str:
    """Return the help text: the program's purpose and all flags by name."""
    lines = [f"Usage: {program} [flags]", "", *wrap(about, _WIDTH), "", "Flags:"]
    for each in sorted(_flags(settings).values(), key=lambda each: each.name):
        if each.required:
            default = "required"
        elif each.default:
            default = f"default {each.default}"
        else:
            default = 'default ""'
        lines.append(f"  --{each.name} ({default})")
        lines += wrap(each.meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)
