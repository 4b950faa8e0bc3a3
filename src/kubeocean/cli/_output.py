"""Output options that commands share, and how documents are printed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from kubeocean.local.progress import Progress

__all__ = [
    "DEFAULT_NAME",
    "FormatOption",
    "ManifestFormatOption",
    "NameOption",
    "OutputFormat",
    "ViewFormatOption",
    "named",
    "print_document",
    "print_json",
    "progress_for",
]

DEFAULT_NAME: Final = "ocean"

NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the group of local clusters (a computing cluster and its workers).",
    ),
]


class OutputFormat(StrEnum):
    """Values of `--output`; a command offers those that it supports."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        return self in (OutputFormat.JSON, OutputFormat.YAML)


def _option(help_: str, *formats: OutputFormat) -> Any:
    """Return the option `--output` of a command that offers these formats."""
    values = [each.value for each in formats]

    def parse(value: str) -> OutputFormat:
        if value not in values:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, values))}.")
        return OutputFormat(value)

    return typer.Option(
        "--output",
        "-o",
        parser=parse,
        metavar=f"[{'|'.join(values)}]",
        autocompletion=lambda: values,
        help=help_,
    )


FormatOption = Annotated[
    OutputFormat,
    _option(
        "Text for people, JSON or YAML for programs.",
        OutputFormat.TEXT,
        OutputFormat.JSON,
        OutputFormat.YAML,
    ),
]
ViewFormatOption = Annotated[
    OutputFormat,
    _option(
        "Text for people, wide for more columns, JSON or YAML for programs.",
        *OutputFormat,
    ),
]
ManifestFormatOption = Annotated[
    OutputFormat, _option("How --dry-run prints the objects.", OutputFormat.YAML, OutputFormat.JSON)
]


def named(name: str) -> list[str]:
    """Return the command-line arguments that select a group of local clusters by its name."""
    return [] if name == DEFAULT_NAME else ["--name", name]


def print_json(document: object) -> None:
    """Print a whole document as JSON on stdout."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_document(document: object, output: OutputFormat) -> None:
    """Print a whole document as JSON or YAML on stdout."""
    if output is OutputFormat.JSON:
        print_json(document)
        return
    import msgspec
    import yaml

    builtins = msgspec.to_builtins(document, str_keys=True)
    typer.echo(yaml.safe_dump(builtins, sort_keys=False, allow_unicode=True), nl=False)


def progress_for(quiet: bool = False) -> Progress:
    """Return the display for the progress of a command; a display without output if `quiet`."""
    from kubeocean.local.progress import Silence, progress_on

    return Silence() if quiet else progress_on()
