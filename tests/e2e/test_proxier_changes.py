"""What may change under a proxier's feet: replicas, certificates, credentials; and how it ends."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from harbours import DOMAIN, Harbour, Talk
from kubeocean.local.pki import Authority, Subject
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from waiting import until

TALKER = "i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.2; done"
ASKS = "echo ready; read x; echo got $x"


@pytest.fixture(scope="module", autouse=True)
async def web(harbour: Harbour) -> str:
    await harbour.run("web", TALKER)
    return "web"


async def works(harbour: Harbour) -> bool:
    return (await harbour.kubectl("exec", "web", "--", "echo", "hello")).text == "hello\n"


async def answers(talk: Talk) -> None:
    """A session that was there before goes on to its end."""
    talk.write(b"well\n")
    await talk.says("got well")


async def test_sessions_work_again_soon_after_a_replica_was_killed(harbour: Harbour) -> None:
    async with (
        harbour.proxier(name="first") as first,
        harbour.proxier(name="second", address="127.0.0.2"),
    ):
        assert await works(harbour)
        try:
            await first.process.kill()
            began = time.monotonic()
            await harbour.point_at("127.0.0.2")
            await until(lambda: works(harbour), within=5.0)
            assert time.monotonic() - began < 5.0
        finally:
            await harbour.point_at("127.0.0.1")


@pytest.fixture
async def tls_secret(harbour: Harbour) -> AsyncIterator[str]:
    name = f"{harbour.name}-tls"
    body: Json = {"metadata": {"name": name, "namespace": "default"}, "type": "kubernetes.io/tls"}
    await harbour.above.create(SECRETS, body | {"data": certificate(harbour, "first")})
    yield name
    await harbour.above.delete(SECRETS, name, "default", uid=None)


def certificate(harbour: Harbour, name: str, *, clock: VirtualClock | None = None) -> Json:
    authority = Authority.load(harbour.computing.root / "pki", "ca", clock=clock)
    made = authority.issue(Subject(name, (), (name, "127.0.0.1"), server=True))
    pair = {"tls.crt": made.certificate, "tls.key": made.private_key}
    return {key: base64.b64encode(value).decode() for key, value in pair.items()}


async def shown(harbour: Harbour) -> str:
    """The name on the certificate that a new connection sees."""
    authority = (harbour.computing.root / "pki" / "ca.crt").read_text()
    context = ssl.create_default_context(cadata=authority)
    _, writer = await asyncio.open_connection("127.0.0.1", harbour.port, ssl=context)
    names = writer.get_extra_info("peercert")["subjectAltName"]
    writer.transport.abort()
    return str(next(value for kind, value in names if kind == "DNS"))


async def test_a_new_certificate_fails_no_session(harbour: Harbour, tls_secret: str) -> None:
    async def put(data: Json) -> None:
        await harbour.above.patch(SECRETS, tls_secret, MergePatch({"data": data}), "default")

    flags = (f"--tls-secret-name={tls_secret}", "--tls-secret-namespace=default")
    async with (
        harbour.proxier(*flags) as replica,
        harbour.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as talk,
    ):
        await talk.says("ready")
        assert await shown(harbour) == "first"
        results: list[bool] = []

        async def visits() -> None:
            while len(results) < 12:
                results.append(await works(harbour))

        async with asyncio.TaskGroup() as group:
            group.create_task(visits())
            for name in ("second", "third"):
                await put(certificate(harbour, name))
                await until(lambda name=name: _is(harbour, name), what=name)
        assert all(results)
        # What does not hold, or is none, is not taken.
        early = VirtualClock()
        await early.advance(timedelta(days=3650).total_seconds())
        await put(certificate(harbour, "future", clock=early))
        await replica.says("Kept old certificate")
        await put({"tls.crt": base64.b64encode(b"nonsense").decode()})
        await replica.says("Cannot use certificate")
        assert await shown(harbour) == "third"
        assert await works(harbour)
        await answers(talk)


async def _is(harbour: Harbour, name: str) -> bool:
    return await shown(harbour) == name


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


async def least(harbour: Harbour) -> Path:
    """The kubeconfig of a service account, with a token, that may do no more than is needed."""
    namespace, name = DOMAIN.worker_namespace, harbour.name
    kubeconfig = await harbour.worker.service_account(namespace, name)
    role: Json = {"metadata": {"name": name}, "rules": list(READS)}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding: Json = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    path = f"/{RBAC}/namespaces/{namespace}"
    await harbour.below.request_json("POST", f"{path}/roles", body=role)
    await harbour.below.request_json("POST", f"{path}/rolebindings", body=binding)
    return kubeconfig


async def test_new_credentials_for_the_worker_need_no_restart(harbour: Harbour) -> None:
    """Nobody's first, so that it is seen that they are used."""
    async with (
        harbour.proxier() as replica,
        harbour.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as talk,
    ):
        await talk.says("ready")
        pid = replica.process.pid
        try:
            await harbour.hand_over(harbour.worker.user("nobody"))

            async def refused() -> bool:
                answer = await harbour.kubectl("exec", "web", "--", "true")
                return answer.code != 0 and "does not let us" in answer.err

            await until(refused)
            await harbour.hand_over(await least(harbour))
            await until(lambda: works(harbour))
            assert (await harbour.kubectl("logs", "web", "--tail=1")).code == 0
        finally:
            await harbour.hand_over(harbour.worker.kubeconfig)
        assert replica.process.pid == pid
        await answers(talk)


async def closed(harbour: Harbour) -> bool:
    """Whether nobody is let in any more."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", harbour.port)
    except OSError:
        return True
    writer.transport.abort()
    return False


async def test_sessions_are_let_end_and_then_cut(harbour: Harbour) -> None:
    async with (
        harbour.proxier("--drain-timeout=8s") as replica,
        harbour.talking("exec", "-i", "web", "--", "sh", "-c", ASKS) as polite,
        harbour.talking("logs", "-f", "web") as endless,
    ):
        await polite.says("ready")
        await endless.says("tick")
        began = time.monotonic()
        stopping = asyncio.create_task(replica.process.stop(within_s=25.0))
        await until(lambda: closed(harbour), what="no more connections to be taken")
        await answers(polite)
        assert await polite.ended() == 0
        assert not stopping.done()
        assert await stopping == 0
        assert 6.0 < time.monotonic() - began < 16.0
        lines = replica.lines("Served kubelet request")
        outcomes = {line["what"]: line["outcome"] for line in lines}
        assert outcomes["exec"] == "ended"
        assert outcomes["logs"] == "cut at the end of the process"


async def test_a_replica_without_sessions_ends_at_once(harbour: Harbour) -> None:
    async with harbour.proxier() as replica:
        assert await works(harbour)
        assert (await harbour.kubectl("logs", "web", "--tail=1")).code == 0  # its connection stays
        began = time.monotonic()
        assert await replica.process.stop(within_s=20.0) == 0
        assert time.monotonic() - began < 8.0
