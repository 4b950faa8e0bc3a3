"""Dependents: everything that a pod needs in the worker besides itself.

`prepare` before the physical pod is made: copies of its ConfigMaps, Secrets and claims. `attach`
after it: the tokens, which it owns. What was missing when a pod asked makes the pod be looked at
again when it comes. What no pod uses any more goes; no pod need say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kubeocean.runtime.components import Runnable
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.forge import configmaps, references
from kubeocean.syncer.forge.configmaps import CONFIG_MAPS
from kubeocean.syncer.forge.copies import Original
from kubeocean.syncer.forge.podcontext import Names
from kubeocean.syncer.forge.references import References
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.claims import Claims
from kubeocean.syncer.topdown.copies import LINGER_S, Copies, Rules
from kubeocean.syncer.topdown.envkeys import EnvKeys
from kubeocean.syncer.topdown.missing import Missing
from kubeocean.syncer.topdown.tokens import Tokens
from kubeocean.syncer.topdown.uses import CLAIM, CONFIG_MAP, SECRET, Uses, uses_of
from kubeocean.syncer.world import World

__all__ = ["Dependents", "Missing"]


class Dependents:
    """What the pods of one binding need; `linger_s` is how long it stays when nobody does."""

    def __init__(self, world: World, *, linger_s: float = LINGER_S) -> None:
        self.world = world
        self.uses = Uses(world)
        claims = Claims(world, self.uses, linger_s=linger_s)
        self.secrets, self.claims, self.volumes = claims.secrets, claims.claims, claims.volumes
        self.config_maps = Copies(world, CONFIG_MAPS, self._rules(), linger_s=linger_s)
        self.tokens = Tokens(world)
        self._handlers: list[Callable[[Key], None]] = []
        self._kinds: Mapping[str, Copies] = {
            CONFIG_MAP: self.config_maps,
            SECRET: self.secrets,
            CLAIM: self.claims,
        }
        self._env_keys = {
            references.CONFIG_MAP: EnvKeys(self.config_maps),
            references.SECRET: EnvKeys(self.secrets),
        }
        self.parts: tuple[Runnable, ...] = (
            *self.config_maps.parts,
            *claims.parts,
            *self.tokens.parts,
        )
        self.uses.on_change(lambda use: self._kinds[use[0]].check(use[1]))
        for kind, copies in self._kinds.items():
            copies.on_change(partial(self._came, kind))
        self.tokens.on_change(self._tell)

    def _rules(self) -> Rules:
        async def translate(original: Original, name: str) -> Json | Missing:
            return configmaps.translate(original.content())

        return Rules(
            translate=translate,
            used=lambda key: self.uses.is_used((CONFIG_MAP, key)),
            unused=lambda key, copy, since: self.uses.unused((CONFIG_MAP, key), since=since),
            known=lambda: self.uses.known,
        )

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call with each virtual pod that should be looked at again."""
        self._handlers.append(handler)

    async def prepare(self, pod: VirtualPod, refs: References) -> Names | Missing:
        """What the copies of all that the pod refers to are called; all that must be there is.

        It costs no request when they are there already.
        """
        self.uses.note(pod.key, uses_of(refs, pod.namespace))
        wanted = self._wanted(pod.namespace, refs)
        waiting = [want for want in wanted if want.copies.ready(want.key) is None]
        if len(waiting) > 1:
            async with asyncio.TaskGroup() as group:
                for want in waiting:
                    group.create_task(want.copies.ensure(want.key))
        found: dict[str, dict[str, str]] = {CONFIG_MAP: {}, SECRET: {}, CLAIM: {}}
        for want in wanted:
            name = await self._name(want)
            if isinstance(name, Missing):
                return name
            found[want.copies.kind][want.key.name] = name
        if (stranger := self._not_made_for(pod, refs)) is not None:
            return stranger
        keys = {
            (kind, name): await self._env_keys[kind].of(Key(pod.namespace, name))
            for kind, name in refs.env_from
        }
        tokens = self.tokens.names(pod, refs)
        return Names(found[CONFIG_MAP], found[SECRET], found[CLAIM], tokens, keys)

    async def attach(self, pod: VirtualPod, ppod: PhysicalPod, refs: References) -> float | None:
        """Give the physical pod its tokens. They are renewed here: nobody need come again.

        :raises ApiError: one of them could not be had.
        """
        await self.tokens.attach(pod, ppod, refs)
        return None

    def release(self, pod_key: Key) -> None:
        """The pod is gone, or does not run here."""
        self.uses.drop(pod_key)

    # The end of a binding

    def drain(self, *, confirmed: bool = True) -> None:
        """Remove all copies and marks, now and for good; token Secrets go with their pods.

        For a worker that is not waited for any more, `confirmed` is false: what is above is freed.
        """
        for copies in (*self._kinds.values(), self.volumes):
            copies.drain(confirmed=confirmed)

    def remaining(self) -> int:
        """How many objects still bear something of ours; token Secrets are the pods' affair."""
        return sum(copies.remaining() for copies in (*self._kinds.values(), self.volumes))

    # Small things

    def _wanted(self, namespace: str, refs: References) -> list[_Want]:
        """Secrets to pull images with may always be missing, as for a kubelet."""
        pulled = {name: True for name in refs.pull_secrets if name not in refs.secrets}
        named = (
            (self.config_maps, refs.config_maps, False),
            (self.secrets, refs.secrets, False),
            (self.secrets, pulled, True),
            (self.claims, dict.fromkeys(refs.all_claims, False), False),
        )
        return [
            _Want(copies, Key(namespace, name), optional, spare)
            for copies, names, spare in named
            for name, optional in names.items()
        ]

    async def _name(self, want: _Want) -> str | Missing:
        there = await want.copies.ensure(want.key)
        if isinstance(there, str) or not (want.spare or (want.optional and there.absent)):
            return there
        return want.copies.pairs.first_name(want.key)  # where it will be, if it comes

    def _not_made_for(self, pod: VirtualPod, refs: References) -> Missing | None:
        """A claim that only has the name of one that is made for a pod is somebody's own."""
        for name in refs.ephemeral_claims:
            key = Key(pod.namespace, name)
            claim = self.claims.pairs.originals.get(key)
            owners = claim.metadata.owner_references or () if claim is not None else ()
            if claim is not None and all(owner.uid != pod.uid for owner in owners):
                return Missing(CLAIM, key, f"{CLAIM} {key} was not made for pod {pod.key}")
        return None

    def _came(self, kind: str, key: Key) -> None:
        for pod in self.uses.users((kind, key)):
            self._tell(pod)

    def _tell(self, pod: Key) -> None:
        for handler in self._handlers:
            handler(pod)


@dataclass(frozen=True, slots=True)
class _Want:
    """One thing that a pod refers to."""

    copies: Copies
    key: Key
    optional: bool  # it may be absent
    spare: bool  # whatever is wrong with it, the pod does without
