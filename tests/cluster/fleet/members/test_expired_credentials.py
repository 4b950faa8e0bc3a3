"""Expired credentials of a member agent: conditions meanwhile, and recovery with new files."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json
from kubeocean.runtime.pki import load_key
from support.clocks import SetClock
from support.fleet_env import FleetEnv
from support.fleet_process import fleet_process
from support.wait import until

THRESHOLD = timedelta(seconds=3)
SHORT_S, LONG_S = 3, 3600


@dataclass(frozen=True)
class Credentials:
    """A credential in files: flags and environment that name them, and the authenticated user.

    `write` writes a credential that is valid for a number of seconds.
    """

    flags: tuple[str, ...]
    environ: Mapping[str, str]
    identity: Json
    file: Path
    write: Callable[[int], None]


NewCredentials = Callable[[FleetEnv, Path, str], Awaitable[Credentials]]


async def token_credentials(env: FleetEnv, directory: Path, name: str) -> Credentials:
    """Return credentials with tokens of a ServiceAccount, signed with the hub's own key.

    An API server issues no token for less than ten minutes, but accepts such tokens.
    """
    account = f"account-of-{name}"
    meta = {"name": account, "namespace": SYSTEM_NAMESPACE}
    await env.hub.create(SERVICE_ACCOUNTS, {"metadata": meta})
    request: Json = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600},
    }
    answer = await env.hub.post(SERVICE_ACCOUNTS, account, "token", request, SYSTEM_NAMESPACE)
    header, claims, _ = str(answer["status"]["token"]).split(".")
    key = (env.hub_cluster.root / "pki" / "sa.key").read_bytes()
    path = directory / "token"

    def write(life_s: int) -> None:
        now = int(RealClock().now().timestamp())
        changed = _decoded(claims) | {"iat": now - 1, "nbf": now - 1, "exp": now + life_s}
        signed = f"{header}.{_encoded(json.dumps(changed).encode())}"
        path.write_text(f"{signed}.{_encoded(_signature(key, signed.encode()))}")

    identity = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}
    return Credentials((), {"CONFIG_PATH": str(path)}, identity, path, write)


async def certificate_credentials(env: FleetEnv, directory: Path, name: str) -> Credentials:
    """Return credentials with client certificates of a user, issued by the hub's authority."""
    certificate, key = directory / "client.crt", directory / "client.key"

    def write(life_s: int) -> None:
        clock = SetClock()
        clock.offset = timedelta(seconds=life_s) - timedelta(days=1)
        authority = LocalAuthority(env.hub_cluster.authority.identity, clock=clock)
        issued = authority.issue(Subject(f"agent-of-{name}", client=True), days=1)
        key.write_bytes(issued.private_key)
        certificate.write_bytes(issued.certificate)

    environ = {"IDENTITY_CERT": str(certificate), "IDENTITY_KEY": str(key)}
    identity = {"kind": "User", "name": f"agent-of-{name}"}
    return Credentials(("--use-ca-auth",), environ, identity, certificate, write)


def _decoded(part: str) -> Json:
    return dict(json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def _encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _signature(pem: bytes, content: bytes) -> bytes:
    key = load_key(pem, "sa.key")
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


async def heartbeat(env: FleetEnv, name: str) -> str | None:
    return (await env.internal(name)).status.agent_status[0].last_received_heartbeat


@pytest.mark.parametrize("new", [token_credentials, certificate_credentials])
async def test_an_expired_credential_is_shown_and_a_new_file_is_read(
    env: FleetEnv, tmp_path: Path, new: NewCredentials
) -> None:
    name = env.new_name()
    credentials = await new(env, tmp_path, name)
    credentials.write(LONG_S)
    hub = load_kubeconfig(env.hub_cluster.kubeconfig)
    environ = {
        "MEMBER_CLUSTER_NAME": name,
        "HUB_SERVER_URL": hub.server,
        "HUB_CERTIFICATE_AUTHORITY": b64encode(hub.ca or b"").decode(),
        **credentials.environ,
    }
    async with (
        env.hub_running(threshold=THRESHOLD),
        fleet_process(
            "member",
            "agent",
            *credentials.flags,
            kubeconfig=env.member_cluster.kubeconfig,
            directory=tmp_path,
            environ=environ,
        ) as agent,
    ):
        await env.join(name, identity=credentials.identity)
        await env.wait_for(name, "Healthy", "True")
        credentials.write(SHORT_S)  # read although the other one is still valid
        lost = await env.wait_for(name, "Healthy", "Unknown", "HeartbeatLost")
        assert "heartbeat" in lost.message

        def reports() -> list[str]:
            lines = agent.lines("Failed to report status of member to the hub")
            return [each["reason"] for each in lines if "reason" in each]

        (reason, *_) = await until(reports)
        assert str(credentials.file) in reason
        assert "expired at" in reason
        joined = await env.condition(name, "Joined")
        assert joined is not None
        assert joined.status == "True"
        last = await heartbeat(env, name)
        credentials.write(LONG_S)
        await env.wait_for(name, "Healthy", "True")
        assert await heartbeat(env, name) != last
        assert agent.process.running
