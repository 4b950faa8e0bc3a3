"""Custom algorithm: a sharding algorithm of the user, by import path.

`package.module:Name` is a class, a function that returns an algorithm, or an algorithm object. The
object needs the methods `get_shard` and `rebalance` of `Algorithm`; the other methods are derived
from these two if they are missing. A method may accept fewer arguments than `Algorithm` declares:
`rebalance(nodes, total)` and `validate_shard(shard, key)` are enough.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Final, SupportsIndex

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms.base import Algorithm
from kubeocean.sharding.algorithms.hash_based import ConsistentHash, Hash, Slots
from kubeocean.sharding.slots import SLOTS

__all__ = ["Custom", "as_algorithm", "load_custom"]

_FIELD: Final = "sharding.custom"
_NEEDED: Final = ("get_shard", "rebalance")


class Custom:
    """Wraps the algorithm object of a user: passes the arguments that its methods accept, and
    checks their results.

    `identity` is the import path and, if the user's object has an attribute `identity`, that text:
    replicas with different identities do not form a ring.
    """

    name = "custom"

    def __init__(self, inner: object, *, path: str = "") -> None:
        for verb in _NEEDED:
            if not callable(getattr(inner, verb, None)):
                raise ConfigError(f"has no method {verb}", field=_FIELD, value=path or type(inner))
        self._path = path or f"{type(inner).__module__}:{type(inner).__qualname__}"
        self._inner: Any = inner  # object of a user, of any type
        self._last: dict[str, list[int]] = {}

    @property
    def identity(self) -> str:
        settings = getattr(self._inner, "identity", "")
        return f"{self._path} {settings}" if settings else self._path

    @property
    def sticky(self) -> bool:
        return bool(getattr(self._inner, "sticky", False))

    def get_shard(self, key: str, total: int) -> int:
        shard = self._call("get_shard", key, total)
        if not isinstance(shard, SupportsIndex) or not 0 <= index(shard) < total:
            raise ConfigError(
                f"must return a shard from 0 to {total - 1} for the key {key!r}",
                field=_FIELD,
                value=shard,
            )
        return int(index(shard))  # also of a bool, and of a number of NumPy

    def get_shard_for_node(self, node: str, total: int) -> list[int]:
        verb = getattr(self._inner, "get_shard_for_node", None)
        if verb is not None:
            return list(verb(node, total))
        return [shard for shard in self._last.get(node, []) if shard < total]

    def rebalance(
        self,
        nodes: Sequence[str],
        total: int,
        *,
        previous: Mapping[int, str] | None = None,
        weights: Mapping[int, float] | None = None,
        capacities: Mapping[str, float] | None = None,
    ) -> dict[str, list[int]]:
        more = {"previous": previous, "weights": weights, "capacities": capacities}
        rebalance: Callable[..., object] = self._inner.rebalance
        answer = self._call("rebalance", list(nodes), total, **_taken(rebalance, more))
        self._check(answer, nodes, total)
        self._last = {node: sorted(answer.get(node, ())) for node in nodes}
        return self._last

    def validate_shard(self, shard: int, key: str, total: int = SLOTS) -> bool:
        verb = getattr(self._inner, "validate_shard", None)
        if verb is None:
            return self.get_shard(key, total) == shard
        return bool(verb(shard, key, **_taken(verb, {"total": total})))

    def _call(self, verb: str, *arguments: object, **more: object) -> Any:
        """Return the result of a method of the user's object.

        :raises ConfigError: the method raised an error, which is named in one line.
        """
        try:
            return getattr(self._inner, verb)(*arguments, **more)
        except Exception as error:  # whatever the user's method raises
            message = f"{verb} failed: {type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(message, field=_FIELD, value=self._path) from error

    def _check(self, answer: object, nodes: Sequence[str], total: int) -> None:
        if not isinstance(answer, Mapping):
            message = "rebalance must return a mapping of nodes to lists of shards"
            raise ConfigError(message, field=_FIELD, value=answer)
        if strangers := sorted(map(str, set(answer) - set(nodes))):
            message = "rebalance must not assign shards to nodes that do not exist"
            raise ConfigError(message, field=_FIELD, value=strangers)
        try:
            placed = sorted(shard for shards in answer.values() for shard in shards)
        except TypeError:
            message = "rebalance must return a list of numbers of shards for each node"
            raise ConfigError(message, field=_FIELD, value=self._path) from None
        if nodes and placed != list(range(total)):
            message = f"rebalance must assign each of the {total} shards to exactly one node"
            raise ConfigError(message, field=_FIELD, value=self._path)


def load_custom(path: str) -> Custom:
    """Import the user's sharding algorithm at `package.module:Name` and return it wrapped.

    :raises ConfigError: the path cannot be imported, or does not name an algorithm.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        message = "must be an import path such as package.module:Name"
        raise ConfigError(message, field=_FIELD, value=path)
    try:
        definition = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module raises
        message = f"cannot be imported: {_one_line(error)}"
        raise ConfigError(message, field=_FIELD, value=path) from error
    made = isinstance(definition, type) or not hasattr(definition, "get_shard")
    try:
        return Custom(definition() if made else definition, path=path)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's constructor raises
        message = f"cannot be instantiated: {_one_line(error)}"
        raise ConfigError(message, field=_FIELD, value=path) from error


def as_algorithm(algorithm: object) -> Algorithm:
    """Return an algorithm object as an `Algorithm`; an object that is not of this package is
    wrapped in `Custom`.

    :raises ConfigError: the object has no `get_shard` or no `rebalance`.
    """
    ours = (Hash, ConsistentHash, Slots, Custom)
    return algorithm if isinstance(algorithm, ours) else Custom(algorithm)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ImportError) else f"{type(error).__name__}: {text}"


def _taken(verb: Callable[..., object], offered: Mapping[str, object]) -> dict[str, object]:
    """Return those of the `offered` keyword arguments that the function `verb` accepts."""
    parameters = inspect.signature(verb).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(offered)
    names = {each.name for each in parameters}
    return {name: value for name, value in offered.items() if name in names}
