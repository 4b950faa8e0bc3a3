"""Tests of doctor without an API server."""

from __future__ import annotations

from pathlib import Path

from support.doctor_command import Doctor

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


async def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    code, document, errors = await Doctor(kubeconfig)()
    assert (code, document) == (1, {})
    assert "could not reach https://127.0.0.1:1" in errors
