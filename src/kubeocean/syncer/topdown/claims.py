"""Claims: what pods store things in, with the volumes behind and the Secrets that these need.

A claim that is bound above is copied after its volume, and the volume after its Secrets; they go in
the opposite order, each when the one before it is gone from the worker. The data of a volume stays:
only the reference to it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kubeocean.api import group
from kubeocean.api.binding import ClusterBinding
from kubeocean.errors import NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.forge import claims as claim_forge
from kubeocean.syncer.forge import secrets as secret_forge
from kubeocean.syncer.forge import volumes as volume_forge
from kubeocean.syncer.forge.claims import CLAIMS, Unbound
from kubeocean.syncer.forge.copies import ClaimRef, Copy, Original
from kubeocean.syncer.forge.podcontext import Refused
from kubeocean.syncer.forge.podprivileges import privileges_of, volume_problem
from kubeocean.syncer.forge.secrets import SECRETS
from kubeocean.syncer.forge.volumes import VOLUMES
from kubeocean.syncer.topdown.copies import LINGER_S, Copies, Rules
from kubeocean.syncer.topdown.missing import Missing
from kubeocean.syncer.topdown.uses import CLAIM, SECRET, Uses
from kubeocean.syncer.world import World

__all__ = ["Claims"]

BINDER_S: Final = 2.0  # longer than a binder takes that is at work
NUDGE_S: Final = 1.0
_PENDING: Final = "Pending"
_AVAILABLE: Final = "Available"
_BOUND: Final = "Bound"

_log = get_logger(__name__)


class Claims:
    """Claims, volumes and Secrets, which depend on each other in this order."""

    def __init__(self, world: World, uses: Uses, *, linger_s: float = LINGER_S) -> None:
        self.world = world
        self._uses = uses
        self._named: dict[Key, str] = {}  # virtual claim → the name that its copy shall have
        self._awaited: dict[str, asyncio.Event] = {}  # volumes that claims wait for
        self._bound_at: dict[str, float] = {}  # volumes, as we saw it
        self.secrets = Copies(world, SECRETS, self._secret_rules(), linger_s=linger_s)
        # What follows a claim goes when the claim is gone; that has lingered long enough.
        self.volumes = Copies(world, VOLUMES, self._volume_rules(), linger_s=0.0)
        self.claims = Copies(world, CLAIMS, self._claim_rules(), linger_s=linger_s)
        self.parts: tuple[Runnable, ...] = (
            *self.secrets.parts,
            *self.volumes.parts,
            *self.claims.parts,
        )
        self.secrets.on_change(lambda key: self.volumes.retry())
        self.volumes.on_change(lambda key: self.claims.retry())
        self.claims.pairs.copies.on_change(self._claim_copy_changed)
        self.claims.pairs.originals.on_change(self._claim_changed)
        self.volumes.pairs.copies.on_change(self._volume_copy_changed)
        self.volumes.pairs.originals.on_change(self._volume_changed)
        world.bindings.on_change(self._binding_changed)

    # Claims

    def _claim_rules(self) -> Rules:
        return Rules(
            translate=self._translate_claim,
            used=lambda key: self._uses.is_used((CLAIM, key)),
            unused=lambda key, copy, since: self._uses.unused((CLAIM, key), since=since),
            known=lambda: self._uses.known and self.volumes.pairs.synced,
            amend=self._nudge,
            fits=lambda original, copy: self._is_allowed(original),
            dropped=claim_forge.DROPPED,
        )

    async def _translate_claim(self, original: Original, name: str) -> Json | Missing:
        content, key = original.content(), original.key
        volume = claim_forge.volume_of(content)
        if isinstance(volume, Unbound):
            message = f"{CLAIM} {key} is not bound to a volume, it is {volume.phase}"
            return Missing(CLAIM, key, message)
        self._named[key] = name
        there = await self.volumes.ensure(Key("", volume))
        if isinstance(there, Missing):
            return there
        if self.claims.pairs.copies.get(Key(self.world.mount_namespace, name)) is None:
            await self._until_binder_knows(there)
        return claim_forge.translate(content, volume=there)

    async def _until_binder_knows(self, volume: str) -> None:
        """Wait, a little, until the worker's binder has given the volume a phase.

        If it meets the claim before the volume that the claim names it looks again only after 15 s.
        """
        there = self.volumes.pairs.copies.get(Key("", volume))
        if there is not None and there.status.phase == _AVAILABLE:
            return
        known = self._awaited.setdefault(volume, asyncio.Event())
        try:
            await within(self.world.clock, BINDER_S, known.wait)
        except TimeoutError:
            _log.debug("Made claim before its volume had a phase", volume=volume)
        finally:
            self._awaited.pop(volume, None)

    async def _nudge(self, original: Original, copy: Copy) -> Json | Missing:
        """What makes the worker's binder look again at a claim that it has forgotten.

        Binding takes it several writes, in which two of its own parts may be in each other's way;
        it then leaves the volume bound and the claim waiting, for 15 s.
        """
        since = self._bound_at.get(copy.spec.volume_name)
        if copy.status.phase != _PENDING or since is None:
            return {}
        if (rest_s := since + NUDGE_S - self.world.clock.monotonic()) > 0:
            self.claims.controller.queue.add_after(original.key, rest_s)
            return {}
        del self._bound_at[copy.spec.volume_name]  # once
        annotations = {**copy.annotations, self.world.domain.last_sync_time: self.world.now_text()}
        return {"/metadata/annotations": annotations}

    def _claim_copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if new is not None and old is not None:
            return
        if old is not None:
            self._named.pop(self.claims.pairs.virtual_of(old), None)
        for copy in (old, new):
            for volume in self._volumes_named(copy.spec.volume_name if copy else ""):
                self.volumes.check(volume)

    def _claim_changed(self, old: Original | None, new: Original | None) -> None:
        if new is None and old is not None:
            for volume in _volumes_of(old):
                self.volumes.check(volume)

    # Volumes

    def _volume_rules(self) -> Rules:
        return Rules(
            translate=self._translate_volume,
            used=self._volume_used,
            unused=self._volume_unused,
            held=self._volume_held,
            amend=self._rebind,
            fits=self._fits,
            known=lambda: (
                self._uses.known
                and self.claims.pairs.synced
                and self.secrets.pairs.synced
                and self.world.vnodes.has_synced
            ),
            dropped=volume_forge.DROPPED,
        )

    async def _translate_volume(self, original: Original, name: str) -> Json | Missing:
        content = original.content()
        if (problem := self._problem(content)) is not None:
            message = f"{VOLUMES.originals.kind} {original.name} is not copied: {problem}"
            return Missing(self.volumes.kind, original.key, message)
        copies: dict[Key, Key] = {}
        for key, optional in volume_forge.secrets_of(content).items():
            there = await self.secrets.ensure(key)
            if isinstance(there, Missing):
                if not optional:
                    about = f"{there.message} (needed by {VOLUMES.originals.kind} {original.name})"
                    return Missing(there.kind, there.key, about, there.retry_s)
                there = self.secrets.pairs.first_name(key)
            copies[key] = Key(self.world.mount_namespace, there)
        claim = self._copy_of(volume_forge.claim_of(content))
        return volume_forge.translate(content, claim=claim, secrets=copies, host=self._host)

    def _problem(self, content: Json) -> Refused | None:
        """Why pods may not have a volume."""
        binding = self.world.binding  # without one there are no pods, either
        return None if binding is None else volume_problem(content, privileges_of(binding))

    def _is_allowed(self, claim: Original) -> bool:
        """Whether pods may have the volume of a claim that was copied, perhaps long ago."""
        binding = self.world.binding
        if binding is None or privileges_of(binding).host_path:
            return True
        volumes = map(self.volumes.pairs.originals.get, _volumes_of(claim))
        return all(self._problem(each.content()) is None for each in volumes if each is not None)

    def _fits(self, volume: Original, copy: Copy) -> bool:
        return self._is_bound(volume, copy) and self._problem(volume.content()) is None

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if privileges_of(old) != privileges_of(new):
            self.volumes.retry()
            self.claims.retry()

    def _volume_used(self, key: Key) -> bool:
        claims = self.claims
        users = claims.pairs.originals.by("refers", key.name)
        return any(claims.wanted(claim.key) for claim in users)

    def _volume_held(self, key: Key) -> bool:
        """Whether its claim is there, or the worker's binder has not seen yet that it went."""
        claims = self.claims.pairs.copies
        return any(
            copy.status.phase == _BOUND or claims.by("volume", copy.name)
            for copy in self.volumes.pairs.copies_of(key)
        )

    async def _volume_unused(self, key: Key, copy: Copy, since: float) -> bool:
        """Whether the worker has no claim that the volume is for."""
        ref = copy.spec.claim_ref
        return ref is None or await self._claim_uid(ref) == ""

    async def _rebind(self, original: Original, copy: Copy) -> Json | Missing:
        if self._is_bound(original, copy):
            return {}
        claim = self._copy_of(volume_forge.claim_of(original.content()))
        now = copy.spec.claim_ref or ClaimRef()
        if now.uid and (uid := await self._claim_uid(now)):
            if (now.namespace, now.name) != tuple(claim):
                message = f"{copy.name} of the worker is bound to {now.namespace}/{now.name}"
                return Missing(self.volumes.kind, original.key, message)
            return volume_forge.rebind(copy, claim, uid=uid)
        return volume_forge.rebind(copy, claim, uid="")

    def _is_bound(self, original: Original, copy: Copy) -> bool:
        """Whether a volume is for its claim, as far as the caches show."""
        claim = self._copy_of(volume_forge.claim_of(original.content()))
        there = self.claims.pairs.copies.get(claim)
        return not volume_forge.rebind(copy, claim, uid=there.uid if there else "")

    async def _claim_uid(self, ref: ClaimRef) -> str:
        """The UID of a claim of the worker, asked of the server; none if there is no such claim."""
        try:
            return (await self.world.worker.get(CLAIMS.copies, ref.name, ref.namespace)).uid
        except NotFound:
            return ""

    def _copy_of(self, claim: Key) -> Key:
        pairs = self.claims.pairs
        name = self._named.get(claim)
        if name is None:
            name = next((c.name for c in pairs.copies_of(claim)), pairs.first_name(claim))
        return Key(self.world.mount_namespace, name)

    def _volumes_named(self, copy: str) -> tuple[Key, ...]:
        found = self.volumes.pairs.copies.get(Key("", copy))
        return () if found is None else (self.volumes.pairs.virtual_of(found),)

    def _host(self, name: str) -> str | None:
        """What the node behind a virtual node is called as a host."""
        vnode = self.world.vnodes.get(Key("", name))
        if vnode is None:
            return None
        pnode = self.world.pnode_of(vnode)
        there = self.world.pnodes.get(Key("", pnode))
        return there.labels.get(group.LABEL_HOSTNAME, pnode) if there else pnode or None

    # Secrets, also those that pods use

    def _secret_rules(self) -> Rules:
        return Rules(
            translate=self._translate_secret,
            used=lambda key: self._uses.is_used((SECRET, key)) or self._in_volume(key),
            unused=self._secret_unused,
            held=self._secret_held,
            known=lambda: self._uses.known and self.volumes.pairs.synced,
            extra_labels=self._secret_labels,
        )

    async def _translate_secret(self, original: Original, name: str) -> Json | Missing:
        return secret_forge.translate(original.content())

    def _in_volume(self, key: Key) -> bool:
        volumes = self.volumes
        users = volumes.pairs.originals.by("refers", str(key))
        return any(volumes.wanted(volume.key) for volume in users)

    def _secret_held(self, key: Key) -> bool:
        pairs = self.volumes.pairs
        return any(pairs.copies_of(volume.key) for volume in pairs.originals.by("refers", str(key)))

    async def _secret_unused(self, key: Key, copy: Copy, since: float) -> bool:
        if self.world.domain.used_by_pv in copy.labels:
            labels = self.volumes.pairs.copies.scope.labels
            listing = await self.world.worker.list(VOLUMES.copies, labels=labels, keep_raw=True)
            held = (volume_forge.secrets_of(volume.content()) for volume in listing.items)
            if any(copy.key in secrets for secrets in held):
                return False
        return await self._uses.unused((SECRET, key), since=since)

    def _secret_labels(self, key: Key) -> Mapping[str, str]:
        volumes = self.volumes.pairs.originals.by("refers", str(key))
        return {self.world.domain.used_by_pv: group.TRUE} if volumes else {}

    def _volume_copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if new is not None:
            self._volume_phase(old, new)
            return
        if old is None:
            return
        self._bound_at.pop(old.name, None)
        volume = self.volumes.pairs.originals.get(self.volumes.pairs.virtual_of(old))
        self._check_secrets(volume)

    def _volume_phase(self, old: Copy | None, new: Copy) -> None:
        before, phase = (copy.status.phase if copy else "" for copy in (old, new))
        if phase == _AVAILABLE and (known := self._awaited.get(new.name)) is not None:
            known.set()
        if phase == _BOUND != before:
            self._bound_at[new.name] = self.world.clock.monotonic()
            for claim in self.claims.pairs.copies.by("volume", new.name):
                self.claims.check(self.claims.pairs.virtual_of(claim))

    def _volume_changed(self, old: Original | None, new: Original | None) -> None:
        if new is None:
            self._check_secrets(old)

    def _check_secrets(self, volume: Original | None) -> None:
        for name in VOLUMES.refers(volume.content()) if volume else ():
            self.secrets.check(Key.parse(name))


def _volumes_of(claim: Original) -> list[Key]:
    return [Key("", name) for name in CLAIMS.refers(claim.content())]
