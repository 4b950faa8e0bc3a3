"""A worker's token in a file, which is read again when a real server refuses the token."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
import yaml

from kubeocean.errors import Unauthorized
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import SecretWithData
from kubeocean.runtime.objects import Meta
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import ENV_WORKER_FILES, SecretAccess


async def test_a_token_that_was_replaced_in_its_file_is_used_for_the_next_request(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = yaml.safe_load((await cluster.service_account(namespace, "worker")).read_text())
    credential = kubeconfig["users"][0]["user"]
    good = credential.pop("token")
    home = tmp_path / "system" / "w1"
    home.mkdir(parents=True)
    credential["tokenFile"] = str(home / "token")
    (home / "token").write_text(good)
    text = base64.b64encode(yaml.safe_dump(kubeconfig).encode()).decode()
    secret = SecretWithData(metadata=Meta(namespace="system", name="w1"), data={"kubeconfig": text})
    access = SecretAccess(secret, environ={**os.environ, ENV_WORKER_FILES: str(tmp_path)})
    client = Client(HttpTransport(access), cluster="worker")
    reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

    async def user() -> str:
        review = await client.request_json("POST", reviews, body={})
        return str(review["status"]["userInfo"]["username"])

    try:
        assert await user() == f"system:serviceaccount:{namespace}:worker"
        (home / "token").write_text("revoked")
        await access.refresh(rejected=True)
        with pytest.raises(Unauthorized):
            await user()
        # Only the refusal of the old token causes the file to be read again.
        (home / "token").write_text(good)
        assert await user() == f"system:serviceaccount:{namespace}:worker"
    finally:
        await client.close()
