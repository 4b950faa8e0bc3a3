"""Heads: the first lines of an HTTP/1.1 request, read strictly.

A head decides who is let in and where bytes go, and is written by strangers. Whatever two parsers
could read in two ways is refused: folded lines, spaces before a colon, control characters, a second
Host or Content-Length, a length together with chunks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from kubeocean.errors import Refusal

__all__ = ["END", "LIMIT", "Head", "parse", "too_large"]

LIMIT: Final = 16 * 1024
END: Final = b"\r\n\r\n"

_LINE: Final = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/([0-9])\.([0-9])")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~\x80-\xff]|[ \t])*)")
_ONCE: Final = ("Host", "Content-Length", "Transfer-Encoding", "Upgrade", "Authorization")


@dataclass(frozen=True, slots=True)
class Head:
    """What somebody asks for."""

    method: str
    target: str  # path and query, as sent
    headers: CIMultiDict[str]

    @property
    def upgrade(self) -> str:
        """The protocol that the connection is to be switched to, in lower case; else nothing."""
        return (
            self.headers.get("Upgrade", "").strip().lower() if self._connection("upgrade") else ""
        )

    @property
    def closes(self) -> bool:
        """Whether the caller wants the connection to end with the answer."""
        return self._connection("close")

    @property
    def has_body(self) -> bool:
        """Whether bytes of the request itself may follow."""
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _connection(self, option: str) -> bool:
        options = ",".join(self.headers.getall("Connection", [])).lower().split(",")
        return any(each.strip() == option for each in options)


def parse(data: bytes) -> Head:
    """The head whose bytes these are, up to and with its empty line.

    :raises Refusal: it is none, or over the limit, or one that could be read in two ways.
    """
    if len(data) > LIMIT:
        raise too_large()
    if not data.endswith(END):
        raise Refusal(400, "the head of the request does not end")
    first, *lines = data[: -len(END)].decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise Refusal(400, "the request line is not HTTP/1.1")
    if (line[3], line[4]) != ("1", "1"):
        raise Refusal(505, "only HTTP/1.1 is spoken here")
    headers: CIMultiDict[str] = CIMultiDict()
    for text in lines:
        field = _FIELD.fullmatch(text)
        if field is None:
            raise Refusal(400, "a header is not a name, a colon and a value")
        headers.add(field[1], field[2].rstrip(" \t"))
    _check(headers)
    return Head(line[1], line[2], headers)


def too_large() -> Refusal:
    """What is said of a head over the limit."""
    return Refusal(431, f"the head of the request is over {LIMIT} bytes")


def _check(headers: CIMultiDict[str]) -> None:
    for name in _ONCE:
        if len(headers.getall(name, [])) > 1:
            raise Refusal(400, f"the header {name} is there twice")
    if "Host" not in headers:
        raise Refusal(400, "the header Host is missing")
    if "Content-Length" in headers and "Transfer-Encoding" in headers:
        raise Refusal(400, "the length of the request is given in two ways")
