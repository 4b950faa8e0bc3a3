"""Pairs: the virtual objects of one kind that are copied, and their copies; read and written.

Both are cached by what they bear alone: the label of this cluster above, our ownership below. Every
write says which version or which object it means, and is remembered until the cache shows it. A
copy that is on its way out is not handed out any more, from before it is deleted.
"""

from __future__ import annotations

from functools import partial

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.ownership import Claim, claim_copy, ownership
from kubeocean.errors import ApiError, Conflict, NotFound
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.filedwrites import FiledWrites
from kubeocean.syncer.forge import copies as forge
from kubeocean.syncer.forge import originals as marks
from kubeocean.syncer.forge.copies import Copied, Copy, Original, Recipe
from kubeocean.syncer.world import World

__all__ = ["Pairs"]

_log = get_logger(__name__)


class Pairs:
    """One kind, for one binding."""

    def __init__(self, world: World, recipe: Recipe) -> None:
        self.world = world
        self.recipe = recipe
        self.kind = recipe.originals.kind
        self.ids = world.ids
        self.namespace = world.mount_namespace if recipe.copies.namespaced else ""
        self.originals = self._originals()
        self.copies = self._copies()
        self._removing: set[str] = set()  # UIDs of copies that are on their way out
        self._writes = FiledWrites()  # by virtual object
        self.copies.on_change(self._copy_changed)

    def _originals(self) -> Informer[Original]:
        world = self.world
        return Informer(
            world.computing,
            self.recipe.originals,
            labels=f"{world.domain.synced_by(world.cluster_id)}={group.TRUE}",
            indexes={"refers": lambda original: self.recipe.refers(original.content())},
            keep_raw=True,
            clock=world.clock,
            metrics=world.metrics,
        )

    def _copies(self) -> Informer[Copy]:
        world, domain = self.world, self.world.domain
        ours = ",".join(f"{key}={value}" for key, value in ownership(self.ids, domain).items())
        return Informer(
            world.worker,
            self.recipe.copies,
            namespace=self.namespace,
            labels=f"{ours},!{domain.service_account_token}",
            indexes={
                "virtual": lambda copy: (str(self.virtual_of(copy)),),
                "volume": lambda copy: (copy.spec.volume_name,),
            },
            prune=partial(forge.lean, recipe=self.recipe),
            keep_raw=True,
            clock=world.clock,
            metrics=world.metrics,
        )

    @property
    def synced(self) -> bool:
        return self.originals.has_synced and self.copies.has_synced

    async def caught_up(self, key: Key) -> bool:
        """Whether the caches show what we wrote for this object."""
        if not await self.originals.caught_up(key):
            return False
        return await self._writes.shown(key, self.copies)

    # Who is who

    def copies_of(self, key: Key) -> list[Copy]:
        """The copies of an object that the cache shows, the best one first."""
        first = self.first_name(key)
        found = self.copies.by("virtual", str(key))
        return sorted(found, key=lambda copy: (copy.name != first, copy.name))

    def first_name(self, key: Key) -> str:
        """What the copy is called, unless somebody else has that name."""
        return naming.physical_name(key.name, key.namespace)

    def second_name(self, original: Original) -> str:
        """What it is called then; several bindings may copy one object into one namespace."""
        identity = f"{original.uid}/{self.world.cluster_id}"
        return naming.second_physical_name(original.name, original.namespace, uid=identity)

    def virtual_of(self, copy: Copy) -> Key:
        """The virtual object that a copy says it stands for."""
        domain, said = self.world.domain, copy.annotations
        return Key(said.get(domain.virtual_namespace, ""), said.get(domain.virtual_name, ""))

    def claim(self, original: Original, copy: Copy) -> Claim:
        """Whose the copy is."""
        world = self.world
        return claim_copy(
            copy,
            virtual=original.key,
            uid=original.uid,
            ids=self.ids,
            domain=world.domain,
            pointed=marks.is_pointed(original, cluster_id=world.cluster_id, domain=world.domain),
        )

    def is_going(self, copy: Copy) -> bool:
        """Whether somebody has deleted it."""
        return copy.deleting or copy.uid in self._removing

    def _copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if old is not None and new is None:
            self._removing.discard(old.uid)

    # Above

    async def read(self, key: Key) -> Original | None:
        """The virtual object, read fresh."""
        try:
            return await self.world.computing.get(
                self.recipe.originals, key.name, key.namespace, keep_raw=True
            )
        except NotFound:
            return None

    async def mark(self, original: Original, *, used_by_pv: bool) -> Original | None:
        """Say on it that it is copied; None if it is gone."""
        world = self.world
        copy = Key(self.namespace, self.first_name(original.key))
        change = marks.mark(
            original,
            copy,
            cluster_id=world.cluster_id,
            domain=world.domain,
            used_by_pv=used_by_pv,
        )
        return await self._write(original, change)

    async def settle(self, original: Original) -> None:
        """Take off what the earlier implementation needed."""
        world = self.world
        change = marks.settle(original, cluster_id=world.cluster_id, domain=world.domain)
        await self._write(original, change)

    async def unmark(self, original: Original) -> None:
        """Take off all that is ours."""
        world = self.world
        change = marks.unmark(original, cluster_id=world.cluster_id, domain=world.domain)
        await self._write(original, change)

    async def _write(self, original: Original, metadata: Json) -> Original | None:
        if not metadata:
            return original
        version = {"uid": original.uid, "resourceVersion": original.resource_version}
        try:
            written = await self.world.computing.patch(
                self.recipe.originals,
                original.name,
                MergePatch({"metadata": metadata | version}),
                original.namespace,
            )
        except NotFound:
            return None
        self.originals.wrote(written)
        return msgspec.structs.replace(written, raw=original.raw)

    # Below

    async def find(self, original: Original, name: str) -> Copy | None:
        """What has the name already, if we may have it.

        :raises NotFound: nothing has.
        """
        copy = await self.world.worker.get(self.recipe.copies, name, self.namespace, keep_raw=True)
        if self.claim(original, copy) is Claim.FOREIGN:
            _log.warning("Found foreign object", kind=self.kind, virtual=original.key, name=name)
            return None
        return forge.lean(copy, self.recipe)

    async def create(self, copied: Copied) -> None:
        """Make the copy.

        :raises AlreadyExists: the name is taken.
        """
        key = copied.original.key
        made = await self.world.worker.create(self.recipe.copies, forge.forge(copied, self.recipe))
        self._writes.wrote(key, self.copies, made)
        _log.info("Created copy", kind=self.kind, virtual=key, physical=copied.name)

    async def update(self, key: Key, copy: Copy, change: Json) -> None:
        """Set what differs, by JSON pointer."""
        patch = forge.patch(copy, change)
        written = await self.world.worker.patch(
            self.recipe.copies, copy.name, patch, self.namespace
        )
        self._writes.wrote(key, self.copies, written)
        _log.info("Updated copy", kind=self.kind, virtual=key, physical=copy.name)

    async def delete(self, key: Key, copy: Copy) -> None:
        """Remove this very copy. No await before it is known to go: it is not handed out then."""
        if copy.deleting:
            return
        self._removing.add(copy.uid)
        try:
            await self.world.worker.delete(
                self.recipe.copies, copy.name, self.namespace, uid=copy.uid
            )
        except (NotFound, Conflict):
            return  # it is gone, or another one: the cache will show
        except ApiError:
            self._removing.discard(copy.uid)
            raise
        self._writes.deleted(key, self.copies, copy)
        _log.info("Deleted copy", kind=self.kind, virtual=key, physical=copy.name)
