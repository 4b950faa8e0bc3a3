"""The page of safety names options that exist: of commands, bindings, policies and templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from kubeocean.api.crds import definitions
from kubeocean.cli.commands import app
from kubeocean.install.templates import proxier_files, syncer_files
from kubeocean.install.values import Values
from kubeocean.manager.settings import ManagerSettings
from kubeocean.proxier.settings import ProxierSettings
from kubeocean.runtime.flags import usage
from kubeocean.runtime.objects import Json
from kubeocean.syncer.settings import SyncerSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "safety.md").read_text(encoding="utf-8")
PROGRAMS = {"manager": ManagerSettings, "syncer": SyncerSettings, "proxier": ProxierSettings}


def rows() -> list[str]:
    """Return the last cells of the rows that have an option."""
    table = PAGE.split("\n## ")[1]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [line.strip("|").split("|")[-1].strip() for line in lines[2:]]


def options() -> list[str]:
    return sorted({option for row in rows() for option in re.findall(r"`([^`]+)`", row)})


def has_field(kind: str, path: str, value: str) -> bool:
    """Whether the definition of a kind has this field, and allows the value if one is given."""
    (definition,) = (each for each in definitions() if each["spec"]["names"]["kind"] == kind)
    schema: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path.split("."):
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
    return not value or value in schema.get("enum", ())


def has_flag(command: str, flag: str) -> bool:
    """Whether a command or program has this flag."""
    if command in PROGRAMS:
        text = usage(PROGRAMS[command], program=command, about="")
        return re.search(rf"^\s*{flag}\b", text, re.MULTILINE) is not None
    commands = get_command(app).commands  # type: ignore[attr-defined]
    parameters = commands[command].params
    return flag in {name for each in parameters for name in (*each.opts, *each.secondary_opts)}


def exists(option: str) -> bool:
    if match := re.fullmatch(r"(\w+): (spec[\w.]+)(?:: (\w+))?", option):
        kind, path, value = match.groups()
        return has_field(kind, path, value or "")
    if match := re.fullmatch(r"(\w+) (--[\w-]+)(?:[ =]\w+)?", option):
        return has_flag(*match.groups())
    return all(option in files(Values()) for files in (syncer_files, proxier_files))


@pytest.mark.parametrize("option", options())
def test_an_option_of_the_page_exists(option: str) -> None:
    assert exists(option)


def test_every_row_has_an_option() -> None:
    assert len(rows()) >= 20
    assert [row for row in rows() if "`" not in row] == []


@pytest.mark.parametrize(
    "option",
    [
        "join --no-such-option",
        "syncer --no-such-option",
        "ClusterBinding: spec.noSuchField",
        "ClusterBinding: spec.workerTrust: Half",
        "noSuchFile",
    ],
)
def test_an_option_that_does_not_exist_is_found(option: str) -> None:
    assert not exists(option)


def test_options_that_the_trust_model_names_are_on_the_page() -> None:
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"These options loosen a limit,.*?\.\n", security, re.DOTALL)
    named = set(re.findall(r"--[a-z][\w-]+", sentence))
    assert len(named) >= 7
    assert named <= set(re.findall(r"--[a-z][\w-]+", PAGE))
