"""The example of the documentation prints the described lines, and then is quiet."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS
from support.wait import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "seen.py"
PAGE = Path(__file__).parents[2] / "docs" / "extend" / "reconciler.md"


async def test_the_example_labels_and_is_quiet(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    # Into a file: a full pipe would block the example, because other tests create ConfigMaps, too.
    received = tmp_path / "log"
    kubeconfig = cluster.user("seen-example", groups=["system:masters"])
    with received.open("wb") as log:
        words = [sys.executable, str(EXAMPLE), "--kubeconfig", str(kubeconfig)]
        process = subprocess.Popen(words, stderr=log)
    try:
        for n in range(5):
            body = {"metadata": {"name": f"c{n}", "labels": {"app": "x"}}}
            await client.create(CONFIG_MAPS, body, namespace=namespace)

        async def labelled() -> bool:
            listing = await client.list(CONFIG_MAPS, namespace, labels="app,seen=yes")
            return len(listing.items) == 5

        await until(labelled)
        # The server shows an object to readers before it records the request that wrote the object.
        await until(lambda: len(patches(cluster, namespace)) >= 5)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    assert process.returncode == 0, received.read_text()
    assert len(patches(cluster, namespace)) == 5


def patches(cluster: Cluster, namespace: str) -> list[AuditedRequest]:
    """Return the patches of the example in a namespace."""
    requested = cluster.audit.requests(user="seen-example")
    return [each for each in requested if each.verb == "patch" and each.namespace == namespace]


def test_the_page_shows_the_example_as_it_is() -> None:
    assert EXAMPLE.read_text().strip() in PAGE.read_text()
