"""Downloads: the official release, with its checksum or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import resource
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from kubeocean.errors import LocalError
from kubeocean.local.download import Mirrors, Releases, pinned_checksums
from kubeocean.local.progress import PlainProgress
from kubeocean.local.versions import Platform, pinned, this_platform
from support.fake_go import AssetWorld

KUBE = f"/release/{pinned().kubernetes}/bin/linux/{this_platform().arch}"
ETCD = f"/etcd-io/etcd/releases/download/{pinned().etcd}"
ETCD_STEM = f"etcd-{pinned().etcd}-linux-{this_platform().arch}"
KWOK_ABOUT = f"/repos/kubernetes-sigs/kwok/releases/tags/{pinned().kwok}"
KWOK_FILE = f"kwok-linux-{this_platform().arch}"
KWOK = f"/kubernetes-sigs/kwok/releases/download/{pinned().kwok}/{KWOK_FILE}"


class Mirror:
    """A server of files that records the path of each request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.url = ""

    @property
    def mirrors(self) -> Mirrors:
        return Mirrors(self.url, self.url, self.url)

    async def answer(self, request: web.Request) -> web.Response:
        self.requested.append(request.path)
        body = self.files.get(request.path)
        return web.Response(status=404) if body is None else web.Response(body=body)

    def publish(self, name: str, content: bytes) -> None:
        self.files[f"{KUBE}/{name}"] = content
        self.files[f"{KUBE}/{name}.sha256"] = _sha256(content).encode()

    def publish_etcd(self, content: bytes) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, data in (("README.md", b"x"), ("etcd", content)):
                info = tarfile.TarInfo(f"{ETCD_STEM}/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        archive = f"{ETCD_STEM}.tar.gz"
        self.files[f"{ETCD}/{archive}"] = buffer.getvalue()
        line = f"{_sha256(buffer.getvalue())}  {archive}\n"
        self.files[f"{ETCD}/SHA256SUMS"] = f"0000  other.zip\n{line}".encode()

    def publish_kwok(self, content: bytes, digest: str | None) -> None:
        self.files[KWOK] = content
        assets = [{"name": KWOK_FILE, "digest": digest, "size": 1}]
        self.files[KWOK_ABOUT] = msgspec.json.encode({"tag_name": "x", "assets": assets})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
async def mirror() -> AsyncIterator[Mirror]:
    mirror = Mirror()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", mirror.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    mirror.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield mirror
    await runner.cleanup()


@pytest.fixture
def world(tmp_path: Path) -> AssetWorld:
    return AssetWorld(tmp_path / "world").make()


async def test_releases_are_downloaded_checked_and_cached(
    world: AssetWorld, mirror: Mirror
) -> None:
    mirror.publish("kube-apiserver", b"#!api")
    mirror.publish_etcd(b"#!etcd")
    mirror.publish_kwok(b"#!kwok", f"sha256:{_sha256(b'#!kwok')}")
    names = ["kube-apiserver", "etcd", "kwok"]
    assets = await world.finder(mirrors=mirror.mirrors).ensure(names)
    contents = [assets.path(name).read_bytes() for name in names]
    assert contents == [b"#!api", b"#!etcd", b"#!kwok"]
    mirror.requested.clear()
    await world.finder(mirrors=mirror.mirrors).ensure(names)
    assert mirror.requested == []


async def test_a_wrong_checksum_throws_the_file_away_and_the_build_steps_in(
    world: AssetWorld, mirror: Mirror
) -> None:
    world.install_go()
    mirror.publish("kubelet", b"right")
    mirror.files[f"{KUBE}/kubelet"] = b"wrong"
    assets = await world.finder(mirrors=mirror.mirrors).ensure(["kubelet"])
    assert assets.path("kubelet").read_bytes().startswith(b"#!/bin/sh")
    assert len(world.builds) == 1


async def test_what_has_no_published_checksum_is_not_downloaded(
    world: AssetWorld, mirror: Mirror
) -> None:
    mirror.publish_kwok(b"kwok", None)
    with pytest.raises(LocalError, match="the project publishes no checksum for this file"):
        await world.finder(mirrors=mirror.mirrors).ensure(["kwok"])
    assert KWOK not in mirror.requested


def releases(mirror: Mirror, checksums: dict[str, str], notes: list[str]) -> Releases:
    return Releases(
        pinned(),
        this_platform(),
        progress=PlainProgress(notes.append),
        mirrors=mirror.mirrors,
        checksums=checksums,
    )


async def test_a_pinned_checksum_replaces_the_published_one(mirror: Mirror, tmp_path: Path) -> None:
    suffix = f"linux-{this_platform().arch}"
    pins = {
        f"kubelet-{pinned().kubernetes}-{suffix}": _sha256(b"kubelet"),
        f"kwok-{pinned().kwok}-{suffix}": _sha256(b"kwok of the pin"),
    }
    mirror.publish("kubelet", b"kubelet")
    mirror.publish("kubectl", b"kubectl")
    mirror.publish_kwok(b"exchanged", f"sha256:{_sha256(b'exchanged')}")
    notes: list[str] = []
    names = ["kubelet", "kubectl", "kwok"]
    got, failures = await releases(mirror, pins, notes).fetch(names, tmp_path)
    assert set(got) == {"kubelet", "kubectl"}
    assert failures == [
        f"{mirror.url}{KWOK}: the checksum does not match; the downloaded file was deleted"
    ]
    assert not (tmp_path / "kwok").exists()
    assert f"{KUBE}/kubelet.sha256" not in mirror.requested
    assert KWOK_ABOUT not in mirror.requested
    unpinned = [note for note in notes if "is not pinned" in note]
    assert unpinned == [
        "the checksum of kubectl is not pinned: it comes from the server of the file"
    ]


async def test_published_checksums_have_the_names_of_pins(mirror: Mirror, tmp_path: Path) -> None:
    mirror.publish("kubelet", b"kubelet")
    mirror.publish_etcd(b"etcd")
    mirror.publish_kwok(b"kwok", f"sha256:{_sha256(b'kwok')}")
    sums = await releases(mirror, {}, []).published(["kubelet", "etcd", "kwok"])
    file = tmp_path / "SHA256SUMS"
    file.write_text("# a comment of several words\n")
    with file.open("a") as pins:
        pins.writelines(f"{checksum}  {name}\n" for name, checksum in sums.items())
    assert pinned_checksums(file) == sums
    got, failures = await releases(mirror, sums, []).fetch(["kubelet", "etcd", "kwok"], tmp_path)
    assert (set(got), failures) == ({"kubelet", "etcd", "kwok"}, [])
    with pytest.raises(LocalError, match=r"^no checksum of kubectl: .*HTTP 404$"):
        await releases(mirror, {}, []).published(["kubectl"])


async def test_what_a_release_lacks_is_built_and_the_rest_kept(
    world: AssetWorld, mirror: Mirror
) -> None:
    world.install_go()
    mirror.publish("kube-scheduler", b"#!sched")
    assets = await world.finder(mirrors=mirror.mirrors).ensure(["kube-scheduler", "etcd"])
    assert assets.path("kube-scheduler").read_bytes() == b"#!sched"
    assert assets.path("etcd").read_bytes().startswith(b"#!/bin/sh")


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """No file over 256 KiB can be written: the nearest to a full disk that needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_fills_up_ends_it_with_a_clear_word(
    world: AssetWorld, mirror: Mirror, small_files_only: None
) -> None:
    world.install_go()
    mirror.publish("kubelet", b"x" * (1 << 20))
    with pytest.raises(LocalError) as caught:
        await world.finder(mirrors=mirror.mirrors).ensure(["kubelet"])
    assert f"could not get kubelet: file too large in {world.cache}" in str(caught.value)
    assert "MB are needed there" in str(caught.value)
    assert list(world.cache.glob("*.tmp-*")) == []
    assert world.builds == []


async def test_a_silent_network_costs_less_than_ten_seconds(world: AssetWorld) -> None:
    held: list[asyncio.StreamWriter] = []

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    world.install_go()
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    start = time.monotonic()
    await world.finder(mirrors=Mirrors(url, url, url)).ensure(["etcd", "kwok"])
    # Five seconds, and as many for a busy machine; without the limit the silence lasts 20 seconds.
    assert time.monotonic() - start < 10
    assert len(held) == 1
    for writer in held:
        writer.close()
        await writer.wait_closed()
    server.close()
    await server.wait_closed()


def test_the_pins_come_from_the_go_modules() -> None:
    versions = pinned()
    assert versions.kubernetes.startswith("v1.")
    assert versions.etcd.startswith("v3.")
    assert versions.kwok.startswith("v0.")
    assert versions.go >= (1, 24)
    assert str(Platform("linux", "arm64")) == "linux/arm64"
