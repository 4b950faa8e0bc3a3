"""Changes of replicas, certificates and credentials while sessions are open, and the shutdown."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json
from support.proxier_env import DOMAIN, ProxierEnv, Talk
from support.wait import until

TALKER = "i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.2; done"
ASKS = "echo ready; read x; echo got $x"


@pytest.fixture(scope="module", autouse=True)
async def web(proxier_env: ProxierEnv) -> str:
    await proxier_env.run("web", TALKER)
    return "web"


async def works(proxier_env: ProxierEnv) -> bool:
    return (await proxier_env.kubectl("exec", "web", "--", "echo", "hello")).text == "hello\n"


async def answers(talk: Talk) -> None:
    """Check that a session that was open before continues to its end."""
    talk.write(b"well\n")
    await talk.wait_for_output("got well")


async def test_sessions_work_again_soon_after_a_replica_was_killed(proxier_env: ProxierEnv) -> None:
    async with (
        proxier_env.proxier(name="first") as first,
        proxier_env.proxier(name="second", address="127.0.0.2"),
    ):
        assert await works(proxier_env)
        try:
            await first.process.kill()
            began = time.monotonic()
            await proxier_env.point_at("127.0.0.2")
            await until(lambda: works(proxier_env), within=5.0)
            assert time.monotonic() - began < 5.0
        finally:
            await proxier_env.point_at("127.0.0.1")


@pytest.fixture
async def tls_secret(proxier_env: ProxierEnv) -> AsyncIterator[str]:
    name = f"{proxier_env.name}-tls"
    body: Json = {"metadata": {"name": name, "namespace": "default"}, "type": "kubernetes.io/tls"}
    await proxier_env.computing_api.create(
        SECRETS, body | {"data": certificate(proxier_env, "first")}
    )
    yield name
    await proxier_env.computing_api.delete(SECRETS, name, "default", uid=None)


def certificate(proxier_env: ProxierEnv, name: str, *, clock: VirtualClock | None = None) -> Json:
    authority = LocalAuthority.load(proxier_env.computing.root / "pki", "ca", clock=clock)
    made = authority.issue(Subject(name, (), (name, "127.0.0.1"), server=True))
    pair = {"tls.crt": made.certificate, "tls.key": made.private_key}
    return {key: base64.b64encode(value).decode() for key, value in pair.items()}


async def certificate_name(proxier_env: ProxierEnv) -> str:
    """Return the name on the certificate of a new connection."""
    authority = (proxier_env.computing.root / "pki" / "ca.crt").read_text()
    context = ssl.create_default_context(cadata=authority)
    _, writer = await asyncio.open_connection("127.0.0.1", proxier_env.port, ssl=context)
    names = writer.get_extra_info("peercert")["subjectAltName"]
    writer.transport.abort()
    return str(next(value for kind, value in names if kind == "DNS"))


async def test_a_new_certificate_fails_no_session(proxier_env: ProxierEnv, tls_secret: str) -> None:
    async def put(data: Json) -> None:
        await proxier_env.computing_api.patch(
            SECRETS, tls_secret, MergePatch({"data": data}), "default"
        )

    flags = (f"--tls-secret-name={tls_secret}", "--tls-secret-namespace=default")
    async with (
        proxier_env.proxier(*flags) as replica,
        proxier_env.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as talk,
    ):
        await talk.wait_for_output("ready")
        assert await certificate_name(proxier_env) == "first"
        results: list[bool] = []

        async def run_sessions() -> None:
            while len(results) < 12:
                results.append(await works(proxier_env))

        async with asyncio.TaskGroup() as group:
            group.create_task(run_sessions())
            for name in ("second", "third"):
                await put(certificate(proxier_env, name))
                await until(lambda name=name: _is(proxier_env, name), waiting_for=name)
        assert all(results)
        # A certificate that is not valid yet, or none at all, is not used.
        early = VirtualClock()
        await early.advance(timedelta(days=3650).total_seconds())
        await put(certificate(proxier_env, "future", clock=early))
        await replica.wait_for_output("Rejected new serving certificate, kept the old one")
        await put({"tls.crt": base64.b64encode(b"nonsense").decode()})
        await replica.wait_for_output("Could not use new serving certificate")
        assert await certificate_name(proxier_env) == "third"
        assert await works(proxier_env)
        await answers(talk)


async def _is(proxier_env: ProxierEnv, name: str) -> bool:
    return await certificate_name(proxier_env) == name


RBAC = "apis/rbac.authorization.k8s.io/v1"
READS: tuple[Json, ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {
        "apiGroups": [""],
        "resources": ["pods/exec", "pods/attach", "pods/portforward"],
        "verbs": ["get", "create"],
    },
)


async def minimal_kubeconfig(proxier_env: ProxierEnv) -> Path:
    """Return the kubeconfig of a ServiceAccount with the rights that the proxier needs, and no
    others."""
    namespace, name = DOMAIN.worker_namespace, proxier_env.name
    kubeconfig = await proxier_env.worker.service_account(namespace, name)
    role: Json = {"metadata": {"name": name}, "rules": list(READS)}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding: Json = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    path = f"/{RBAC}/namespaces/{namespace}"
    await proxier_env.worker_api.request_json("POST", f"{path}/roles", body=role)
    await proxier_env.worker_api.request_json("POST", f"{path}/rolebindings", body=binding)
    return kubeconfig


async def test_new_credentials_for_the_worker_need_no_restart(proxier_env: ProxierEnv) -> None:
    """First those of a user without rights, so that their use shows."""
    async with (
        proxier_env.proxier() as replica,
        proxier_env.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as talk,
    ):
        await talk.wait_for_output("ready")
        pid = replica.process.pid
        try:
            await proxier_env.hand_over(proxier_env.worker.user("nobody"))

            async def refused() -> bool:
                answer = await proxier_env.kubectl("exec", "web", "--", "true")
                return answer.code != 0 and "does not permit" in answer.err

            await until(refused)
            await proxier_env.hand_over(await minimal_kubeconfig(proxier_env))
            await until(lambda: works(proxier_env))
            assert (await proxier_env.kubectl("logs", "web", "--tail=1")).code == 0
        finally:
            await proxier_env.hand_over(proxier_env.worker.kubeconfig)
        assert replica.process.pid == pid
        await answers(talk)


async def closed(proxier_env: ProxierEnv) -> bool:
    """Whether the port is closed."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", proxier_env.port)
    except OSError:
        return True
    writer.transport.abort()
    return False


