"""A worker's token in a file: a real server says when it is no good, and the file is read again."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
import yaml

from kubeocean.bound.workers import ENV_WORKER_FILES, KubeconfigSecret, SecretAccess
from kubeocean.errors import Unauthorized
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Meta
from kubeocean.runtime.transport import HttpTransport


async def test_a_token_that_was_exchanged_in_its_file_is_used_for_the_next_request(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    written = yaml.safe_load((await cluster.service_account(namespace, "worker")).read_text())
    user = written["users"][0]["user"]
    good = user.pop("token")
    home = tmp_path / "system" / "w1"
    home.mkdir(parents=True)
    user["tokenFile"] = str(home / "token")
    (home / "token").write_text(good)
    text = base64.b64encode(yaml.safe_dump(written).encode()).decode()
    secret = KubeconfigSecret(
        metadata=Meta(namespace="system", name="w1"), data={"kubeconfig": text}
    )
    access = SecretAccess(secret, environ={**os.environ, ENV_WORKER_FILES: str(tmp_path)})
    client = Client(HttpTransport(access), cluster="worker")
    reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

    async def who() -> str:
        answer = await client.request_json("POST", reviews, body={})
        return str(answer["status"]["userInfo"]["username"])

    try:
        assert await who() == f"system:serviceaccount:{namespace}:worker"
        (home / "token").write_text("revoked")
        await access.refresh(rejected=True)
        with pytest.raises(Unauthorized):
            await who()
        # Nobody tells us of the new one but the server's refusal of the old.
        (home / "token").write_text(good)
        assert await who() == f"system:serviceaccount:{namespace}:worker"
    finally:
        await client.close()
