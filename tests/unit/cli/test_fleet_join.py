"""`kubeocean fleet join` of a cluster that is a member of the fleet already."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.cli.commands import app
from support.certificates import kubeconfig, write

GROUP = CLUSTER_BINDINGS.api_version
MEMBERS = MEMBER_CLUSTERS.api_version
AGENT = "/apis/apps/v1/namespaces/fleet-system/deployments/fleet-member"
IDENTITY = {"kubeocean.io/worker-cluster-id": "uid-of-berlin"}


class _Answering(BaseHTTPRequestHandler):
    """Plays the API servers of hub and member; other requests than GET are recorded."""

    objects: ClassVar[dict[str, object]] = {}
    writes: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        missing = {"kind": "Status", "code": 404, "reason": "NotFound", "message": path}
        self._answer(200 if path in self.objects else 404, self.objects.get(path, missing))

    def do_PATCH(self) -> None:
        self.writes.append(self.path)
        self._answer(403, {"kind": "Status", "code": 403, "message": "no writes"})

    do_POST = do_PUT = do_DELETE = do_PATCH

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def hub_objects(*, on_binding: bool) -> dict[str, object]:
    """Return what the API servers answer: berlin is a member without an agent."""
    owner = {
        "apiVersion": GROUP,
        "kind": "ClusterBinding",
        "name": "berlin",
        "uid": "b",
        "controller": True,
    }
    member = {
        "metadata": {"name": "berlin", "uid": "m", "ownerReferences": [owner]},
        "spec": {"identity": {"kind": "User", "name": "berlin"}},
    }
    reference = {"name": "berlin", "namespace": "kubeocean-system"}
    binding = {
        "metadata": {"name": "berlin", "uid": "b", "annotations": IDENTITY if on_binding else {}},
        "spec": {"clusterID": "b1", "mountNamespace": "ocean", "secretRef": reference},
    }
    secret = {"metadata": reference | {"annotations": {} if on_binding else IDENTITY}, "data": {}}
    meta = {"resourceVersion": "1"}
    namespace = {"metadata": {"name": "kube-system", "uid": "uid-of-berlin"}}
    return {
        f"/apis/{MEMBERS}/memberclusters": {"metadata": meta, "items": [member]},
        f"/apis/{GROUP}/clusterbindings": {"metadata": meta, "items": [binding]},
        "/api/v1/namespaces/kubeocean-system/secrets/berlin": secret,
        "/api/v1/namespaces/kube-system": namespace,
    }


@pytest.fixture
def config(tmp_path: Path) -> Iterator[str]:
    """Kubeconfig of both clusters."""
    _Answering.writes.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    yield str(write(tmp_path / "config", kubeconfig({}, {"server": url})))
    server.shutdown()
    thread.join()
    server.server_close()


def join(config: str, name: str, *more: str) -> tuple[int, str]:
    words = ["fleet", "join", name, "--kubeconfig", config, "--hub-kubeconfig", config, *more]
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("on_binding", [True, False], ids=["on the binding", "on its Secret"])
def test_a_member_without_an_agent_does_not_join_under_a_second_name(
    config: str, on_binding: bool
) -> None:
    _Answering.objects = hub_objects(on_binding=on_binding)
    code, error = join(config, "paris")
    assert code == 2
    assert "paris" in error
    assert "the member berlin; run kubeocean fleet leave berlin first" in error
    assert _Answering.writes == []


def test_another_cluster_than_that_of_a_binding_may_join(config: str) -> None:
    objects = hub_objects(on_binding=True)
    namespace = {"metadata": {"name": "kube-system", "uid": "uid-of-paris"}}
    _Answering.objects = objects | {"/api/v1/namespaces/kube-system": namespace}
    code, error = join(config, "paris")
    assert (code, "cannot be joined" in error) == (1, False)
    assert _Answering.writes  # which this server refuses


def test_a_member_with_an_agent_does_not_join_without_one_under_a_second_name(config: str) -> None:
    variable = {"name": "MEMBER_CLUSTER_NAME", "value": "berlin"}
    container = {"name": "member", "image": "i", "env": [variable]}
    agent = {
        "metadata": {"name": "fleet-member", "namespace": "fleet-system"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    member = {
        "metadata": {"name": "berlin", "uid": "m"},
        "spec": {"identity": {"kind": "User", "name": "berlin"}},
    }
    members = {"metadata": {"resourceVersion": "1"}, "items": [member]}
    path = f"/apis/{MEMBERS}/memberclusters"
    _Answering.objects = hub_objects(on_binding=True) | {path: members, AGENT: agent}
    code, error = join(config, "paris", "--agentless")
    assert code == 2
    assert "the member berlin; run kubeocean fleet leave berlin first" in error
    assert _Answering.writes == []
