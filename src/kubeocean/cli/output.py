"""Output: the options that commands share, and how results are printed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kubeocean.local.progress import Progress

__all__ = [
    "Format",
    "FormatOption",
    "NameOption",
    "named",
    "print_document",
    "print_json",
    "progress_for",
]

DEFAULT_NAME = "ocean"

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Which ocean, if there are several.")
]


class Format(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[
    Format, typer.Option("--output", "-o", help="Text for people, JSON or YAML for programs.")
]


def named(name: str) -> list[str]:
    """The words that name an ocean on a command line."""
    return [] if name == DEFAULT_NAME else ["--name", name]


def print_json(document: object) -> None:
    """A result for programs: whole, on stdout."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_document(document: object, output: Format) -> None:
    """A result for programs, as they asked for it."""
    if output is Format.JSON:
        print_json(document)
        return
    import msgspec
    import yaml

    plain = msgspec.to_builtins(document, str_keys=True)
    typer.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


def progress_for(quiet: bool = False) -> Progress:
    """Where to show what is being done."""
    from kubeocean.local.progress import Silence, progress_on

    return Silence() if quiet else progress_on()
