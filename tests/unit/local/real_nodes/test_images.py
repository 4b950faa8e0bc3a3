"""Images: the same bytes every time, with the content that container runtimes expect."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kubeocean.errors import LocalError
from kubeocean.local.real_nodes import images
from kubeocean.local.real_nodes.images import File, Image, archive

SCRIPT = b"#!/bin/sh\necho hello\n"


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    """A program that lists applets as busybox does."""
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\nprintf '[\\nbusybox\\ncat\\nsh\\n'\n")
    program.chmod(0o755)
    return program


def image(name: str = "example/hello:2", **options: Any) -> Image:
    return Image(name, {"/opt/bin/hello": File(SCRIPT, 0o755)}, architecture="amd64", **options)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = (entry for entry in tar if entry.isfile())
        return {entry.name: read(tar, entry) for entry in files}


def read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    assert file is not None
    return file.read()


def layer_entries(of: Image) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(of.blobs()[0])) as tar:
        return {entry.name: entry for entry in tar}


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert len(data) == descriptor["size"]
    return data


def test_the_same_image_is_the_same_bytes_whatever_the_order_of_its_files() -> None:
    one = Image("x:1", {"/a": File(b"1"), "/b/c": File(b"2")}, architecture="amd64")
    other = Image("x:1", {"/b/c": File(b"2"), "/a": File(b"1")}, architecture="amd64")
    assert archive(one) == archive(other)


def test_every_blob_has_the_name_of_its_digest() -> None:
    for name, data in members(archive(image())).items():
        if name.startswith("blobs/sha256/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def test_the_index_leads_to_the_configuration_and_the_layer() -> None:
    made = image(entrypoint=("/opt/bin/hello",), env=("A=b",), user="65534", directory="/opt")
    files = members(archive(made))
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "example/hello:2"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert config["config"] == {
        "Cmd": [],
        "Entrypoint": ["/opt/bin/hello"],
        "Env": ["A=b"],
        "User": "65534",
        "WorkingDir": "/opt",
    }
    assert members(blob(files, layer)) == {"opt/bin/hello": SCRIPT}


def test_docker_finds_its_own_manifest() -> None:
    files = members(archive(image("a:1"), image("b:1", user="1")))
    saved = json.loads(files["manifest.json"])
    assert [entry["RepoTags"] for entry in saved] == [["a:1"], ["b:1"]]
    for entry in saved:
        assert {entry["Config"], *entry["Layers"]} <= set(files)


def test_images_of_one_archive_share_what_is_equal() -> None:
    files = members(archive(image("a:1"), image("b:1", user="1")))
    assert sum(name.startswith("blobs/") for name in files) == 5  # one layer for both


def test_files_have_directories_modes_and_no_owner_or_time() -> None:
    made = Image(
        "x:1",
        {
            "/bin/tool": File(b"#!", 0o755),
            "/bin/other": File(link="tool"),
            "/tmp/": File(mode=0o1777),
            "/tmp/deep/file": File(b"x"),
        },
    )
    entries = layer_entries(made)
    assert sorted(entries) == ["bin", "bin/other", "bin/tool", "tmp", "tmp/deep", "tmp/deep/file"]
    assert (entries["bin"].isdir(), entries["bin"].mode) == (True, 0o755)
    assert entries["tmp"].mode == 0o1777
    assert entries["bin/tool"].mode == 0o755
    assert (entries["bin/other"].issym(), entries["bin/other"].linkname) == (True, "tool")
    assert {(e.mtime, e.uid, e.gid, e.uname) for e in entries.values()} == {(0, 0, 0, "")}


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(LocalError, match="bin/x"):
        Image("x:1", {"bin/x": File()}).blobs()


def test_busybox_has_all_its_names_and_is_no_link_to_itself(busybox: Path) -> None:
    entries = layer_entries(images.busybox_image(busybox))
    assert entries["bin/busybox"].isfile()
    assert entries["bin/busybox"].mode == 0o755
    assert {"bin/[", "bin/cat", "bin/sh"} <= set(entries)
    assert all(entries[f"bin/{tool}"].linkname == "busybox" for tool in ("[", "cat", "sh"))
    assert entries["tmp"].mode == 0o1777


def test_pause_runs_without_a_shell_of_its_own(busybox: Path) -> None:
    pause = images.pause_image(busybox)
    assert pause.name == images.PAUSE
    assert pause.entrypoint[0] == "/bin/busybox"
    assert set(layer_entries(pause)) == {"bin", "bin/busybox"}


def test_a_busybox_with_libraries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamic = tmp_path / "busybox"
    dynamic.symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match="busybox-static"):
        images.find_busybox()
    dynamic.unlink()
    with pytest.raises(LocalError, match="no busybox"):
        images.find_busybox()
