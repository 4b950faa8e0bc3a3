"""Nodes: each of the worker's nodes that is lent has its virtual node, exactly so and exactly then.

The key is the name of the worker's node; for a virtual node that is named after none, its own. A
reconcile decides by `lending`, forges what should be, and writes the difference. While the worker
does not answer nothing is decided, unless the whole binding goes. Before a virtual node is taken
away because something is missing, the server is asked whether it is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.ownership import may_be_ours
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLimit
from kubeocean.api.reasons import NodeEvent
from kubeocean.errors import AlreadyExists, Conflict, Invalid, NotFound
from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.capacity import Capacity, base_of, offer
from kubeocean.leasing.plans import Plan
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.report import report_of
from kubeocean.leasing.rules import Cause
from kubeocean.leasing.situation import Situation
from kubeocean.leasing.tolerations import NO_EXECUTE
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
from kubeocean.syncer.bottomup.drain import Unconfirmed, first_few
from kubeocean.syncer.bottomup.guests import Guests
from kubeocean.syncer.bottomup.lending import Hold, Ignore, Lend, TakeBack, decide
from kubeocean.syncer.bottomup.marks import Marks
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
        self.marks = Marks(world, book)
        self._lost: set[str] = set()  # virtual nodes that nobody deleted, and the cache lost
        self._left_out: dict[str, tuple[str, ...]] = {}  # by virtual node: what was told of it
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
        world.elsewhere.on_change(self.counting.follow)
        world.beside.on_change(self.counting.follow)
        world.ppods.on_change(self.counting.follow_labelled)
        world.pnodes.on_change(lambda old, new: self._enqueue(_either(old, new).name))
        world.vnodes.on_change(self._vnode_changed)
        world.vpods.on_change(lambda old, new: self._guest_changed(_either(old, new)))
        world.proxiers.on_change(lambda old, new: self.enqueue_all())
        world.bindings.on_change(self._binding_changed)
        world.reach.on_change(lambda answers: self.enqueue_all())

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        # What it says of itself concerns no node.
        if old is None or new is None or self._matter(old) != self._matter(new):
            self.enqueue_all()

    def _matter(self, binding: ClusterBinding) -> tuple[object, ...]:
        return binding.spec, binding.deleting, self._world.is_held(binding)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        vnode = _either(old, new)
        if new is None:
            if not vnode.deleting:
                self._lost.add(vnode.name)
            self._left_out.pop(vnode.name, None)
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
        if vnode is None and await self._recovers(self._vnode_key(key).name):
            return Done()
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
                if vnode is not None:
                    await self._write(vnode, forge.Change({}, self._readdressed(vnode)))
                return Stuck("PolicyInvalid", why)
            case Ignore():
                await self.marks.take_off(pnode)
                return Done()

    async def _lend(self, pnode: Node, vnode: Node | None, decision: Lend) -> Outcome:
        world, policy = self._world, decision.policy.name
        name = world.vnode_name(pnode.name)
        held = world.is_held(world.binding) and world.holds(world.policies.get(Key("", policy)))
        if vnode is None and not held:
            # Who deletes one of them now would take its rules along, or leave a node that nobody
            # takes back; we are called again when we hold both.
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
        # Whom a taint deletes Kubernetes deletes at once: what we do and tell comes before that.
        deletes = any(taint.effect == NO_EXECUTE for taint in to_do.taints)
        if deletes:
            await self._carry_out(to_do, situation, name, policy)
        await self._write(vnode, forge.changes(vnode.content(), lent, now=world.now_text()))
        self._tell_left_out(vnode, forge.left_out(lent, vnode.annotations))
        if not deletes:
            await self._carry_out(to_do, situation, name, policy)
        await self.marks.put(pnode, policy)
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
            proxier_ip=world.proxier_ip(name),
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
        if self._labels().items() <= there.labels.items():
            return After(_LOOK_AGAIN_S)  # it is ours; the cache is behind
        if await self._mends(there):
            return Done()
        message = f"node {name} belongs to somebody else"
        self._world.events.emit(
            reference(NODES, there), "Warning", NodeEvent.NAME_TAKEN, f"Kubeocean: {message}"
        )
        return Stuck(NodeEvent.NAME_TAKEN, message)

    async def _recovers(self, name: str) -> bool:
        """Whether a virtual node that was lost to the cache is there, and comes back to it."""
        if name not in self._lost:
            return False
        try:
            there = await self._world.computing.get(NODES, name)
        except NotFound:
            self._lost.discard(name)
            return False
        found = not there.deleting and await self._mends(there)
        self._lost.discard(name)
        return found

    async def _mends(self, there: Node) -> bool:
        """Put back the labels that a virtual node is found by, if it is provably ours."""
        world, labels = self._world, self._labels()
        if self._strays(there) or not forge.is_ours(there, labels, world.domain):
            return False
        version = {"uid": there.uid, "resourceVersion": there.resource_version}
        body = MergePatch({"metadata": {"labels": labels, **version}})
        world.vnodes.wrote(await world.computing.patch(NODES, there.name, body))
        _log.info("Mended labels of virtual node", node=there.name)
        return True

    def _labels(self) -> dict[str, str]:
        """Those that all virtual nodes of this binding are found by."""
        domain, binding = self._world.domain, naming.label_value(self._world.binding_name)
        return {domain.managed_by: domain.product, domain.cluster_binding: binding}

    def _tell_left_out(self, vnode: Node, names: tuple[str, ...]) -> None:
        if self._left_out.get(vnode.name, ()) == names:
            return
        self._left_out[vnode.name] = names
        if names:
            message = f"Too large to be shown here, of the worker's node: {first_few(names)}"
            regarding, reason = reference(NODES, vnode), NodeEvent.ANNOTATIONS_LEFT_OUT
            self._world.events.emit(regarding, "Warning", reason, message)

    def _readdressed(self, vnode: Node) -> Json:
        """All that may change of a node that is not lent: its pods are still asked for logs."""
        world = self._world
        return forge.readdressed(
            vnode.content(),
            proxier_ip=world.proxier_ip(vnode.name),
            metrics_port=world.metrics_port,
            name=vnode.name,
            domain=world.domain,
        )

    async def _write(self, vnode: Node, change: forge.Change) -> None:
        version = vnode.resource_version
        for body, subresource in ((change.main, ""), (change.status, "status")):
            if body:
                version = await self._send(vnode, body, subresource, version)

    async def _send(self, vnode: Node, body: Json, subresource: str, version: str) -> str:
        """One patch; the version that the node has then.

        What users annotate may leave no room for anything. The rest is written all the same.
        """
        world = self._world
        metadata: Json = body.get("metadata", {}) | {"resourceVersion": version}
        patch = MergePatch(body | {"metadata": metadata})
        try:
            written = await world.computing.patch(NODES, vnode.name, patch, subresource=subresource)
        except Invalid as error:
            if not metadata.pop("annotations", None):
                raise
            _log.warning("Left annotations of virtual node", node=vnode.name, error=str(error))
            written = await world.computing.patch(NODES, vnode.name, patch, subresource=subresource)
        world.vnodes.wrote(written)
        return written.resource_version

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
        await self._write(vnode, forge.Change(notice, self._readdressed(vnode)))
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
                return not world.concerns(await worker.get(RESOURCE_LEASING_POLICIES, applied))
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
        await self.marks.take_off(world.pnodes.get(Key("", pnode)), self._applied(vnode))
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

    # Small questions

    def _applied(self, vnode: Node | None) -> str | None:
        if vnode is None:
            return None
        return vnode.annotations.get(self._world.domain.policies_applied, "")

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
