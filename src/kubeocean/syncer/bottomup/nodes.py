"""Nodes: each of the worker's nodes that is lent has its virtual node, exactly so and exactly then.

The key is the name of the worker's node; for a virtual node that is named after none, its own. A
reconcile decides by `lending`, forges what should be, and writes the difference. While the worker
does not answer nothing is decided, unless the whole binding goes. Before a virtual node is taken
away because something is missing, the server is asked whether it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.ownership import may_be_ours
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLimit
from kubeocean.api.reasons import NodeEvent
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.capacity import Capacity, base_of, offer
from kubeocean.leasing.plans import Plan
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.report import report_of
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.situation import Situation
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.bottomup.book import Book
from kubeocean.syncer.bottomup.counting import Counting
from kubeocean.syncer.bottomup.drain import Unconfirmed
from kubeocean.syncer.bottomup.guests import Guests
from kubeocean.syncer.bottomup.lending import Hold, Ignore, Lend, TakeBack, decide
from kubeocean.syncer.bottomup.ports import ProxierPorts
from kubeocean.syncer.bottomup.reclaims import Reclaims
from kubeocean.syncer.forge import nodes as forge
from kubeocean.syncer.podviews import VirtualPod
from kubeocean.syncer.world import World

__all__ = ["Nodes"]

WORKERS = 40  # what keeps an API server busy while a thousand nodes are made
_LOOK_AGAIN_S = 1.0
_STRAY = "stray"  # in place of a namespace: the name is that of a virtual node, whoever it is for

_log = get_logger(__name__)
T = TypeVar("T")


class Nodes:
    """The virtual nodes of one binding."""

    def __init__(
        self,
        world: World,
        book: Book,
        guests: Guests,
        reclaims: Reclaims,
        unconfirmed: Unconfirmed,
    ) -> None:
        self._world = world
        self._book = book
        self._guests = guests
        self._reclaims = reclaims
        self._unconfirmed = unconfirmed
        self._ports = ProxierPorts(world.domain)
        self._may_mark = True
        self.controller: Controller[Key] = Controller(
            f"node-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.counting = Counting(
            lambda pod: may_be_ours(pod, ids=world.ids, domain=world.domain),
            self._enqueue,
            offer=self._offer,
        )
        self._follow()

    # What makes us look

    def _follow(self) -> None:
        world = self._world
        world.vnodes.on_change(self._ports.follow)
        world.counted.on_change(self.counting.follow)
        world.pnodes.on_change(lambda old, new: self._enqueue(_either(old, new).name))
        world.vnodes.on_change(self._vnode_changed)
        world.vpods.on_change(lambda old, new: self._guest_changed(_either(old, new)))
        world.proxiers.on_change(lambda old, new: self.enqueue_all())
        world.bindings.on_change(self._binding_changed)
        world.reach.on_change(lambda answers: self.enqueue_all())

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        # What it says of itself concerns no node.
        if old is None or new is None or (old.spec, old.deleting) != (new.spec, new.deleting):
            self.enqueue_all()

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        vnode = _either(old, new)
        if new is None:
            self._reclaims.gone(vnode.name)
            self._guests.forget(vnode.name)
        self._enqueue_owner(vnode)

    def enqueue_all(self) -> None:
        """Something changed that concerns every node."""
        for pnode in self._world.pnodes.items():
            self._enqueue(pnode.name)
        for vnode in self._world.vnodes.items():
            self._enqueue_owner(vnode)

    def _enqueue(self, pnode: str) -> None:
        self.controller.enqueue(Key("", pnode))

    def _enqueue_owner(self, vnode: Node) -> None:
        if self._strays(vnode):
            self.controller.enqueue(Key(_STRAY, vnode.name))
        else:
            self._enqueue(self._world.pnode_of(vnode))

    def _strays(self, vnode: Node) -> bool:
        """Whether a virtual node says that it is for one that it cannot be for."""
        return self._world.vnode_name(self._world.pnode_of(vnode)) != vnode.name

    def _guest_changed(self, pod: VirtualPod) -> None:
        """Who is on a node matters while it is taken back."""
        world = self._world
        node = world.vnodes.get(Key("", pod.spec.node_name))
        if node is None:
            return
        leaving = {world.domain.taint_out_of_time_windows, world.domain.taint_vnode_deleting}
        if node.deleting or any(taint.key in leaving for taint in node.spec.taints or ()):
            self._enqueue_owner(node)

    def _offer(self, pnode: str) -> Amounts | None:
        vnode = self._world.vnodes.get(Key("", self._world.vnode_name(pnode)))
        if vnode is None or vnode.status.allocatable is None:
            return None
        amounts = vnode.status.allocatable.items()
        return {resource: Quantity.parse(amount) for resource, amount in amounts}

    async def _caught_up(self, key: Key) -> bool:
        world = self._world
        if not await world.vnodes.caught_up(self._vnode_key(key)):
            return False
        # A worker that does not answer will not show us what we wrote, and is not decided from.
        return not world.reach.answers or await world.pnodes.caught_up(key)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self._world
        binding = world.binding
        ending = binding is not None and binding.deleting
        if not world.reach.answers and not ending:
            return Done()  # we are called again when it answers
        if not (world.synced if world.reach.answers else world.computing_synced):
            return After(_LOOK_AGAIN_S)
        pnode = world.pnodes.get(key)
        vnode = world.vnodes.get(self._vnode_key(key))
        if vnode is not None and vnode.deleting:
            return await self._let_go(vnode)
        if key.namespace == _STRAY and vnode is not None and not self._strays(vnode):
            self._enqueue_owner(vnode)
            return Done()

        same = vnode is None or pnode is None or self._stands_for(vnode, pnode)
        decision = decide(
            pnode if same else None,
            applied=self._applied(vnode),
            binding=binding,
            candidates=self._book.candidates(),
            now=world.clock.now(),
        )
        match decision:
            case Lend():
                assert pnode is not None
                return await self._lend(pnode, vnode, decision)
            case TakeBack():
                assert vnode is not None
                return await self._take_back(key.name, vnode, decision)
            case Hold(why=why):
                return Stuck("PolicyInvalid", why)
            case Ignore():
                await self._unmark(pnode)
                return Done()

    async def _lend(self, pnode: Node, vnode: Node | None, decision: Lend) -> Outcome:
        world, policy = self._world, decision.policy.name
        name = world.vnode_name(pnode.name)
        if vnode is None and not self._is_held(policy):
            # Who deletes it now would take its rules along; we are called again when we hold it.
            return Done()
        situation = self._guests.situation(
            name,
            vnode,
            cause=decision.cause,
            rules=decision.rules,
            policy=policy,
            since=decision.since,
        )
        to_do = plan(situation)
        lent = self._forge(pnode, name, decision, to_do)
        if vnode is None:
            # The rest follows when it shows in the cache: first all nodes, then all labels.
            return await self._create(lent, pnode)
        await self._write(vnode, forge.changes(vnode.content(), lent, now=world.now_text()))
        await self._carry_out(to_do, situation, name, policy)
        await self._mark(pnode, policy)
        return self._again(to_do.again_at)

    async def _carry_out(self, to_do: Plan, situation: Situation, vnode: str, policy: str) -> None:
        """Do what is due with the pods, and note how it went."""
        tried = await self._guests.carry_out(to_do, vnode, policy)
        cause, rules = situation.cause, situation.rules
        if cause is None:
            self._reclaims.lent(vnode, policy)
            return
        if tried:
            seen = self._guests.situation(
                vnode, None, cause=cause, rules=rules, policy=policy, since=situation.rules_since
            )
            to_do = plan(replace(seen, taints=to_do.taints))
        self._reclaims.note(policy, report_of(vnode, cause, rules, to_do))

    def _forge(self, pnode: Node, name: str, decision: Lend, to_do: Plan) -> forge.Lent:
        world, terms = self._world, decision.policy.terms
        binding = world.binding
        assert binding is not None
        return forge.Lent(
            pnode=pnode.content(),
            vnode=name,
            binding=world.binding_name,
            cluster_id=world.cluster_id,
            policy=decision.policy.name,
            details=_details(decision.policy.name, terms.spec.resource_limits or ()),
            offered=self._capacity(pnode, decision).offered,
            default_taint=not binding.spec.disable_node_default_taint,
            reclaim_taints=to_do.taints,
            unschedulable=to_do.unschedulable,
            proxier_ip=world.proxier_ip(),
            proxier_port=self._ports.of(name),
            metrics_port=world.metrics_port,
            domain=world.domain,
        )

    def _capacity(self, pnode: Node, decision: Lend) -> Capacity:
        usage = self.counting.of(pnode.name)
        base = base_of(pnode.status.allocatable, pnode.status.capacity)
        limits = decision.policy.terms.limits
        return offer(base, others=usage.others, ours=usage.ours, limits=limits)

    # Writing the virtual node

    async def _create(self, lent: forge.Lent, pnode: Node) -> Outcome:
        world = self._world
        try:
            made = await world.computing.create(NODES, forge.forge(lent, now=world.now_text()))
        except AlreadyExists:
            return await self._name_taken(lent.vnode)
        world.vnodes.wrote(made)
        _log.info("Created virtual node", node=made.name, physical=pnode.name, policy=lent.policy)
        return Done()

    async def _name_taken(self, name: str) -> Outcome:
        there = await self._world.computing.get(NODES, name)
        domain = self._world.domain
        if there.labels.get(domain.cluster_binding) == self._world.binding_name:
            return After(_LOOK_AGAIN_S)  # it is ours; the cache is behind
        message = f"node {name} belongs to somebody else"
        self._world.events.emit(
            reference(NODES, there), "Warning", NodeEvent.NAME_TAKEN, f"Kubeocean: {message}"
        )
        return Stuck(NodeEvent.NAME_TAKEN, message)

    async def _write(self, vnode: Node, change: forge.Change) -> None:
        world, version = self._world, vnode.resource_version
        for body, subresource in ((change.main, ""), (change.status, "status")):
            if not body:
                continue
            metadata = body.get("metadata", {}) | {"resourceVersion": version}
            written = await world.computing.patch(
                NODES,
                vnode.name,
                MergePatch(body | {"metadata": metadata}),
                subresource=subresource,
            )
            world.vnodes.wrote(written)
            version = written.resource_version

    # Taking it back

    async def _take_back(self, pnode: str, vnode: Node, decision: TakeBack) -> Outcome:
        world = self._world
        if not await self._is_true(pnode, vnode, decision):
            return After(_LOOK_AGAIN_S)
        policy = decision.policy.name if decision.policy else self._applied(vnode) or ""
        situation = self._guests.situation(
            vnode.name,
            vnode,
            cause=decision.cause,
            rules=decision.rules,
            policy=policy,
            since=decision.since,
        )
        to_do = plan(situation)
        if to_do.remove_node:
            return await self._remove(pnode, vnode, decision.cause)
        notice = forge.notice(vnode.content(), to_do.taints, to_do.unschedulable, world.domain)
        if notice:
            reason = f"it is taken back: {decision.cause}"
            world.events.emit(reference(NODES, vnode), "Normal", NodeEvent.RECLAIMING, reason)
        await self._write(vnode, forge.Change(notice, {}))
        await self._carry_out(to_do, situation, vnode.name, policy)
        return self._again(to_do.again_at)

    async def _is_true(self, pnode: str, vnode: Node, decision: TakeBack) -> bool:
        """Ask the server about what the cache does not show, before taking away for it."""
        world, worker, applied = self._world, self._world.worker, self._applied(vnode) or ""
        try:
            if decision.cause is Cause.NODE_GONE and world.vnode_name(pnode) != vnode.name:
                return not await self._is_named_after_a_node(vnode)
            if decision.cause is Cause.NODE_GONE:
                there = await worker.get(NODES, pnode)
                return there.deleting or not self._stands_for(vnode, there)
            if decision.cause is Cause.POLICY_REMOVED and self._book.get(applied) is None:
                policy = await worker.get(RESOURCE_LEASING_POLICIES, applied)
                return policy.spec.cluster != world.binding_name
        except NotFound:
            return True
        return True

    async def _is_named_after_a_node(self, vnode: Node) -> bool:
        """Then it only forgot which, and that node's turn mends it."""
        listing = await self._world.worker.list(NODES)
        owners = [each.name for each in listing.items if self._vnode_of(each) == vnode.name]
        for pnode in owners:
            self._enqueue(pnode)
        return bool(owners)

    async def _remove(self, pnode: str, vnode: Node, cause: Cause) -> Outcome:
        world = self._world
        await self._unmark(world.pnodes.get(Key("", pnode)), self._applied(vnode))
        try:
            await world.computing.delete(NODES, vnode.name, uid=vnode.uid)
        except (NotFound, Conflict):
            return Done()  # it is gone, or another one: the cache will show
        world.vnodes.deleted(vnode)
        if not world.reach.answers:
            self._unconfirmed.node(pnode)
        _log.info("Deleted virtual node", node=vnode.name, physical=pnode, cause=str(cause))
        return Done()

    async def _let_go(self, vnode: Node) -> Outcome:
        """Somebody deleted it, we or a user: nothing of ours holds it."""
        ours = self._world.domain.finalizer_vnode
        finalizers = [each for each in vnode.metadata.finalizers or () if each != ours]
        if len(finalizers) == len(vnode.metadata.finalizers or ()):
            return Done()
        metadata = {"resourceVersion": vnode.resource_version, "finalizers": finalizers}
        try:
            body = MergePatch({"metadata": metadata})
            self._world.vnodes.wrote(await self._world.computing.patch(NODES, vnode.name, body))
        except NotFound:
            pass
        return Done()

    # The worker's node

    async def _mark(self, pnode: Node, policy: str) -> None:
        """Tell the owner, on the node itself, which policy lends it; of several, the first one."""
        label = pnode.labels.get(self._world.domain.policy_applied, "")
        if label != naming.label_value(policy) and not self._is_foreign(label):
            await self._label(pnode, naming.label_value(policy))

    async def _unmark(self, pnode: Node | None, applied: str | None = None) -> None:
        """Take off the label, if it names one of this binding's policies, or the one `applied`."""
        if pnode is None or not self._world.reach.answers:
            return
        label = pnode.labels.get(self._world.domain.policy_applied)
        ours = self._book.labelled(label or "") or label == naming.label_value(applied or "")
        if label and ours and not self._is_foreign(label):
            await self._label(pnode, None)

    def _is_foreign(self, label: str) -> bool:
        """Whether it names a policy of another binding."""
        named = [p for p in self._world.policies.items() if naming.label_value(p.name) == label]
        return any(policy.spec.cluster != self._world.binding_name for policy in named)

    async def _label(self, pnode: Node, policy: str | None) -> None:
        if not self._may_mark:
            return
        world = self._world
        labels: Json = {world.domain.policy_applied: policy}
        body = MergePatch({"metadata": {"uid": pnode.uid, "labels": labels}})
        try:
            world.pnodes.wrote(await world.worker.patch(NODES, pnode.name, body))
        except Forbidden as error:
            # The right to label nodes is the owner's to give; everything else works without.
            self._may_mark = False
            _log.warning("Left worker nodes unlabelled", error=str(error))

    def marked(self) -> Iterator[str]:
        """The worker's nodes that still carry a label of ours, and should not."""
        if not self._may_mark:
            return
        for pnode in self._world.pnodes.items():
            label = pnode.labels.get(self._world.domain.policy_applied)
            if label and self._book.labelled(label):
                yield pnode.name

    # Small questions

    def _applied(self, vnode: Node | None) -> str | None:
        if vnode is None:
            return None
        return vnode.annotations.get(self._world.domain.policies_applied, "")

    def _is_held(self, policy: str) -> bool:
        found = self._world.policies.get(Key("", policy))
        ours = self._world.domain.finalizer_policy
        return found is not None and ours in (found.metadata.finalizers or ())

    def _vnode_key(self, key: Key) -> Key:
        return Key("", key.name if key.namespace == _STRAY else self._world.vnode_name(key.name))

    def _vnode_of(self, pnode: Node) -> str:
        return self._world.vnode_name(pnode.name)

    def _stands_for(self, vnode: Node, pnode: Node) -> bool:
        """Unless label and annotation both say otherwise: one that was tampered with is mended."""
        key = self._world.domain.physical_node_uid
        said = {vnode.labels.get(key), vnode.annotations.get(key)} - {None}
        return not said or pnode.uid in said

    def _again(self, at: datetime | None) -> Outcome:
        if at is None:
            return Done()
        return After(max(0.0, (at - self._world.clock.now()).total_seconds()))


def _either(old: T | None, new: T | None) -> T:
    either = new if new is not None else old
    assert either is not None
    return either


def _details(policy: str, limits: tuple[ResourceLimit, ...]) -> str:
    """The policy in a line, as it was always written: `name(cpu=4/50%,memory=8Gi)`."""
    said = []
    for limit in limits:
        parts = [str(limit.quantity)] if limit.quantity is not None else []
        parts += [f"{limit.percent}%"] if limit.percent is not None else []
        said.append(f"{limit.resource}={'/'.join(parts)}")
    return f"{policy}({','.join(said)})" if said else policy