async def test_a_shutdown_waits_for_sessions_and_then_cuts_them(proxier_env: ProxierEnv) -> None:
    async with (
        proxier_env.proxier("--drain-timeout=8s") as replica,
        proxier_env.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as polite,
        proxier_env.talking("logs", "-f", "web") as endless,
    ):
        await polite.wait_for_output("ready")
        await endless.wait_for_output("tick")
        began = time.monotonic()
        stopping = asyncio.create_task(replica.process.stop(within_s=25.0))
        await until(lambda: closed(proxier_env), waiting_for="no more connections to be taken")
        await answers(polite)
        assert await polite.ended() == 0
        assert not stopping.done()
        assert await stopping == 0
        assert 6.0 < time.monotonic() - began < 16.0
        lines = replica.lines("Served kubelet request")
        outcomes = {line["what"]: line["outcome"] for line in lines}
        assert outcomes["exec"] == "ended"
        assert outcomes["logs"] == "closed at the end of the process"


async def test_a_replica_without_sessions_ends_at_once(proxier_env: ProxierEnv) -> None:
    async with proxier_env.proxier() as replica:
        assert await works(proxier_env)
        assert (
            await proxier_env.kubectl("logs", "web", "--tail=1")
        ).code == 0  # its connection stays open
        began = time.monotonic()
        assert await replica.process.stop(within_s=20.0) == 0
        assert time.monotonic() - began < 8.0
