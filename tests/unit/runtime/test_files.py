from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubeocean.runtime import files
from kubeocean.runtime.files import FileSet, scratch_file


def test_an_unchanged_file_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    seen = FileSet()
    assert seen.read(tmp_path / "a") == b"one"
    assert not seen.changed()


def test_other_content_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    seen = FileSet()
    seen.read(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"three")
    assert seen.changed()


def test_another_file_of_the_same_size_and_time_is_a_change(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"one")
        os.utime(tmp_path / name, ns=(1, 1))
    seen = FileSet()
    seen.read(tmp_path / "a")
    os.replace(tmp_path / "b", tmp_path / "a")
    assert seen.changed()


def test_a_file_that_goes_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    seen = FileSet()
    seen.read(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert seen.changed()


def test_a_file_that_comes_is_a_change(tmp_path: Path) -> None:
    seen = FileSet()
    with pytest.raises(FileNotFoundError):
        seen.read(tmp_path / "a")
    assert not seen.changed()
    (tmp_path / "a").write_bytes(b"one")
    assert seen.changed()


def test_the_swap_of_a_link_on_the_way_is_a_change(tmp_path: Path) -> None:
    for name in ("..old", "..new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_bytes(b"one")
        os.utime(tmp_path / name / "token", ns=(1, 1))
    (tmp_path / "..data").symlink_to("..old")
    (tmp_path / "token").symlink_to("..data/token")
    seen = FileSet()
    seen.read(tmp_path / "token")
    (tmp_path / "..tmp").symlink_to("..new")
    os.replace(tmp_path / "..tmp", tmp_path / "..data")
    assert seen.changed()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        FileSet().read(tmp_path / "pipe")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FileSet().read(tmp_path)


def test_a_name_with_a_nul_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        FileSet().read(Path("a\0b"))


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 1024 * 1024)
    (tmp_path / "a").write_bytes(b"x" * (1024 * 1024))
    assert len(FileSet().read(tmp_path / "a")) == 1024 * 1024
    (tmp_path / "a").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(OSError, match="larger than 1 MiB"):
        FileSet().read(tmp_path / "a")


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_scratch_file_has_no_name(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    with scratch_file() as file:
        file.write(b"secret")
        file.seek(0)
        assert file.read() == b"secret"
        assert not list(tmp_path.iterdir())
