"""Pods that try to leave their container: each is refused by the syncer and by the worker.

The worker was joined as `kubeocean join` does by default, and has a real kubelet. A pod within the
standard runs there. Its physical pod, as the syncer created it, is the template of the attempts
with the binding's own credential, so that nothing but the attempt itself can be refused.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS, PodSecurityLevel
from kubeocean.api.policies import PolicySpec
from kubeocean.errors import AlreadyExists, Forbidden
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.values import WorkerValues
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.local.real_nodes.node import RealNode
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NAMESPACES, PODS, SECRETS_WITH_DATA
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import SecretAccess
from support.control_planes import applier
from support.crds import install_our_kinds
from support.pod_env import make_namespace, usable
from support.pod_security_cases import CASES, SecurityCase, restricted_pod
from support.syncer_process import syncer
from support.wait import until

ATTEMPTS = [case for case in CASES if case.level is PodSecurityLevel.PRIVILEGED]
CREATED = "PhysicalPodCreated"
SYSTEM = "kubeocean-system"
WHY = "the binding does not allow it"


@dataclass
class Joined:
    """A binding with the default limits, whose syncer has a pod run on the real node."""

    computing: Client
    borrower: Client  # with the credential of the binding
    namespace: str
    mount: str
    template: Json  # the physical pod that runs

    async def conditions(self, name: str) -> dict[str, Json]:
        pod = await self.computing.get(PODS, name, self.namespace, keep_raw=True)
        return {each["type"]: each for each in pod.content()["status"].get("conditions", ())}


def runnable() -> Json:
    """Return a pod within the baseline standard that a real node runs."""
    pod = restricted_pod()
    del pod["spec"]["securityContext"]["runAsNonRoot"]
    for kind, script in (("initContainers", "true"), ("containers", "sleep 3600")):
        (container,) = pod["spec"][kind]
        container |= {"image": BUSYBOX, "imagePullPolicy": "Never"}
        container["command"] = ["sh", "-c", script]
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    return pod


def attempt(case: SecurityCase, pod: Json, name: str) -> Json:
    """Return a copy of a pod with the change of a case."""
    changed = copy.deepcopy(pod)
    changed["metadata"] = {"name": name, "annotations": {}} | changed["metadata"] | {"name": name}
    case.change(changed)
    return changed


def name_of(case: SecurityCase) -> str:
    return f"attempt-{ATTEMPTS.index(case)}"


@pytest.fixture(scope="module")
async def joined(
    cluster: Cluster,
    client: Client,
    real_cluster: Cluster,
    real_client: Client,
    real_node: RealNode,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Joined]:
    name = f"e{uuid.uuid4().hex[:8]}"
    mount = f"m-{name}"
    await install_our_kinds(client)
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    request = JoinRequest(name=name, worker=WorkerValues(namespace=mount), lease=PolicySpec(name))
    async with applier(cluster) as computing_applier, applier(real_cluster) as worker_applier:
        await Join(
            request, computing_applier, worker_applier, load_kubeconfig(real_cluster.kubeconfig)
        ).run()
    level = MergePatch({"spec": {"podPrivileges": {"level": "baseline"}}})
    await client.patch(CLUSTER_BINDINGS, name, level)
    await make_namespace(client, name)
    await usable(client, name)
    secret = await client.get(SECRETS_WITH_DATA, f"{name}-kubeconfig", SYSTEM)
    borrower = Client(HttpTransport(SecretAccess(secret)), cluster="worker")
    server = real_node.reach(int(cluster.server.rpartition(":")[2]))
    async with syncer(
        "escapes",
        f"--cluster-binding-name={name}",
        f"--kubernetes-service-address={server}",
        f"--dns-service-address={server.partition(':')[0]}",
        kubeconfig=cluster.kubeconfig,
        directory=tmp_path_factory.mktemp("escapes"),
    ):
        vnode = f"vnode-{name}-{real_node.name}"
        control = runnable()
        control["spec"] |= {"nodeName": vnode, "tolerations": [{"operator": "Exists"}]}
        await client.create(PODS, control | {"metadata": {"name": "control"}}, namespace=name)

        async def runs() -> bool:
            pod = await client.get(PODS, "control", name)
            return pod.status.phase == "Running"

        await until(runs)
        (running,) = (await real_client.list(PODS, mount, keep_raw=True)).items
        for case in ATTEMPTS:
            await client.create(PODS, attempt(case, control, name_of(case)), namespace=name)
        content = running.content()
        kept = ("labels", "annotations")
        template = {
            "metadata": {key: content["metadata"][key] for key in kept},
            "spec": {key: value for key, value in content["spec"].items() if key != "nodeName"},
        }
        yield Joined(client, borrower, name, mount, template)
        await borrower.close()


def test_there_are_sixty_attempts() -> None:
    assert len({case.name for case in ATTEMPTS}) >= 60


async def test_a_pod_within_the_standard_runs_and_is_admitted(
    joined: Joined, real_client: Client
) -> None:
    (running,) = (await real_client.list(PODS, joined.mount)).items
    assert running.status.phase == "Running"
    pod = joined.template | {"metadata": joined.template["metadata"] | {"name": "copy"}}
    # Not created: the syncer deletes physical pods without a virtual pod.
    await joined.borrower.create(PODS, pod, namespace=joined.mount, dry_run=True)


@pytest.mark.parametrize("case", ATTEMPTS, ids=lambda case: case.name)
async def test_an_attempt_is_refused_with_the_field_and_the_reason(
    joined: Joined, case: SecurityCase
) -> None:
    async def refused() -> Json | None:
        return (await joined.conditions(name_of(case))).get(CREATED)

    condition = await until(refused)
    assert condition is not None
    assert condition["status"] == "False"
    assert WHY in condition["message"], condition
    assert condition["message"].startswith(("spec.", "metadata.")), condition


@pytest.mark.parametrize("case", ATTEMPTS, ids=lambda case: case.name)
async def test_an_attempt_with_the_credential_of_the_binding_is_refused_by_the_worker(
    joined: Joined, case: SecurityCase
) -> None:
    pod = attempt(case, joined.template, name_of(case))
    with pytest.raises(Forbidden, match="violates PodSecurity"):
        await joined.borrower.create(PODS, pod, namespace=joined.mount)


async def test_no_attempt_was_created_in_the_worker(joined: Joined, real_client: Client) -> None:
    names = {pod.name for pod in (await real_client.list(PODS, joined.mount)).items}
    assert len(names) == 1, names
