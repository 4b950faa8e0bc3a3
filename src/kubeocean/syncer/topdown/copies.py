"""Copies: one kind of virtual objects, each copied into the worker while something uses it.

The key is the virtual object. `ensure` answers what its copy is called as soon as there is one; a
thousand pods that ask for the same object cause one read, one mark above and one create below. From
then on the copy follows the object, and goes when nothing uses it any more, or when the object is
gone. An object that is not there is waited for.

Only here are copies written: whoever wants one asks, and the one controller does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.api.ownership import Claim
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome, Stuck
from kubeocean.syncer.forge import copies as forge
from kubeocean.syncer.forge.copies import Copied, Copy, Original, Recipe
from kubeocean.syncer.forge.originals import is_pointed
from kubeocean.syncer.topdown.appearances import Appearances
from kubeocean.syncer.topdown.missing import TOLD_S, Missing
from kubeocean.syncer.topdown.pairs import Pairs
from kubeocean.syncer.world import World

__all__ = ["LINGER_S", "Copies", "Rules"]

WORKERS: Final = 8
LINGER_S: Final = 10.0  # the next pod of a workload often needs what the last one left
_LOOK_AGAIN_S: Final = 30.0  # for what is waited for without a watch
_BEHIND_S: Final = 1.0
# Of the last the likeliest cause is a webhook of the worker that does not answer.
_REFUSALS: Final = (
    BadRequest, Forbidden, Invalid, NotFound, RequestTooLarge, InternalError,
)  # fmt: skip
_LEAVING: Final = "is not copied: the binding is being deleted"
_REFUSED: Final = "CopyRefused"  # the reason of events


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a kind knows by itself.

    - `translate`: what the copy of that name shall hold, or what is missing for it.
    - `used`: whether something above uses it; `held`: whether another copy still needs its copy.
    - `unused`: whether the servers say that nothing does, asked after the given time.
    - `amend`: what else has to be set on a copy; `fits`: whether nothing has, at a glance.
    - `known`: whether enough is known to decide anything.
    """

    translate: Callable[[Original, str], Awaitable[Json | Missing]]
    used: Callable[[Key], bool]
    unused: Callable[[Key, Copy, float], Awaitable[bool]]
    known: Callable[[], bool]
    held: Callable[[Key], bool] = lambda key: False
    amend: Callable[[Original, Copy], Awaitable[Json | Missing]] | None = None
    fits: Callable[[Original, Copy], bool] = lambda original, copy: True
    extra_labels: Callable[[Key], Mapping[str, str]] = lambda key: {}
    dropped: frozenset[str] = frozenset()  # annotations that mean something above only


class _Turn:
    """Somebody asked; the answer is the same for all who did."""

    __slots__ = ("answer", "given")

    def __init__(self) -> None:
        self.given = asyncio.Event()
        self.answer: str | Missing = ""


