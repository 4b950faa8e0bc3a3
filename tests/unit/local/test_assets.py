"""Assets: found, made once, never half, and one clear word when they cannot be had."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import support.fake_go as fakego
from kubeocean.errors import InvariantError, LocalError
from kubeocean.local.assets import CONTROL_PLANE, Assets
from kubeocean.local.progress import PlainProgress
from support.fake_go import AssetWorld
from support.wait import until


@pytest.fixture
def world(tmp_path: Path) -> AssetWorld:
    return AssetWorld(tmp_path / "world").make()


def _cached(world: AssetWorld, name: str) -> Path:
    (directory,) = (path for path in world.cache.iterdir() if path.is_dir())
    return directory / name


def _leftovers(world: AssetWorld) -> list[Path]:
    return list(world.cache.glob("*.tmp-*"))


async def test_a_directory_of_the_users_wins_over_the_other_and_over_the_cache(
    world: AssetWorld,
) -> None:
    world.install_go()
    await world.finder().ensure(["etcd", "kwok"])
    ours = world.program("etcd", directory="ours")
    theirs = world.program("kwok", directory="theirs")
    world.program("etcd", directory="theirs")
    world.environ["KUBEOCEAN_ASSETS"] = f"{world.root / 'nowhere'}:{ours.parent}"
    world.environ["KUBEBUILDER_ASSETS"] = str(theirs.parent)
    assets = await world.finder().ensure(["etcd", "kwok", "kube-apiserver"])
    assert assets.path("etcd") == ours
    assert assets.path("kwok") == theirs
    assert assets.path("kube-apiserver") == _cached(world, "kube-apiserver")
    assert any("nowhere: there is no such directory" in line for line in world.lines)


async def test_a_part_of_a_control_plane_is_not_mixed_with_ours(world: AssetWorld) -> None:
    world.install_go()
    for name in ("etcd", "kube-apiserver"):
        world.program(name, directory="envtest")
    world.environ["KUBEBUILDER_ASSETS"] = str(world.root / "envtest")
    assets = await world.finder().ensure(CONTROL_PLANE)
    assert assets.path("etcd") == world.root / "envtest" / "etcd"
    assert assets.path("kube-apiserver") == _cached(world, "kube-apiserver")


async def test_kubectl_is_taken_from_the_path_if_it_is_there(world: AssetWorld) -> None:
    kubectl = world.program("kubectl")
    assert (await world.finder().ensure(["kubectl"])).path("kubectl") == kubectl
    kubectl.unlink()
    world.install_go()
    assets = await world.finder().ensure(["kubectl"])
    assert assets.path("kubectl") == _cached(world, "kubectl")


async def test_a_build_is_made_once_and_serves_all_names_of_it(world: AssetWorld) -> None:
    world.install_go()
    assets = await world.finder().ensure(CONTROL_PLANE)
    assert len(world.builds) == 1
    # The link keeps its own name, because the linked program reads the name of its command.
    assert assets.path("etcd").name == "etcd"
    assert assets.path("etcd").samefile(assets.path("kube-apiserver"))
    assert await world.finder().ensure(CONTROL_PLANE)
    assert len(world.builds) == 1
    await world.finder().ensure([*CONTROL_PLANE, "kubelet"])
    assert len(world.builds) == 2
    assert world.builds[1].endswith("./kubelet")
    assert _leftovers(world) == []


async def test_the_users_go_settings_do_not_change_what_is_built(world: AssetWorld) -> None:
    world.install_go()
    world.environ |= {
        "GOFLAGS": "-mod=vendor -race",
        "GOWORK": "/somewhere/go.work",
        "GOOS": "plan9",
        "GOPROXY": "https://mirror.example",
    }
    await world.finder().ensure(["kwok"])
    seen = dict(
        line.split("=", 1)
        for line in (world.root / "environment").read_text().splitlines()
        if "=" in line
    )
    assert seen["GOFLAGS"] == "-mod=readonly -buildvcs=false"
    assert (seen["GOWORK"], seen["GOOS"], seen["CGO_ENABLED"]) == ("off", "linux", "0")
    assert seen["GOPROXY"] == "https://mirror.example"


async def test_a_build_shows_how_far_it_is(world: AssetWorld) -> None:
    world.install_go(mode='echo "go: downloading example.com v1" >&2; echo a/b >&2; sleep 0.6')
    await world.finder(progress=PlainProgress(world.lines.append, every_s=0.1)).ensure(["kwok"])
    assert "building kwok …" in world.lines
    assert any("2 of about 660 packages, a/b" in line for line in world.lines)


@pytest.mark.parametrize("damage", ["truncated", "not executable", "no manifest", "bad manifest"])
async def test_a_half_written_cache_is_reported_and_made_again(
    world: AssetWorld, damage: str
) -> None:
    world.install_go()
    await world.finder().ensure(["kwok"])
    kwok = _cached(world, "kwok")
    manifest = _cached(world, "manifest.json")
    if damage == "truncated":
        os.truncate(kwok, 3)
    elif damage == "not executable":
        kwok.chmod(0o644)
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text('{"files": {"kwok"')
    assets = await world.finder().ensure(["kwok"])
    assert len(world.builds) == 2
    assert any("making it again" in line for line in world.lines)
    assert (
        subprocess.run([assets.path("kwok")], check=True, capture_output=True).stdout == b"kwok\n"
    )


async def test_a_full_check_sees_a_damage_that_keeps_the_size(world: AssetWorld) -> None:
    world.install_go()
    finder = world.finder()
    await finder.ensure(["etcd", "kwok"])
    finder.verify()
    with _cached(world, "kwok").open("r+b") as file:
        file.write(b"?")
    with pytest.raises(LocalError, match="kwok is damaged"):
        finder.verify()


async def test_without_go_and_network_one_error_says_all(world: AssetWorld) -> None:
    world.environ["KUBEBUILDER_ASSETS"] = str(world.root / "bin")
    with pytest.raises(LocalError) as caught:
        await world.finder().ensure(["etcd", "kwok"])
    text = str(caught.value)
    for expected in (
        "could not get etcd, kwok for linux/",
        f"KUBEBUILDER_ASSETS={world.root / 'bin'}: has no etcd, kwok",
        f"the cache {world.cache}",
        "the official release: http://127.0.0.1:9: connection refused (127.0.0.1:9)",
        "a build from source: there is no go in PATH; could not install the Python package",
        "What to do:",
        "KUBEOCEAN_ASSETS",
    ):
        assert expected in text
    assert _leftovers(world) == []


async def test_a_go_that_is_too_old_is_named(world: AssetWorld) -> None:
    world.install_go("go1.21.13")
    with pytest.raises(LocalError, match=r"bin/go is 1\.21\.13, 1\.24\.0 is needed"):
        await world.finder().ensure(["kwok"])
    assert world.builds == []


async def test_a_failed_build_tells_the_last_words_of_the_compiler(world: AssetWorld) -> None:
    world.install_go(mode='echo "go: example: no such host" >&2; exit 1')
    with pytest.raises(LocalError, match="of kwok from source: go: example: no such"):
        await world.finder().ensure(["kwok"])
    assert _leftovers(world) == []
    world.install_go()
    assert await world.finder().ensure(["kwok"])


async def test_a_full_disk_names_the_directory_and_the_space(world: AssetWorld) -> None:
    full = world.root / "gocache"
    full.mkdir()
    world.install_go(mode=f'echo "write {full}/x: no space left on device" >&2; exit 1')
    with pytest.raises(LocalError) as caught:
        await world.finder().ensure(["kwok"])
    assert f"no space left on device in {full}: " in str(caught.value)
    assert "5.0 GB are needed there" in str(caught.value)
    assert _leftovers(world) == []


async def test_an_unknown_name_is_a_bug_of_ours(world: AssetWorld) -> None:
    with pytest.raises(InvariantError, match="no programs of these names are known"):
        await world.finder().ensure(["kube-proxy"])
    with pytest.raises(LocalError, match="kubelet is not among the requested programs"):
        Assets({}).path("kubelet")


def test_a_directory_of_programs_can_be_used_as_it_is(world: AssetWorld) -> None:
    etcd = world.program("etcd", directory="some")
    (etcd.parent / "kwok").write_text("not executable")
    assert list(Assets.in_directory(etcd.parent)) == ["etcd"]


# Several processes.


class Seeker:
    """A process that finds or builds assets."""

    def __init__(self, world: AssetWorld, *names: str) -> None:
        self._argv = (sys.executable, fakego.__file__, str(world.root), *names)
        self.lines: list[str] = []

    async def start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            *self._argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )

    async def message(self, text: str) -> str:
        """Wait for a line with that text."""
        assert self._child.stdout is not None
        while line := (await self._child.stdout.readline()).decode():
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was never printed, but {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    async def ended(self) -> int:
        out, _ = await self._child.communicate()
        self.lines += out.decode().splitlines()
        return self._child.returncode or 0


@pytest.fixture
async def seekers() -> AsyncIterator[list[Seeker]]:
    started: list[Seeker] = []
    yield started
    for seeker in started:
        await seeker.ended()


async def test_of_concurrent_builds_one_works_and_the_others_wait(
    world: AssetWorld, seekers: list[Seeker]
) -> None:
    world.install_go(mode=f'while [ ! -e "{world.root}/go-on" ]; do sleep 0.05; done')
    seekers += [Seeker(world, *CONTROL_PLANE) for _ in range(3)]
    await seekers[0].start()
    await seekers[0].message("building controlplane")
    for seeker in seekers[1:]:
        await seeker.start()
        await seeker.message("waiting for another build")
    (world.root / "go-on").touch()
    assert [await seeker.ended() for seeker in seekers] == [0, 0, 0]
    assert len(world.builds) == 1
    actual = {line for seeker in seekers for line in seeker.lines if line.startswith("etcd=")}
    assert len(actual) == 1


def _running_go(world: AssetWorld) -> list[str]:
    """Return the command lines of running shells of the fake go."""
    mark = str(world.root / "bin" / "go").encode()
    actual = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if mark in words:
                actual.append(entry.name)
    return actual


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_an_interrupted_build_leaves_no_process_and_no_broken_cache(
    world: AssetWorld, seekers: list[Seeker], number: signal.Signals
) -> None:
    world.install_go(mode='echo half >"$target"; touch "$target.started"; sleep 600')
    seekers.append(Seeker(world, "kwok"))
    await seekers[0].start()
    await until(
        lambda: list(world.cache.glob("*.tmp-*/kwok.started")), waiting_for="a half-made file"
    )
    seekers[0].signal(number)
    assert await seekers[0].ended() != 0
    await until(lambda: not _running_go(world), waiting_for="the end of go")
    # After SIGKILL only the next build can clean up; after Ctrl-C there is nothing to clean.
    assert len(_leftovers(world)) == (1 if number == signal.SIGKILL else 0)
    world.install_go()
    assets = await world.finder().ensure(["kwok"])
    assert (
        subprocess.run([assets.path("kwok")], check=True, capture_output=True).stdout == b"kwok\n"
    )
    assert _leftovers(world) == []
