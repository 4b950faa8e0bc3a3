"""Tests of the output option and of printed documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from kubeocean.cli._output import (
    FormatOption,
    ManifestFormatOption,
    OutputFormat,
    ViewFormatOption,
    print_document,
)
from kubeocean.cli._views import print_page
from kubeocean.local.state import ClusterState


@pytest.mark.parametrize(
    ("output", "read"), [(OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)]
)
def test_json_and_yaml_hold_the_same_document(
    output: OutputFormat, read: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"name": "ä:\n- b", "none": None, "many": [1, 2.5, True]}
    print_document(plain | {"cluster": ClusterState("worker-1", "https://a", 3)}, output)
    cluster = {"context": "worker-1", "server": "https://a", "nodes": 3}
    assert read(capsys.readouterr().out) == plain | {"cluster": cluster}


@pytest.mark.parametrize(
    ("option", "formats"),
    [
        (FormatOption, ["text", "json", "yaml"]),
        (ViewFormatOption, ["text", "wide", "json", "yaml"]),
        (ManifestFormatOption, ["yaml", "json"]),
    ],
)
def test_a_command_takes_only_the_formats_that_it_offers(option: Any, formats: list[str]) -> None:
    app = typer.Typer()

    def command(output: Any = OutputFormat.YAML) -> None:
        assert isinstance(output, OutputFormat)
        typer.echo(output.value)

    command.__annotations__["output"] = option
    app.command()(command)
    assert CliRunner().invoke(app, []).output == "yaml\n"
    for name in OutputFormat:
        result = CliRunner().invoke(app, ["-o", name])
        assert (result.exit_code, result.output == f"{name}\n") == (
            (0, True) if name in formats else (2, False)
        )


def test_a_page_has_no_control_characters_and_no_very_long_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_page(["short", "\x1b[2J" + "x" * 1_048_576])
    short, long = capsys.readouterr().out.splitlines()
    assert short == "short"
    assert long.startswith(" [2Jx")
    assert len(long) == 4000