class Copies:
    """The copies of one kind, for one binding."""

    def __init__(
        self, world: World, recipe: Recipe, rules: Rules, *, linger_s: float = LINGER_S
    ) -> None:
        self.world = world
        self.kind = recipe.originals.kind
        self.pairs = Pairs(world, recipe)
        self.draining = False
        self._abandoned = False  # draining, and the worker does not matter any more
        self._rules = rules
        self._linger_s = linger_s
        self._turns: dict[Key, _Turn] = {}
        self._missing: dict[Key, Missing] = {}
        self._idle: dict[Key, float] = {}  # since when nothing uses it
        self._handlers: list[Callable[[Key], None]] = []
        self.appearances = Appearances(world, recipe.originals, self._enqueue)
        self.controller: Controller[Key] = Controller(
            f"{self.kind.lower()}-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            on_stuck=self._stuck,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (
            self.pairs.originals,
            self.pairs.copies,
            self.appearances,
            self.controller,
        )
        self.pairs.originals.on_change(lambda old, new: self._enqueue_all((old, new)))
        self.pairs.copies.on_change(self._copy_changed)
        world.reach.on_change(self._reached)

    # For those who need copies

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call when something that was missing is there."""
        self._handlers.append(handler)

    async def ensure(self, key: Key) -> str | Missing:
        """The name of the copy, which is there; or what is in the way.

        The caller's use has to be known before. What failed is tried again by the controller, with
        backoff, however many ask.
        """
        if (name := self.ready(key)) is not None:
            return name
        if (missing := self._missing.get(key)) is not None:
            return missing
        if self.draining:
            return self._lack(key, _LEAVING)
        turn = self._turns.setdefault(key, _Turn())
        self._enqueue(key)
        await turn.given.wait()
        return turn.answer

    def asked(self, key: Key) -> bool:
        """Whether somebody in this process waits for a copy, or everything is to go."""
        return self.draining or key in self._turns or key in self._missing

    def ready(self, key: Key) -> str | None:
        """The name of the copy, if the caches show that it is there and stays."""
        pairs = self.pairs
        original, copies = pairs.originals.get(key), pairs.copies_of(key)
        if original is None or not copies or self.draining:
            return None
        copy = copies[0]
        ours = pairs.claim(original, copy) is Claim.OURS and not pairs.is_going(copy)
        return copy.name if ours and self._rules.fits(original, copy) else None

    def retry(self) -> None:
        """Something changed that what is missing may have waited for."""
        for key in tuple(self._missing):
            self._enqueue(key)

    def check(self, key: Key) -> None:
        """The last that used it went."""
        pairs = self.pairs
        if key in self._missing or pairs.originals.get(key) or pairs.copies_of(key):
            self._enqueue(key)

    def drain(self, *, confirmed: bool = True) -> None:
        """Remove every copy, in use or not, and all that virtual objects say of them.

        Unless it shall be `confirmed`, virtual objects are freed without a word of the worker.
        """
        self.draining = True
        self._abandoned = not confirmed
        for key in tuple(self._turns):
            self._answer(key, self._lack(key, _LEAVING))
        self._enqueue_everything()

    def remaining(self) -> int:
        """How many objects of either side still bear something of ours."""
        return len(self.pairs.originals) + (0 if self._abandoned else len(self.pairs.copies))

    def wanted(self, key: Key) -> bool:
        """Whether there shall be a copy."""
        if self.draining:
            return False
        return key in self._turns or (self._rules.used(key) and not self._ends())

    def _ends(self) -> bool:
        """Whether the binding goes and lends no more: whoever drains it, perhaps another process,
        must not find again what it has removed. Pods that still run have what they need."""
        world = self.world
        binding = world.binding
        ending = binding is not None and binding.deleting and world.computing_synced
        return ending and not len(world.vnodes)

    async def is_unused(self, key: Key, copy: Copy) -> bool:
        """Whether nothing needs a copy, asked of the servers."""
        if self.wanted(key) or self._rules.held(key):
            return False
        return await self._rules.unused(key, copy, self.world.clock.monotonic())

    # What makes us look

    def _enqueue(self, key: Key) -> None:
        if key.name:
            self.controller.enqueue(key)

    def _enqueue_all(self, originals: Iterable[Original | None]) -> None:
        for original in originals:
            if original is not None:
                self._enqueue(original.key)

    def _enqueue_everything(self) -> None:
        self._enqueue_all(self.pairs.originals.items())
        for copy in self.pairs.copies.items():
            self._enqueue(self.pairs.virtual_of(copy))

    def _copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        for key in {self.pairs.virtual_of(copy) for copy in (old, new) if copy is not None}:
            self._enqueue(key)

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue_everything()
            self.retry()

    async def _caught_up(self, key: Key) -> bool:
        if self._abandoned:
            originals = self.pairs.originals
            return originals.has_synced and await originals.caught_up(key)
        ready = self.pairs.synced and self._rules.known()
        return ready and await self.pairs.caught_up(key)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        try:
            answer = await self._settle(key)
        except Conflict:
            raise  # somebody was quicker; those who wait go on waiting
        except ApiError as error:
            self._answer(key, self._lack(key, f"is not copied: {error}"))
            if isinstance(error, _REFUSALS):
                return Stuck(error.reason, str(error))
            raise
        if isinstance(answer, str | Missing):
            return self._answer(key, answer)
        return answer

    async def _settle(self, key: Key) -> str | Missing | Outcome:
        pairs = self.pairs
        original, copies = pairs.originals.get(key), pairs.copies_of(key)
        if not self.wanted(key):
            return await self._let_go(key, original, copies)
        self._idle.pop(key, None)
        if not self.world.reach.answers:
            return self._lack(key, "is not copied: the worker does not answer")
        original = original or await pairs.read(key)
        if original is not None:
            used_by_pv = self.world.domain.used_by_pv in self._rules.extra_labels(key)
            original = await pairs.mark(original, used_by_pv=used_by_pv)
        if original is None:
            return await self._absent(key, copies)
        self.appearances.forget(key)
        answer = await (self._update(original, copies[0]) if copies else self._create(original))
        if isinstance(answer, str):
            await pairs.settle(original)
        return answer

    async def _absent(self, key: Key, copies: list[Copy]) -> Missing:
        """The server says that it is not there: a copy of it means nothing any more."""
        if not self._rules.held(key):
            for copy in copies:
                await self.pairs.delete(key, copy)
        retry_s = TOLD_S if self.appearances.wait_for(key) else _LOOK_AGAIN_S
        message = f"{self.kind} {key} does not exist"
        return Missing(self.kind, key, message, retry_s, absent=True)

    async def _create(self, original: Original) -> str | Missing:
        pairs, key = self.pairs, original.key
        names = (pairs.first_name(key), pairs.second_name(original))
        for name in names:
            copied = await self._copied(original, name)
            if isinstance(copied, Missing):
                return copied
            try:
                await pairs.create(copied)
            except AlreadyExists:
                found = await self._find(original, name)
                if found is not None:
                    return await self._update(original, found)
            else:
                return name
        taken = " and ".join(names)
        return self._lack(key, f"is not copied: {taken} belong to somebody else", _LOOK_AGAIN_S)

    async def _find(self, original: Original, name: str) -> Copy | None:
        try:
            return await self.pairs.find(original, name)
        except NotFound as error:  # it went in between: from the beginning
            raise Conflict(str(error)) from error

    async def _update(self, original: Original, copy: Copy) -> str | Missing:
        key, pairs = original.key, self.pairs
        if pairs.is_going(copy):
            return self._lack(key, f"is not copied: {copy.name} is being deleted")
        copied = await self._copied(original, copy.name)
        if isinstance(copied, Missing):
            return copied
        stale = pairs.claim(original, copy) is Claim.STALE
        if forge.is_replaced(copy, copied, pairs.recipe, stale=stale):
            await pairs.delete(key, copy)
            return self._lack(key, f"is not copied: {copy.name} is being replaced")
        change = forge.changes(copy, copied, pairs.recipe)
        if self._rules.amend is not None:
            more = await self._rules.amend(original, copy)
            if isinstance(more, Missing):
                return more
            change = more | change
        if change:
            await pairs.update(key, copy, change)
        return copy.name

    async def _let_go(self, key: Key, original: Original | None, copies: list[Copy]) -> Outcome:
        self._missing.pop(key, None)
        self.appearances.forget(key)
        if self._abandoned and original is not None:
            await self.pairs.unmark(original)
            return Done()
        if self._abandoned or (not copies and original is None):
            self._idle.pop(key, None)
            return Done()
        if not self.world.reach.answers or self._rules.held(key):
            return Done()  # we are called again when that changes
        now = self.world.clock.monotonic()
        since = self._idle.setdefault(key, now)
        if not self.draining and now < since + self._linger_s:
            return After(since + self._linger_s - now)
        if copies:
            return await self._remove(key, copies, since)
        assert original is not None
        if left := await self._left_behind(original):
            await self._remove(key, left, since)
            return After(_BEHIND_S)  # no cache of ours shows that it goes
        await self.pairs.unmark(original)
        return Done()

    async def _remove(self, key: Key, copies: list[Copy], since: float) -> Outcome:
        for copy in copies:
            if not self.draining and not await self._rules.unused(key, copy, since):
                self._idle.pop(key, None)
                return After(self._linger_s)
            if self.wanted(key):
                break  # whoever wants it has enqueued it
            await self.pairs.delete(key, copy)
        return Done()  # we are called again when they are gone

    async def _left_behind(self, original: Original) -> list[Copy]:
        """The copy that the earlier implementation made and nobody has used since."""
        world = self.world
        if not is_pointed(original, cluster_id=world.cluster_id, domain=world.domain):
            return []
        try:
            found = await self.pairs.find(original, self.pairs.first_name(original.key))
        except NotFound:
            return []
        return [] if found is None else [found]

    # Small questions

    async def _copied(self, original: Original, name: str) -> Copied | Missing:
        content = await self._rules.translate(original, name)
        if isinstance(content, Missing):
            return content
        return Copied(
            original=original,
            content=content,
            name=name,
            namespace=self.pairs.namespace,
            ids=self.pairs.ids,
            extra_labels=self._rules.extra_labels(original.key),
            dropped=self._rules.dropped,
            domain=self.world.domain,
        )

    def _answer(self, key: Key, answer: str | Missing) -> Outcome:
        turn = self._turns.pop(key, None)
        if turn is not None:
            turn.answer = answer
            turn.given.set()
        if isinstance(answer, Missing):
            self._missing[key] = answer
            return Done() if answer.retry_s >= TOLD_S else After(answer.retry_s)
        if self._missing.pop(key, None) is not None:
            for handler in self._handlers:
                handler(key)
        return Done()

    def _lack(self, key: Key, message: str, retry_s: float = TOLD_S) -> Missing:
        return Missing(self.kind, key, f"{self.kind} {key} {message}", retry_s)

    def _stuck(self, key: Key, stuck: Stuck) -> None:
        original = self.pairs.originals.get(key)
        if original is not None:
            regarding = reference(self.pairs.recipe.originals, original)
            self.world.events.emit(regarding, "Warning", _REFUSED, stuck.message)
