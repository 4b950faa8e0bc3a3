"""Tokens of Go templates: text, and actions between braces, with the white space trimmed away.

`{{- ` takes the white space before it away and ` -}}` that after it, line ends too; the dash and
its space belong together, because `{{-3}}` is a number. A comment is an action of its own and
leaves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["Action", "Text", "Token", "complain", "pieces"]

_SPACE: Final = " \t\r\n"
_OPEN: Final = "{{"
_CLOSE: Final = "}}"
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<variable>\$?\.[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | `(?P<raw>[^`]*)`
    | (?P<number>[+-]?[0-9]+(?![A-Za-z0-9_.]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[()|])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an action; `kind` is the name of what matched."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """What is written as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """What stood between braces, and the line that it began on."""

    tokens: tuple[Token, ...]
    line: int


def complain(message: str, *, source: str, line: int) -> ConfigError:
    """What is wrong, and where."""
    return ConfigError(message, source=f"{source}:{line}")


def pieces(text: str, *, source: str) -> Iterator[Text | Action]:
    """The template, piece by piece.

    :raises ConfigError: an action does not end, or holds what no template of ours has.
    """
    at, trim = 0, False
    while True:
        start = text.find(_OPEN, at)
        between = text[at:] if start < 0 else text[at:start]
        if trim:
            between = between.lstrip(_SPACE)
        inside = start + len(_OPEN)
        if trims_left := start >= 0 and _trims(text, inside):
            between = between.rstrip(_SPACE)
            inside += 2
        if between:
            yield Text(between)
        if start < 0:
            return
        line = text.count("\n", 0, start) + 1
        if text.startswith("/*", inside):
            at, trim = _comment(text, inside, source=source, line=line)
            continue
        # The white space of the marker may be all that is inside: `{{- -}}`.
        tokens, at, trim = _action(text, inside - trims_left, source=source, line=line)
        yield Action(tokens, line)


def _trims(text: str, at: int) -> bool:
    return text[at : at + 1] == "-" and text[at + 1 : at + 2] in tuple(_SPACE)


def _closes(text: str, at: int) -> tuple[int, bool] | None:
    """Where the text goes on after a closing at `at`, and whether that trims; None: no closing."""
    if text.startswith(_CLOSE, at):
        return at + len(_CLOSE), False
    if text[at : at + 1] in tuple(_SPACE) and text.startswith(f"-{_CLOSE}", at + 1):
        return at + 2 + len(_CLOSE), True
    return None


def _comment(text: str, at: int, *, source: str, line: int) -> tuple[int, bool]:
    end = text.find("*/", at + 2)
    if end < 0:
        raise complain("a comment does not end", source=source, line=line)
    closed = _closes(text, end + 2)
    if closed is None:
        raise complain("a comment must be all of its action", source=source, line=line)
    return closed


def _action(text: str, at: int, *, source: str, line: int) -> tuple[tuple[Token, ...], int, bool]:
    tokens: list[Token] = []
    while at < len(text):
        if (closed := _closes(text, at)) is not None:
            return tuple(tokens), *closed
        if (found := _TOKEN.match(text, at)) is None:
            raise complain(f"{text[at : at + 1]!r} makes no sense here", source=source, line=line)
        kind = found.lastgroup or ""
        if kind == "space" and (closed := _closes(text, found.end() - 1)) is not None:
            return tuple(tokens), *closed
        if kind != "space":
            if tokens and text[at - 1] not in (*_SPACE, "(", "|") and kind not in ("mark",):
                said = f"{found[0]!r} must stand apart from what is before it"
                raise complain(said, source=source, line=line)
            tokens.append(Token(kind, found[kind]))
        at = found.end()
    raise complain("an action does not end", source=source, line=line)
