"""`scripts/go-program` builds only sources with the expected hash."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUM = "h1:S/2CqcYnNfLckkHLI0VgQbxgcDaU3N4A/46E3n9wSNY="
GO = """#!/bin/sh
case "$1" in
mod) printf '%s\\n' '{document}' ;;
build) printf '%s\\n' "$*" >{builds}; printf '%s\\n' "$GOFLAGS" >>{builds} ;;
esac
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return a PATH with a Go that has one module, as `go mod download -json` prints it."""
    known = {"Path": "example.com/m", "Version": "v1.0.0", "Dir": str(tmp_path), "Sum": SUM}
    go = tmp_path / "go"
    document = json.dumps(known | {"GoModSum": "h1:other="}, indent="\t")
    go.write_text(GO.format(document=document, builds=tmp_path / "builds"))
    go.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GOFLAGS": "-mod=mod"}


def build(expected: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = str(ROOT / "scripts" / "go-program")
    words = [program, "example.com/m", "v1.0.0", expected, "./cmd/m", "out"]
    return subprocess.run(words, env=environ, capture_output=True, text=True)


def test_a_module_with_the_expected_hash_is_built_with_its_own_go_sum(
    environ: dict[str, str], tmp_path: Path
) -> None:
    done = build(SUM, environ)
    assert done.returncode == 0, done.stderr
    command, flags = (tmp_path / "builds").read_text().splitlines()
    assert command == f"build -C {tmp_path} -o out ./cmd/m"
    assert "-mod=readonly" in flags


@pytest.mark.parametrize("expected", ["h1:another=", "", SUM[:-1]])
def test_a_module_with_another_hash_is_not_built(
    expected: str, environ: dict[str, str], tmp_path: Path
) -> None:
    done = build(expected, environ)
    assert done.returncode == 1
    assert f"has the hash {SUM}, expected {expected}: not built" in done.stderr
    assert not (tmp_path / "builds").exists()


def test_nothing_is_installed_from_a_module_without_its_hash() -> None:
    for file in (ROOT / "Makefile", *(ROOT / "scripts").iterdir()):
        content = file.read_text().replace("\\\n", " ")
        assert "go install" not in content, file
        for call in re.findall(r"scripts/go-program .*|/go-program\" .*", content):
            assert "$sum" in call or "h1:" in call or "MODULE" in call, call
