"""A binding with a syncer at work, on which tests stage situations and faults."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import ApiError, NotFound
from kubeocean.inspect.explain.binding import explain_binding
from kubeocean.inspect.explain.node import explain_node
from kubeocean.inspect.explain.pod import explain_pod
from kubeocean.inspect.explain.reading import ExplainReader
from kubeocean.inspect.explain.report import Explanation, ExplanationRule
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES, NODES, SECRETS, Node
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from support.binding_env import BindingEnv
from support.pod_env import GIVEN, make_namespace, usable
from support.wait import until

__all__ = ["DoctorEnv", "refuses"]


@dataclass
class DoctorEnv(BindingEnv):
    """A binding, one node of its worker, and namespaces of its own in both clusters."""

    namespace: str = ""

    @property
    def mount(self) -> str:
        return f"m-{self.name}"

    @property
    def pnode(self) -> str:
        return f"{self.name}-n"

    @property
    def vnode(self) -> str:
        return naming.virtual_node(self.cluster_id, self.pnode)

    async def open(self, *, direct: bool = True, **spec: object) -> None:
        """Create everything but a policy."""
        self.namespace = f"v-{self.name}"
        await self.computing_api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await make_namespace(self.worker_api, self.mount)
        await self.bind(mountNamespace=self.mount, directScheduling=direct, **spec)
        await self.computing_api.patch(
            CLUSTER_BINDINGS, self.name, MergePatch({"status": {"phase": "Ready"}}),
            subresource="status",
        )  # fmt: skip
        await self.add_node("n")
        await usable(self.computing_api, self.namespace)

    @asynccontextmanager
    async def lending(self, **spec: object) -> AsyncIterator[Syncer]:
        """Run a syncer with a policy, once it has created the virtual node."""
        await self.lend(**spec)
        async with self.working() as syncer:
            await until(self.is_lent)
            yield syncer

    def working(self) -> AbstractAsyncContextManager[Syncer]:
        """Run a syncer."""
        return self.syncing(mount=self.mount, given=GIVEN)

    async def is_lent(self) -> Node | None:
        try:
            return await self.computing_api.get(NODES, self.vnode)
        except NotFound:
            return None

    # Pods

    async def pod(self, name: str = "web", *, bound: bool = True, **spec: object) -> VirtualPod:
        """Create a virtual pod for the node of this environment."""
        where = {"nodeName": self.vnode} if bound else {"nodeSelector": self.label}
        body = {
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "containers": [{"name": "c", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                **where,
                **spec,
            },
        }
        return await self.computing_api.create(VIRTUAL_PODS, body)

    async def ppods(self) -> list[PhysicalPod]:
        """Return our pods in the worker."""
        managed = "kubeocean.io/managed-by=kubeocean"
        return (await self.worker_api.list(PHYSICAL_PODS, self.mount, labels=managed)).items

    async def status_below(self, **status: object) -> PhysicalPod:
        """Write the status of the only physical pod, as a kubelet or a scheduler would."""
        (ppod,) = await until(self.ppods)
        return await self.worker_api.patch(
            PHYSICAL_PODS, ppod.name, MergePatch({"status": status}), self.mount,
            subresource="status",
        )  # fmt: skip

    async def cut(self, kubeconfig: bytes = b"") -> None:
        """Set another kubeconfig of the binding; by default one of a server that does not exist."""
        content = kubeconfig or self.worker.kubeconfig.read_bytes().replace(
            self.worker.server.encode(), b"https://127.0.0.1:1"
        )
        data = {"kubeconfig": base64.b64encode(content).decode()}
        await self.computing_api.patch(SECRETS, self.name, MergePatch({"data": data}), "default")

    # Explanations

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ExplainReader]:
        reader = ExplainReader(self.computing_api)
        try:
            yield reader
        finally:
            await reader.close()

    async def of_pod(self, name: str = "web") -> Explanation:
        async with self.reading() as reader:
            return explain_pod(await reader.pod(Key(self.namespace, name)))

    async def of_node(self, name: str = "") -> Explanation:
        async with self.reading() as reader:
            binding = "" if name.startswith("vnode-") else self.name
            return explain_node(await reader.node(name or self.vnode, binding))

    async def of_binding(self) -> Explanation:
        async with self.reading() as reader:
            return explain_binding(await reader.binding_details(self.name))

    async def pod_is(self, rule: ExplanationRule, name: str = "web") -> Explanation:
        """Return the explanation of a pod, once that rule decides."""

        async def decided() -> Explanation:
            explanation = await self.of_pod(name)
            assert explanation.rule is rule, (explanation.rule, explanation.verdict)
            return explanation

        return await until(decided, within=30)


async def refuses(stage: DoctorEnv, word: str) -> bool:
    """Return whether the worker refuses a pod with this word in its message."""
    probe: Json = {
        "metadata": {"name": f"probe-{uuid.uuid4().hex[:6]}"},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }
    try:
        await stage.worker_api.create(PHYSICAL_PODS, probe, namespace=stage.mount, dry_run=True)
    except ApiError as error:
        return word in str(error)
    return False
