"""Node network: every node has addresses of its own, and none that the machine needs."""

from __future__ import annotations

import asyncio
import stat
from ipaddress import IPv4Network
from itertools import pairwise
from pathlib import Path

import pytest

from kubeocean.errors import LocalError
from kubeocean.local.files import try_lock
from kubeocean.local.real_nodes import network
from kubeocean.local.real_nodes.network import BLOCKS, Subnet, choose_block
from kubeocean.runtime.clock import VirtualClock


def route(to: str, device: str = "eth0") -> dict[str, object]:
    return {"dst": to, "dev": device}


def test_the_first_block_is_taken_where_nothing_is_in_the_way() -> None:
    routes = [route("default"), route("192.0.2.0/24"), route("127.0.0.0/8"), route("10.0.0.5")]
    assert choose_block(routes) == BLOCKS[0]


def test_a_block_that_the_machine_has_routes_into_is_left_alone() -> None:
    assert choose_block([route("10.0.0.0/8", "vpn")]) == IPv4Network("172.27.0.0/16")
    assert choose_block([route(str(BLOCKS[0].network_address))]) == BLOCKS[1]


def test_routes_to_other_nodes_are_not_in_the_way() -> None:
    assert choose_block([route("10.215.0.0/30", "kubeocean0")]) == BLOCKS[0]


def test_a_machine_that_is_connected_to_all_blocks_is_an_error() -> None:
    with pytest.raises(LocalError, match=r"10\.215"):
        choose_block([route("10.0.0.0/8"), route("172.16.0.0/12")])


def test_addresses_of_nodes_never_meet() -> None:
    subnets = [Subnet(BLOCKS[0], slot) for slot in range(256)]
    assert len({subnet.link for subnet in subnets}) == 256
    assert all(len(subnet.link) <= 15 for subnet in subnets)  # the kernel's limit
    for one, next_one in pairwise(subnets):
        assert one.machine < one.node < one.pods.network_address < one.gateway
        assert one.gateway in one.pods
        assert one.pods.broadcast_address < next_one.machine
    assert subnets[-1].pods.subnet_of(BLOCKS[0])


def test_no_other_user_than_root_can_hold_the_lock() -> None:
    for directory in network.LOCK.parents:
        if directory.exists():
            found = directory.stat()
            assert found.st_uid == 0
            assert not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH), directory
    assert network.LOCK.parent.parent.exists()  # no other user can create the directory


async def test_a_lock_that_another_process_holds_is_waited_for_in_a_directory_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, clock = tmp_path / "nodes" / "lock", VirtualClock()
    monkeypatch.setattr(network, "LOCK", lock)
    lock.parent.mkdir()
    lock.parent.chmod(0o777)  # as an older version, or a careless administrator, may have left it
    with lock.open("w") as file:
        assert try_lock(file.fileno())
        waiting = asyncio.create_task(network.claim(1, clock=clock))
        await clock.advance(59)
        assert not waiting.done()
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
        await clock.advance(2)
        with pytest.raises(LocalError, match="another process has held the lock for 60 s"):
            await waiting
