"""The image is built from the packages of the lock and from no others, and runs without root."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[3]

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
LOCK = ROOT / "requirements.lock"


def instructions(path: Path) -> list[str]:
    """The instructions of a Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


def pip_commands() -> list[list[str]]:
    """The words of each pip command of the build, from its subcommand on."""
    runs = [line.removeprefix("RUN ") for line in instructions(DOCKERFILE) if line[:4] == "RUN "]
    commands = [shlex.split(part) for run in runs for part in run.split("&&")]
    return [words[1:] for words in commands if words[0].rpartition("/")[2] == "pip"]


def test_packages_are_downloaded_by_the_hashes_of_the_lock() -> None:
    downloads = [words for words in pip_commands() if words[0] == "download"]
    assert len(downloads) == 1
    for words in downloads:
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(words)
        assert words[words.index("--only-binary") + 1] == ":all:"
        assert words[words.index("-r") + 1] == LOCK.name


def test_every_other_command_of_the_build_has_no_index() -> None:
    others = [words for words in pip_commands() if words[0] != "download"]
    assert {words[0] for words in others} == {"install", "wheel"}
    for words in others:
        assert "--no-index" in words, words
        if words[0] == "wheel":  # else pip would download the newest build tool
            assert "--no-build-isolation" in words, words


def test_no_other_program_downloads_anything() -> None:
    text = "\n".join(instructions(DOCKERFILE))
    assert not re.search(r"\b(curl|wget|apt-get|apk|git|ADD)\b", text)


def test_every_package_of_the_lock_and_the_build_tool_has_a_version_and_hashes() -> None:
    text = LOCK.read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    names = set()
    for entry in entries:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==\S+", entry)
        assert match is not None, entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
        names.add(match[1])
    assert {"hatchling", "aiohttp", "msgspec"} <= names


def test_the_image_has_the_built_files_only_and_runs_as_another_user_than_root() -> None:
    lines = instructions(DOCKERFILE)
    stages = [line for line in lines if line.startswith("FROM ")]
    assert stages == ["FROM ${BASE} AS build", "FROM scratch"]
    last = lines[lines.index("FROM scratch") :]
    assert [line for line in last if line.startswith("COPY ")] == ["COPY --from=build /rootfs /"]
    assert "USER 65532:65532" in last


def test_the_base_is_pinned_by_its_digest() -> None:
    bases = [line for line in instructions(DOCKERFILE) if line.startswith("ARG BASE=")]
    assert len(bases) == 1
    assert re.fullmatch(r"ARG BASE=python:[0-9.]+-[a-z-]+@sha256:[0-9a-f]{64}", bases[0])
