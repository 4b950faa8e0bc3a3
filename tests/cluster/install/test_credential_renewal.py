"""The manager renews credentials that `join` made, with its own account, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.errors import Unauthorized
from kubeocean.install.apply import Applier, ApplyResult
from kubeocean.install.credentials import TokenClaims, read_token
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.roles import AddOn
from kubeocean.install.values import WorkerValues
from kubeocean.install.worker_objects import credential_secret
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.kinds import NAMESPACES, SECRETS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
from support.clocks import SetClock
from support.manager_env import SYSTEM, ManagerEnv
from support.wait import until

CONDITION = "CredentialValid"
DUE = timedelta(days=300)  # a token is valid for 365 days, and renewed in the last third


class Renewals:
    """A binding that `join` made, and a manager with a clock of its own."""

    def __init__(self, env: ManagerEnv, computing: Applier, worker: Applier) -> None:
        self.env = env
        self.computing = computing
        self.worker = worker
        self.clock = SetClock()

    async def join(self, **worker: object) -> list[tuple[str, ApplyResult]]:
        """Bind the worker; return the results of the apply of each kind of object."""
        values = WorkerValues(namespace=f"m-{self.env.name}", **worker)  # type: ignore[arg-type]
        request = JoinRequest(name=self.env.name, cluster_id=self.env.cluster_id, worker=values)
        access = load_kubeconfig(self.env.worker.kubeconfig)
        results: list[tuple[str, ApplyResult]] = []

        def report(body: Json, result: ApplyResult) -> None:
            results.append((body["kind"], result))

        await Join(request, self.computing, self.worker, access).run(report)
        self.env.made.append(self.env.name)
        return results

    async def secret(self) -> KubeconfigSecret:
        binding = await self.env.binding()
        return await self.computing.client.get(
            KUBECONFIG_SECRETS, binding.spec.secret_ref.name, SYSTEM
        )

    async def claims(self) -> TokenClaims:
        token = SecretAccess(await self.secret()).current().token
        claims = read_token(token.reveal() if token is not None else "")
        assert claims is not None
        return claims


@pytest.fixture
async def renewals(
    computing_cluster: Cluster,
    worker_cluster: Cluster,
    computing_applier: Applier,
    worker_applier: Applier,
    tmp_path: Path,
) -> AsyncIterator[Renewals]:
    account = await computing_cluster.service_account(SYSTEM, "kubeocean-manager")
    env = ManagerEnv(
        computing_cluster,
        worker_cluster,
        computing_applier.client,
        worker_applier.client,
        account,
        tmp_path,
    )
    yield Renewals(env, computing_applier, worker_applier)
    await env.clear()


async def test_a_credential_of_join_is_renewed_before_it_expires(renewals: Renewals) -> None:
    env, clock = renewals.env, renewals.clock
    await renewals.join()
    before, first = await renewals.secret(), await renewals.claims()
    async with env.managed(clock=clock):
        message = await env.wait_for_condition(CONDITION, "True", "RenewedByManager")
        assert str(text_of(first.ends)) in message
        assert (await renewals.secret()).resource_version == before.resource_version

        clock.offset = DUE

        async def renewed() -> TokenClaims | None:
            claims = await renewals.claims()
            return claims if claims.ends > first.ends else None

        claims = await until(renewed)
        clock.offset = timedelta(0)
        assert claims is not None
        assert (claims.account, claims.namespace) == ("kubeocean-syncer", f"m-{env.name}")
        assert claims.secret_uid == first.secret_uid

        async def shown() -> bool:
            status = (await env.binding()).status
            assert status.credential_expiration_time == text_of((await renewals.claims()).ends)
            return True

        await until(shown)
        assert (await env.condition(CONDITION))[:2] == ("True", "RenewedByManager")
        await env.wait_for_event("CredentialRenewed")

    # The new token works, a repeated join keeps it, and the owner revokes it as the first one.
    after = await renewals.secret()
    worker = Client(HttpTransport(SecretAccess(after)), cluster="worker")
    await worker.get(NAMESPACES, "kube-system")
    assert after.annotations[DEFAULT.token_expires] == text_of((await renewals.claims()).ends)
    assert ("Secret", ApplyResult.CHANGED) not in await renewals.join()
    anchor = credential_secret(WorkerValues(namespace=f"m-{env.name}"), env.name, "")["metadata"]
    secrets = (await renewals.worker.client.list(SECRETS, f"m-{env.name}")).items
    (stored,) = [each for each in secrets if each.name.startswith(anchor["name"])]
    await renewals.worker.client.delete(SECRETS, stored.name, stored.namespace, uid=stored.uid)

    async def revoked() -> bool:
        try:
            await worker.get(NAMESPACES, "kube-system")
        except Unauthorized:
            return True
        return False

    await until(revoked)
    await worker.close()


async def test_a_renewal_that_is_refused_is_a_condition_and_changes_nothing(
    renewals: Renewals,
) -> None:
    env, clock = renewals.env, renewals.clock
    await renewals.join(add_ons=(AddOn.VOLUMES,))
    before = await renewals.secret()
    clock.offset = DUE
    async with env.managed(clock=clock):
        message = await env.wait_for_condition(CONDITION, "False", "RenewalFailed")
        assert "serviceaccounts" in message
        assert f"kubeocean join {env.name} --kubeconfig FILE" in message
        await env.wait_for_event("RenewalFailed")
        await until(env.is_rolled_out)  # nothing else waits for a renewal
        assert (await env.condition("Connected"))[0] == "True"
    assert (await renewals.secret()).resource_version == before.resource_version
    posts = [
        each
        for each in env.worker.audit.requests()
        if each.subresource == "token" and each.namespace == f"m-{env.name}" and each.code == 403
    ]
    assert len(posts) == 1


async def test_a_kubeconfig_of_others_is_left_alone_and_its_expiry_shown(
    renewals: Renewals,
) -> None:
    env, clock = renewals.env, renewals.clock
    await env.bind(env.worker.kubeconfig.read_bytes())
    before = await renewals.secret()
    async with env.managed(clock=clock):
        await env.wait_for_condition(CONDITION, "True", "NotRenewed")
        assert (await env.binding()).status.credential_expiration_time
        clock.offset = timedelta(days=3650)
        message = await env.wait_for_condition(CONDITION, "False", "ExpiresSoon")
        assert f"put another kubeconfig into Secret {SYSTEM}/{env.name}" in message
    assert (await renewals.secret()).resource_version == before.resource_version
