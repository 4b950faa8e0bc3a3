"""The kubeconfig of a worker, the files that it may name, and changes of both.

No request is sent to the server of the kubeconfig.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.kinds import SecretWithData
from kubeocean.runtime.objects import Json, Meta
from kubeocean.worker_access.credentials import ENV_WORKER_FILES, SecretAccess


def secret(user: Json, *, name: str = "w1", **cluster: object) -> SecretWithData:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    data = {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()}
    return SecretWithData(metadata=Meta(namespace="system", name=name), data=data)


def token_of(access: SecretAccess) -> str:
    token = access.current().token
    return token.reveal() if token is not None else ""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory in which the Secret `system/w1` may name files."""
    directory = tmp_path / "system" / "w1"
    directory.mkdir(parents=True)
    (directory / "token").write_text("first\n")
    return directory


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {ENV_WORKER_FILES: str(tmp_path)}


def test_a_kubeconfig_may_hold_a_token_or_a_certificate() -> None:
    assert token_of(SecretAccess(secret({"token": "t"}), environ={})) == "t"
    issued = LocalAuthority.create("a").issue(Subject("u", (), client=True))
    inline = {
        "client-certificate-data": base64.b64encode(issued.certificate).decode(),
        "client-key-data": base64.b64encode(issued.private_key).decode(),
    }
    access = SecretAccess(secret(inline), environ={}).current()
    assert access.certificate == issued.certificate


@pytest.mark.parametrize(
    "user",
    [
        {"tokenFile": "{home}/token"},
        {"client-certificate": "{home}/token", "client-key": "{home}/token"},
    ],
)
def test_no_file_may_be_named_unless_the_operator_sets_a_directory(home: Path, user: Json) -> None:
    named = {key: value.format(home=home) for key, value in user.items()}
    with pytest.raises(ConfigError, match=ENV_WORKER_FILES):
        SecretAccess(secret(named), environ={})
    with pytest.raises(ConfigError, match=ENV_WORKER_FILES):
        SecretAccess(secret({"token": "t"}, **{"certificate-authority": str(home)}), environ={})


async def test_a_token_file_is_followed(home: Path, environ: dict[str, str]) -> None:
    access = SecretAccess(secret({"tokenFile": str(home / "token")}), environ=environ)
    assert token_of(access) == "first"
    assert access.interval_s <= 10.0
    assert not await access.refresh()
    held = access.current()
    (home / "token").write_text("second")
    assert await access.refresh()
    assert token_of(access) == "second"
    assert held != access.current()
    # After a rejection the file is read at once; a missing file changes nothing.
    (home / "token").unlink()
    assert not await access.refresh(rejected=True)
    assert not await access.refresh()
    assert token_of(access) == "second"
    (home / "token").write_text("third")
    assert await access.refresh(rejected=True)
    assert token_of(access) == "third"


async def test_a_mounted_token_is_followed_through_its_links(
    home: Path, environ: dict[str, str]
) -> None:
    """A kubelet mounts a file as a link through another link, and replaces the latter."""
    for version in ("1", "2"):
        (home / f"..{version}").mkdir()
        (home / f"..{version}" / "mounted").write_text(f"of-{version}")
    (home / "..data").symlink_to("..1")
    (home / "mounted").symlink_to("..data/mounted")
    access = SecretAccess(secret({"tokenFile": str(home / "mounted")}), environ=environ)
    assert token_of(access) == "of-1"
    (home / "..new").symlink_to("..2")
    (home / "..new").rename(home / "..data")
    assert await access.refresh()
    assert token_of(access) == "of-2"


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/etc/passwd",
        "token",
        "{home}/../w2/token",
        "{home}/../../system/w2/token",
        "{home}/link",
        "{home}-else/token",
        "/kubeconfig/../etc/passwd",
        "{home}/to\0ken",
        "{home}/circle",
    ],
)
def test_no_other_file_may_be_named(home: Path, environ: dict[str, str], path: str) -> None:
    """Not even a file of another worker."""
    for other in (home.parent / "w2", home.parent / "w1-else"):
        other.mkdir()
        (other / "token").write_text("of another")
    (home / "link").symlink_to(home.parent / "w2" / "token")
    (home / "circle").symlink_to(home / "circle")
    with pytest.raises(ConfigError, match="outside"):
        SecretAccess(secret({"tokenFile": path.format(home=home)}), environ=environ)


async def test_a_secret_may_change_between_a_token_and_a_file(
    home: Path, environ: dict[str, str]
) -> None:
    access = SecretAccess(secret({"token": "inline"}), environ=environ)
    assert access.interval_s > 600.0
    assert not await access.refresh(rejected=True)
    access.follow(None, secret({"tokenFile": str(home / "token")}))
    assert (token_of(access), access.interval_s) == ("first", 10.0)
    access.follow(None, secret({"tokenFile": "/etc/passwd"}))
    assert token_of(access) == "first"
    (home / "token").write_text("second")
    assert await access.refresh()
    access.follow(None, secret({"token": "inline"}))
    assert (token_of(access), access.interval_s) == ("inline", 3600.0)


async def test_a_file_that_is_created_after_the_secret_is_read(
    home: Path, environ: dict[str, str]
) -> None:
    access = SecretAccess(secret({"token": "inline"}), environ=environ)
    access.follow(None, secret({"tokenFile": str(home / "late")}))
    assert (token_of(access), access.interval_s) == ("inline", 10.0)
    assert not await access.refresh()
    (home / "late").write_text("late")
    assert await access.refresh()
    assert token_of(access) == "late"


def test_credentials_are_not_in_the_repr(home: Path, environ: dict[str, str]) -> None:
    access = SecretAccess(secret({"tokenFile": str(home / "token")}), environ=environ)
    assert "first" not in repr(access.current())
    assert "token" not in repr(secret({"token": "t"}))
