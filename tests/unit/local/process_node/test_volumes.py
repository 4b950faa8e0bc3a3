"""Volumes, probes, addresses and logs of pods that are processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubeocean.errors import LocalError
from kubeocean.install.computing_objects import manager_deployment
from kubeocean.install.values import Values
from kubeocean.local.process_node.containers import Probe, probe
from kubeocean.local.process_node.logs import tail
from kubeocean.local.process_node.node import Addresses
from kubeocean.local.process_node.volumes import fill


def seen(directory: Path) -> dict[str, bytes]:
    """Return the files of a volume as a program reads them."""
    return {
        entry.name: entry.read_bytes()
        for entry in directory.iterdir()
        if not entry.name.startswith("..")
    }


def test_a_directory_is_replaced_in_one_step(tmp_path: Path) -> None:
    fill(tmp_path, {"a": b"1", "b": b"2"})
    assert seen(tmp_path) == {"a": b"1", "b": b"2"}
    first = os.readlink(tmp_path / "..data")
    fill(tmp_path, {"a": b"1", "b": b"2"})
    assert os.readlink(tmp_path / "..data") == first
    fill(tmp_path, {"b": b"3", "c": b"4"})
    assert seen(tmp_path) == {"b": b"3", "c": b"4"}
    assert not (tmp_path / first).exists()
    assert all(entry.is_symlink() for entry in tmp_path.iterdir() if entry.name[:2] != "..")


def test_a_probe_asks_where_the_program_really_is() -> None:
    (manager,) = manager_deployment(Values())["spec"]["template"]["spec"]["containers"]
    assert probe(manager, "readinessProbe", "127.3.3.3", {8081: 9999}) == Probe(
        "http://127.3.3.3:9999/readyz", every_s=10, delay_s=5, failures=3, timeout_s=2
    )
    assert probe(manager, "startupProbe", "127.3.3.3", {}) is None
    https = {"readinessProbe": {"httpGet": {"port": 10250, "scheme": "HTTPS", "path": "/healthz"}}}
    actual = probe(https, "readinessProbe", "127.3.3.3", {})
    assert actual is not None
    assert actual.url == "https://127.3.3.3:10250/healthz"


def test_pods_of_two_nodes_have_different_addresses(tmp_path: Path) -> None:
    one, two = Addresses(tmp_path / "one"), Addresses(tmp_path / "two")
    assert one.node != two.node
    first, second = one.take("a"), one.take("b")
    assert len({first, second, one.node}) == 3
    assert one.take("c", wanted=first) not in (first, second)
    one.give_back("a")
    assert one.take("d", wanted=first) == first
    with pytest.raises(LocalError, match="all addresses"):
        for number in range(300):
            one.take(f"more-{number}")


def test_the_last_lines_of_a_log_are_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"line {number} {'x' * (number % 90)}\n" for number in range(5000)]
    log.write_text("".join(lines))
    for wanted in (1, 2, 10, 4999, 5000, 6000):
        text = log.read_bytes()[tail(log, wanted) :].decode()
        assert text == "".join(lines[-wanted:])
    assert tail(log, 0) == log.stat().st_size
