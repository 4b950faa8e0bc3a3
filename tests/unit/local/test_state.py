"""Tests of an ocean's stored state: its place, its file mode, and invalid content."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError, LocalError
from kubeocean.local.cache import cache_home
from kubeocean.local.state import StateDirectory, state_home

_STATE = (
    b'{"name":"o","phase":"running","shape":{"workers":%d},"kubeconfig":"","log":"",'
    b'"process":{"pid":1,"started":1,"boot":""}}'
)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"{", b"\xff\xfe", b'{"name": "\xff"}', b"\0" * 512, _STATE % 1000],
)
def test_a_state_that_is_none_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    directory = StateDirectory("ocean", tmp_path)
    directory.make()
    (directory.path / "state.json").write_bytes(content)
    with pytest.raises(
        LocalError, match=r"could not read .*state\.json: .*to repair it, run `kubeocean down`"
    ):
        directory.read()


def test_a_state_of_a_process_that_is_another_by_now_is_not_alive(tmp_path: Path) -> None:
    directory = StateDirectory("ocean", tmp_path)
    directory.make()
    (directory.path / "state.json").write_bytes(_STATE % 1)
    state = directory.read()
    assert state is not None
    assert not state.alive


def test_states_are_private_whatever_the_umask(tmp_path: Path) -> None:
    directory = StateDirectory("ocean", tmp_path / "a" / "kubeocean")
    before = os.umask(0)
    try:
        directory.make()
    finally:
        os.umask(before)
    for path in (directory.path, directory.path.parent):
        assert path.stat().st_mode & 0o077 == 0


def test_directories_of_a_user_are_absolute_and_follow_the_xdg_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_home({"HOME": "here"}) == tmp_path / "here/.local/state/kubeocean"
    assert cache_home({"HOME": "/a", "XDG_CACHE_HOME": "b"}) == Path("/a/.cache/kubeocean")
    assert cache_home({"HOME": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/b/kubeocean")
    known = pwd.getpwuid(os.getuid()).pw_dir
    assert state_home({"HOME": ""}) == Path(known, ".local/state/kubeocean")


def test_a_user_without_a_home_is_an_error_with_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigError, match="set HOME or XDG_STATE_HOME"):
        state_home({})
    assert state_home({"XDG_STATE_HOME": "/x"}) == Path("/x/kubeocean")
