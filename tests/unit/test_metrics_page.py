"""docs/understand/metrics.md lists every metric that the programs register.

The test assembles the parts of each program that register metrics, without running them, and reads
the names from the registry. A search of the source proves that no part is missing in this file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from kubeocean.fleet.admission.handlers import Handlers
from kubeocean.fleet.admission.server import WebhookServer
from kubeocean.fleet.agent.agent import MemberAgent
from kubeocean.fleet.agent.collector import Collector
from kubeocean.fleet.agent.nodes import NodeProperties
from kubeocean.fleet.applier.controller import WorkApplier
from kubeocean.fleet.hub import Hub
from kubeocean.fleet.placement import PlacementSettings
from kubeocean.manager.app import Manager
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.election import Election
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.server_tls import CertificateTls
from kubeocean.runtime.transport_layers import CountedTransport
from kubeocean.sharding.metrics import RingMetrics, WorkMetrics
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.worker_health import WorkerHealth
from support.scripted_transport import Scripted

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "understand" / "metrics.md"
METHODS = {"counter", "gauge", "histogram"}  # of `Metrics`


class NoCertificates:
    """A source of certificates that has none."""

    async def run(self) -> None:
        raise AssertionError("the server of this test is never started")


def register_all() -> Metrics:
    """Return a registry with the metrics of every program."""
    metrics = Metrics(process=True)
    transport = CountedTransport(Scripted(), StaticAccess(Access("https://localhost:1")), metrics)
    client = Client(transport)
    Election(client, namespace="n", name="e", metrics=metrics)
    events = EventRecorder(client, component="c", metrics=metrics)
    Syncer(
        Clusters(
            binding_name="b",
            cluster_id="c",
            computing_id="id",
            computing=client,
            worker=client,
            worker_health=WorkerHealth(),
            events=events,
            worker_events=events,
            metrics=metrics,
            secrets_by_namespace=True,
        )
    )
    ProxierMetrics(metrics)
    Manager(client, (ROOT, ROOT), metrics=metrics)
    Hub(client, placements=PlacementSettings(), metrics=metrics)
    collector = Collector(NodeProperties(client))
    MemberAgent(client, client, "m", collector, metrics=metrics)
    WorkApplier(client, client, namespace="n", metrics=metrics)
    WebhookServer(
        Handlers(client),
        CertificateTls(),
        NoCertificates(),
        address=BindAddress("127.0.0.1", 0),
        metrics=metrics,
    )
    RingMetrics(metrics, "r")
    WorkMetrics(metrics, "r", "c")
    return metrics


@cache
def registered() -> frozenset[str]:
    """Return the names of all metrics, as Prometheus shows them."""
    return frozenset(
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in register_all().collect()
    )


def written() -> Iterator[tuple[str, str]]:
    """Yield each place of the source that creates a metric, and a pattern of its name: `*` stands
    for a part that a variable holds."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.parts[-2:] == ("runtime", "metrics.py"):
            continue  # defines the instruments
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            is_family = isinstance(node.func, ast.Name) and node.func.id == "Family"
            if not is_method and not is_family:
                continue
            first = node.args[0]
            parts = first.values if isinstance(first, ast.JoinedStr) else [first]
            name = "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)
            yield f"{path.relative_to(ROOT)}:{node.lineno}", name.removesuffix("_total")


def documented(page: str) -> set[str]:
    """Return the names on the page; a table whose head names a prefix has its rows without it."""
    names: set[str] = set()
    prefix = ""
    for line in page.splitlines():
        if not line.startswith("|"):
            prefix = ""
        elif match := re.match(r"\| name \(`(\w+?)…`\)", line):
            prefix = match[1]
        for name in re.findall(r"`([a-z_]+\*?)(?:\{[^`]*\})?`", line):
            names.add(name)
            names.add(f"{prefix}{name}")
    return names


def test_every_metric_is_on_the_page() -> None:
    names = documented(PAGE.read_text(encoding="utf-8"))
    missing = {each for each in registered() if not any(fnmatch(each, name) for name in names)}
    assert sorted(missing) == []


def test_this_test_registers_every_metric_that_the_source_creates() -> None:
    """A metric that is missing here belongs to a component that `register_all` has to assemble."""
    places = dict(written())
    assert len(places) > 60
    names = {name.removesuffix("_total") for name in registered()}
    missing = {place: name for place, name in places.items() if not filter_names(names, name)}
    assert missing == {}


def test_names_with_a_prefix_are_registered_in_full() -> None:
    assert {
        "kubeocean_syncer_create_pod_errors_total",
        "kubeocean_syncer_vnode_total",
        "kubeocean_syncer_cluster_virtual_usage",
        "kubeocean_watch_restarts_total",
        "join_result_counter",
    } <= registered()
