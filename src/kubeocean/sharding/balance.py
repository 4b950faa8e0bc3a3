"""Balancing: the wanted owner of each slot, with as few moves as possible.

Slots keep their owners, with three exceptions:

- a slot without an owner is assigned to the least loaded replica;
- a new replica is filled up to its share, and only from replicas above their share: no slot moves
  between two old replicas;
- when the most loaded replica exceeds its share by more than `threshold`, the most effective moves
  are made, down to half of the threshold, so that the next small change causes no further move, and
  at most `churn` of the whole load at a time.

The load of a slot is its measured cost; without measurements all slots have equal loads. Slots with
almost no load are *idle* and are shared by number, apart from the others: their future load is then
spread evenly without moves. A share is proportional to the capacity of a replica. A move is made
only if it lowers the fuller of two replicas without lifting the other above it; so no plan reverts
another, and under constant loads no further moves are planned.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["Policy", "plan", "weights_of"]

_IDLE: Final = 0.01  # fraction of the mean load; slots up to this load are idle
_POLISH: Final = 0.005  # members above their share by no more than this give no slots to new ones
_EPSILON: Final = 1e-9
_Slots = list[tuple[float, int]]  # weight and slot, in order
_Part = tuple[Collection[int], Sequence[float] | None]  # slots, and the load of each slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the balance: when to move slots between live replicas, and how many.

    - `threshold`: rebalance when the most loaded replica exceeds its share by more than this
      fraction.
    - `interval_s`: shortest time between two rebalances.
    - `churn`: at most this fraction of the whole load is moved at a time.
    - `settle_s`: in a rolling update a new member waits for the leaving member whose slots it gets;
      a new member is filled from all other members only after no member has joined or left for this
      time.
    """

    threshold: float = 0.1
    interval_s: float = 30.0
    churn: float = 0.1
    settle_s: float = 30.0

    def validate(self) -> None:
        """Raise ConfigError, naming the configuration key, if a value is outside of its range."""
        for field, value, held in (
            ("sharding.rebalanceThreshold", self.threshold, self.threshold > 0),
            ("sharding.rebalanceInterval", self.interval_s, self.interval_s > 0),
            ("sharding.churnBudget", self.churn, 0 < self.churn <= 1),
        ):
            if not held:
                limit = "between 0 and 1" if field.endswith("Budget") else "more than 0"
                raise ConfigError(f"must be {limit}", field=field, value=value)
        if self.settle_s < 0:
            raise ConfigError(
                "must not be negative", field="sharding.settlePeriod", value=self.settle_s
            )


def weights_of(loads: Mapping[int, float], slots: int) -> list[float] | None:
    """Return the load of each slot as the balance uses it; None without any measurement."""
    total = sum(loads.values())
    if total <= 0:
        return None
    mean = total / len(loads)
    # An unmeasured slot counts as an average one.
    return [loads.get(slot, mean) for slot in range(slots)]


def plan(
    current: Sequence[str],
    members: Mapping[str, float],
    *,
    weights: Sequence[float] | None = None,
    fixed: Collection[int] = (),
    newcomers: Collection[str] = (),
    threshold: float | None = None,
    churn: float = 1.0,
) -> list[str]:
    """Return the owner that each slot should have.

    `members` are the replicas that may own slots, with their capacities; `fixed` slots keep their
    owners; slots whose owner is not a member (or is "") are placed. `newcomers` are filled up to
    their shares. With a `threshold`, loads are balanced if a member exceeds its share by more than
    that. A slot without a possible owner stays "".
    """
    wanted = list(current)
    if not members:
        return [owner if slot in fixed else "" for slot, owner in enumerate(wanted)]
    homeless = [s for s, owner in enumerate(wanted) if owner not in members and s not in fixed]
    if not homeless and not newcomers and threshold is None:
        return wanted
    for slots, costs in _parts(weights, len(wanted)):
        board = _Board(wanted, members, costs, fixed, slots)
        board.place([slot for slot in homeless if slot in slots])
        if newcomers:
            board.even(newcomers, tolerance=_POLISH if costs else 0.0)
        if threshold is not None and board.peak() > 1 + threshold + _EPSILON:
            board.even(members, tolerance=threshold / 2, budget=churn)
    return wanted


def _parts(weights: Sequence[float] | None, slots: int) -> Iterator[_Part]:
    """Yield the slots that are balanced by load, then those that are balanced by number."""
    if weights is None:
        yield range(slots), None
        return
    negligible = _IDLE * sum(weights) / max(slots, 1)
    idle = frozenset(slot for slot in range(slots) if weights[slot] <= negligible)
    if len(idle) < slots:
        yield frozenset(range(slots)) - idle, weights
    if idle:
        yield idle, None


