"""Stages: a binding with a syncer at work, on which things go wrong one at a time."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import ApiError, NotFound
from kubeocean.explaining.bindingreads import read_binding
from kubeocean.explaining.bindings import explain_binding
from kubeocean.explaining.nodereads import read_node
from kubeocean.explaining.nodes import explain_node
from kubeocean.explaining.podreads import read_pod
from kubeocean.explaining.pods import explain_pod
from kubeocean.explaining.reading import Reader
from kubeocean.explaining.story import Rule, Story
from kubeocean.runtime.kinds import NAMESPACES, NODES, SECRETS, Node
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.app import Syncer
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from oceans import Sea
from podseas import GIVEN, make_namespace, usable
from waiting import until

__all__ = ["Stage", "refuses"]


@dataclass
class Stage(Sea):
    """A binding, one node of its worker, and namespaces of its own on both sides."""

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
        """Everything but a policy."""
        self.namespace = f"v-{self.name}"
        await self.above.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await make_namespace(self.below, self.mount)
        await self.bind(mountNamespace=self.mount, directScheduling=direct, **spec)
        await self.above.patch(
            CLUSTER_BINDINGS, self.name, MergePatch({"status": {"phase": "Ready"}}),
            subresource="status",
        )  # fmt: skip
        await self.add_node("n")
        await usable(self.above, self.namespace)

    @asynccontextmanager
    async def lending(self, **spec: object) -> AsyncIterator[Syncer]:
        """A policy, and a syncer at work that has made the virtual node."""
        await self.lend(**spec)
        async with self.working() as syncer:
            await until(self.is_lent)
            yield syncer

    def working(self) -> AbstractAsyncContextManager[Syncer]:
        """A syncer at work."""
        return self.syncing(mount=self.mount, given=GIVEN)

    async def is_lent(self) -> Node | None:
        try:
            return await self.above.get(NODES, self.vnode)
        except NotFound:
            return None

    # Pods

    async def pod(self, name: str = "web", *, bound: bool = True, **spec: object) -> VirtualPod:
        """A pod above that is meant for this stage's node."""
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
        return await self.above.create(VIRTUAL_PODS, body)

    async def ppods(self) -> list[PhysicalPod]:
        """Ours in the worker."""
        managed = "kubeocean.io/managed-by=kubeocean"
        return (await self.below.list(PHYSICAL_PODS, self.mount, labels=managed)).items

    async def status_below(self, **status: object) -> PhysicalPod:
        """What a kubelet, or a scheduler, would say of the only pod there is."""
        (ppod,) = await until(self.ppods)
        return await self.below.patch(
            PHYSICAL_PODS, ppod.name, MergePatch({"status": status}), self.mount,
            subresource="status",
        )  # fmt: skip

    async def cut(self, kubeconfig: bytes = b"") -> None:
        """Give the binding credentials that lead elsewhere: nowhere, unless others are given."""
        content = kubeconfig or self.worker.kubeconfig.read_bytes().replace(
            self.worker.server.encode(), b"https://127.0.0.1:1"
        )
        data = {"kubeconfig": base64.b64encode(content).decode()}
        await self.above.patch(SECRETS, self.name, MergePatch({"data": data}), "default")

    # Stories

    async def of_pod(self, name: str = "web") -> Story:
        async with AsyncExitStack() as stack:
            reader = Reader(self.above, stack)
            return explain_pod(await read_pod(reader, Key(self.namespace, name)))

    async def of_node(self, name: str = "") -> Story:
        async with AsyncExitStack() as stack:
            reader = Reader(self.above, stack)
            binding = "" if name.startswith("vnode-") else self.name
            return explain_node(await read_node(reader, name or self.vnode, binding))

    async def of_binding(self) -> Story:
        async with AsyncExitStack() as stack:
            return explain_binding(await read_binding(Reader(self.above, stack), self.name))

    async def pod_is(self, rule: Rule, name: str = "web") -> Story:
        """The story of a pod, once that rule decides."""

        async def decided() -> Story:
            story = await self.of_pod(name)
            assert story.rule is rule, (story.rule, story.verdict, story.unread)
            return story

        return await until(decided, within=30)


async def refuses(stage: Stage, word: str) -> bool:
    """Whether the worker says no to a pod, in these words."""
    probe: Json = {
        "metadata": {"name": f"probe-{uuid.uuid4().hex[:6]}"},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }
    try:
        await stage.below.create(PHYSICAL_PODS, probe, namespace=stage.mount, dry_run=True)
    except ApiError as error:
        return word in str(error)
    return False
