"""Fixtures: real control planes.

`cluster` is shared by all tests of a session (of an xdist worker) and has all components;
`namespace` gives each test a namespace of its own. A test that breaks a cluster, or needs an empty
one, creates its own with `new_cluster`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path, PurePosixPath
from typing import Any
from zlib import crc32

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from kubeocean.local.assets import Assets, ensure
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES
from support.faults import Faults

EVERY_NTH = 5  # a sample of a sweep has every fifth case
NewCluster = Callable[..., Awaitable[Cluster]]

# Real servers are as slow as they are. Where changes are judged, the same examples judge each.
for name, examples in {"sample": 40, "thorough": 500}.items():
    settings.register_profile(
        name, deadline=None, derandomize="CI" in os.environ, max_examples=examples
    )

# Packages that share control planes of their own: one process runs all of each.
TOGETHER = {
    "tests/cluster/fleet/members",
    "tests/cluster/inspect/doctor",
    "tests/cluster/inspect/explain",
    "tests/cluster/fleet/placements",
    "tests/cluster/install",
    "tests/cluster/manager",
    "tests/cluster/inspect/status",
    "tests/e2e",
}

# A shell starts background programs with SIGINT ignored, and child processes inherit that; programs
# that tests start have to react to SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Dealing(LoadScopeScheduling):
    """Scheduler of pytest-xdist that keeps tests with a shared slow fixture in one process."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the order is ours
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return the group of a test that one process runs: a package, a file, or a single test."""
    path = PurePosixPath(nodeid.partition("::")[0])
    package = path.parent.as_posix()
    if package in TOGETHER:
        return package
    return nodeid if package.startswith("tests/unit") else path.as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="sweeps leave nothing out: a crash after every write, many more examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if config.getoption("--thorough") else "sample")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that try random examples as sweeps."""
    if is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker(pytest.mark.sweep)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Dealing(config, log)


def is_sampled(item: pytest.Item) -> bool:
    """Whether a test is part of the sample of its sweep: of those with a number, the 3rd, 8th, …"""
    sweep = item.get_closest_marker("sweep")
    if sweep is None:
        return True
    number = item.callspec.params.get("n") if hasattr(item, "callspec") else None
    return sweep.kwargs.get("sampled", True) and (number is None or number % EVERY_NTH == 3)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a sample, in an order that keeps the machine busy until all processes end together.

    Long tests come first and the shortest last. In between, tests that mostly wait and tests that
    mostly compute are mixed, because both kinds are in the same directories.
    """
    named = any("::" in each for each in config.args)  # a test that is named runs in full
    if not named and not config.getoption("--thorough"):
        config.hook.pytest_deselected(items=[item for item in items if not is_sampled(item)])
        items[:] = filter(is_sampled, items)
    slow = {scope_of(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> tuple[int, int]:
        scope = scope_of(item.nodeid)
        if item.nodeid.startswith("tests/unit"):
            return 3, 0
        return (0 if scope in slow else 1 if scope in TOGETHER else 2), crc32(scope.encode())

    items.sort(key=turn)


@pytest.fixture(scope="session")
def sample_step(pytestconfig: pytest.Config) -> int:
    """Return n for a sweep that takes every n-th case: 1 with `--thorough`."""
    return 1 if pytestconfig.getoption("--thorough") else EVERY_NTH


@pytest.fixture(scope="session")
async def assets() -> Assets:
    """The programs of a control plane: from KUBEOCEAN_ASSETS, the cache, or made now."""
    return await ensure()


@pytest.fixture(scope="session")
def cluster_roots(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Yield the directory of local clusters; a failed test keeps it for its logs."""
    root = tmp_path_factory.mktemp("clusters")
    yield root
    if not request.session.testsfailed:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
async def cluster(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The shared control plane: all components, and an audit log."""
    async with Cluster(
        "shared", cluster_roots / "shared", assets, audit=True, ephemeral=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """An administrator of the shared control plane."""
    client = cluster.client()
    yield client
    await client.close()


@pytest.fixture
def faults() -> Faults:
    """Return a plan of faults, for `cluster.client(wrap=faults.wrap)`."""
    return Faults()


@pytest.fixture
async def namespace(client: Client) -> str:
    """A fresh namespace of the shared control plane."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
async def new_cluster(
    assets: Assets, cluster_roots: Path, request: pytest.FixtureRequest
) -> AsyncIterator[NewCluster]:
    """Starts a control plane for this test alone: `await new_cluster(components=..., ...)`."""
    numbers = itertools.count(1)
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Cluster:
            name = options.pop("name", f"own{next(numbers)}")
            root = options.pop("root", None) or cluster_roots / f"{uuid.uuid4().hex[:6]}-{name}"
            settings = {"components": ("etcd", "kube-apiserver"), "ephemeral": True} | options
            cluster = Cluster(name, root, assets, **settings)
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            return cluster

        yield start
