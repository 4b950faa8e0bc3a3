"""A hub with admission, and users of every kind who try to change objects.

Attempts are dry runs: API servers call the webhooks and store nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kubeocean.api.fleet.names import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    GUARD_RAIL_WEBHOOKS,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)
from kubeocean.errors import AlreadyExists, ApiError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.transport import Request
from support.fleet_env import FleetEnv
from support.fleet_process import HASTY, fleet_process
from support.servers import unused
from support.syncer_process import SyncerProcess
from support.wait import until

__all__ = ["REGISTERED", "TESTERS", "AdmissionEnv", "Attempt", "peer_certificate", "registered"]

_GROUP = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io/v1"
TESTERS = "admission-testers"  # a group that RBAC lets do everything


def _resource(kind: str, plural: str) -> Resource[Untyped]:
    return Resource(_GROUP, "v1", plural, kind, False, Untyped)


MUTATING = _resource("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
VALIDATING = _resource("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
POLICIES = _resource("ValidatingAdmissionPolicy", "validatingadmissionpolicies")
BINDINGS = _resource("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
REGISTERED = (
    (MUTATING, MUTATING_WEBHOOKS),
    (VALIDATING, VALIDATING_WEBHOOKS),
    (VALIDATING, GUARD_RAIL_WEBHOOKS),
    *((POLICIES, name) for name in ADMISSION_POLICIES),
    *((BINDINGS, name) for name in ADMISSION_POLICY_BINDINGS),
)


@dataclass(frozen=True)
class Attempt:
    """A request that a user tries as a dry run."""

    method: str
    path: str
    body: Json | None = None
    content_type: str = "application/json"

    @classmethod
    def patch(cls, path: str, body: Json) -> Attempt:
        return cls("PATCH", path, body, "application/merge-patch+json")

    async def by(self, client: Client) -> str:
        """Return why the request was refused; empty if it was allowed."""
        query = (("dryRun", "All"),)
        body = None if self.body is None else msgspec.json.encode(self.body)
        request = Request(
            self.method, self.path, query=query, body=body, content_type=self.content_type,
            timeout_s=30.0,
        )  # fmt: skip
        response = await client.transport.send(request)
        if 200 <= response.status < 300:
            return ""
        return response.body.decode()

    async def refused(self, client: Client, text: str) -> None:
        """Wait until the request is refused with a text: servers learn of webhooks in a moment."""

        async def is_refused() -> bool:
            reason = await self.by(client)
            assert text in reason, reason
            return True

        await until(is_refused, waiting_for=text)


@dataclass
class AdmissionEnv:
    """A hub's control plane, and clients of users."""

    env: FleetEnv
    directory: Path
    clients: dict[str, Client] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def start(cls, env: FleetEnv, directory: Path) -> AsyncIterator[AdmissionEnv]:
        """Let testers do everything; at the end, remove everything that was registered."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        body = {
            "apiVersion": _RBAC,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": TESTERS},
            "roleRef": role | {"name": "cluster-admin"},
            "subjects": [{"kind": "Group", "name": TESTERS, "apiGroup": role["apiGroup"]}],
        }
        path = f"/apis/{_RBAC}/clusterrolebindings"
        with suppress(AlreadyExists):
            await env.hub.request("POST", path, body=body)
        async with AsyncExitStack() as stack:
            made = cls(env, directory)
            stack.push_async_callback(made.close)
            stack.push_async_callback(unregister, env.hub)
            yield made

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()

    def client(self, user: str, groups: Sequence[str] = (TESTERS,)) -> Client:
        """Return the client of a user with these groups."""
        if user not in self.clients:
            kubeconfig = self.env.hub_cluster.user(user, groups)
            self.clients[user] = self.env.hub_cluster.client(kubeconfig=kubeconfig)
        return self.clients[user]

    @asynccontextmanager
    async def hub(
        self, name: str, *flags: str, port: int = 0, url_port: int = 0
    ) -> AsyncIterator[SyncerProcess]:
        """Run `kubeocean fleet hub` with webhooks, until the block ends."""
        port = port or unused()
        words = (
            *HASTY,
            "--enable-webhook",
            f"--webhook-bind-address=127.0.0.1:{port}",
            f"--webhook-url=https://127.0.0.1:{url_port or port}",
            *flags,
        )
        async with self.process(name, *words) as process:
            yield process

    @asynccontextmanager
    async def process(self, name: str, *flags: str) -> AsyncIterator[SyncerProcess]:
        """Run `kubeocean fleet hub` with these flags, until the block ends and it has stopped."""
        async with fleet_process(
            "hub", name, *flags, kubeconfig=self.env.hub_account, directory=self.directory
        ) as process:
            await until(process.is_ready, waiting_for=f"{name} is ready")
            yield process
            await process.process.stop()


async def registered(hub: Client) -> set[str]:
    """Return the names of all objects of admission that exist."""
    names = set()
    for resource, name in REGISTERED:
        with suppress(NotFound):
            names.add((await hub.get(resource, name)).name)
    return names


async def unregister(
    hub: Client, resources: Iterable[tuple[Resource[Untyped], str]] = REGISTERED
) -> None:
    """Delete all objects of admission."""
    for resource, name in resources:
        with suppress(NotFound, ApiError):
            await hub.delete(resource, name, uid=None)


async def peer_certificate(port: int) -> bytes:
    """Return the certificate, DER, that a server on this machine presents."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(
            binary_form=True
        )
        return certificate or b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