class _Board:
    """State of a plan: the load of each member, and the slots that may still move."""

    def __init__(
        self,
        wanted: list[str],
        members: Mapping[str, float],
        weights: Sequence[float] | None,
        fixed: Collection[int],
        slots: Collection[int],
    ) -> None:
        self.wanted = wanted
        self.weights = weights or [1.0] * len(wanted)
        self.uniform = weights is None
        self.members = members
        self.load = dict.fromkeys(members, 0.0)
        self.movable: dict[str, _Slots] = {member: [] for member in members}
        total = 0.0
        for slot in slots:
            owner, weight = wanted[slot], self.weights[slot]
            if owner in members:
                self.load[owner] += weight
                if slot not in fixed:
                    self.movable[owner].append((weight, slot))
            elif slot in fixed:
                continue  # the owner takes no part in balancing
            total += weight
        for movable in self.movable.values():
            movable.sort()
        self.total = total
        capacity = sum(members.values())
        self.share = {member: total * each / capacity for member, each in members.items()}

    def peak(self) -> float:
        """Return the load of the most loaded member, relative to its share."""
        return max(map(self._relative, self.members))

    def place(self, homeless: list[int]) -> None:
        """Assign slots without an owner to the least loaded members, the heaviest slot first."""
        heap = [(self._relative(member), member) for member in self.members]
        heapq.heapify(heap)
        if not self.uniform:
            homeless.sort(key=lambda slot: -self.weights[slot])
        taken: dict[str, int] = {}
        for slot in homeless:
            member = heap[0][1]
            taken[member] = taken.get(member, 0) + 1
            self.load[member] += self.weights[slot]
            heapq.heapreplace(heap, (self._relative(member), member))
            if not self.uniform:
                self._settle(slot, member)
        if self.uniform:  # equal loads: neighbouring slots get one owner
            slots = iter(homeless)
            for member in sorted(taken):
                for _ in range(taken[member]):
                    self._settle(next(slots), member)

    def even(
        self, receivers: Collection[str], *, tolerance: float, budget: float | None = None
    ) -> None:
        """Move slots to `receivers` until no member exceeds its share by more than `tolerance`.

        `budget` is the fraction of the whole load that may move; one move is always allowed.
        """
        spent, limit = 0.0, float("inf") if budget is None else budget * self.total
        givers = [(-self._relative(member), member) for member in self.members]
        heapq.heapify(givers)
        while givers and spent < limit:
            giver = givers[0][1]
            if self._relative(giver) <= 1 + tolerance:
                return
            receiver = min(receivers, key=lambda each: (self._relative(each), each))
            moved = self._move(giver, receiver, limit - spent if spent else float("inf"))
            if moved:
                spent += moved
                heapq.heapreplace(givers, (-self._relative(giver), giver))
            else:
                heapq.heappop(givers)  # no slot of this member fits another member

    def _move(self, giver: str, receiver: str, limit: float) -> float:
        """Move the best slot from `giver` to `receiver`; return the slot's load, or 0 if no move
        helps."""
        index = self._pick(giver, receiver, limit)
        if index is None:
            return 0.0
        weight, slot = self.movable[giver].pop(index)
        self.load[giver] -= weight
        self.load[receiver] += weight
        self.wanted[slot] = receiver
        insort(self.movable[receiver], (weight, slot))
        return weight

    def _pick(self, giver: str, receiver: str, limit: float) -> int | None:
        """Return the index of the slot of `giver` to move: the largest that neither takes `giver`
        below nor `receiver` above its share, else the next larger one; None if no move helps."""
        slots = self.movable[giver]
        above = self.load[giver] - self.share[giver]
        below = self.share[receiver] - self.load[receiver]
        room = max(min(above, below), 0.0)
        index = bisect_right(slots, (min(room, limit) + _EPSILON, len(self.wanted)))
        if index and slots[index - 1][0] >= room / 2:
            return index - 1 if self._helps(giver, receiver, slots[index - 1][0]) else None
        for each in (index, index - 1):
            if not 0 <= each < len(slots) or slots[each][0] > limit:
                continue
            if self._helps(giver, receiver, slots[each][0]):
                return each
        return None

    def _helps(self, giver: str, receiver: str, weight: float) -> bool:
        if not weight > 0 or giver == receiver:
            return False
        after = (self.load[receiver] + weight) / self.share[receiver]
        return after < self._relative(giver) - _EPSILON

    def _settle(self, slot: int, member: str) -> None:
        self.wanted[slot] = member
        insort(self.movable[member], (self.weights[slot], slot))

    def _relative(self, member: str) -> float:
        share = self.share[member]
        return self.load[member] / share if share else 0.0
