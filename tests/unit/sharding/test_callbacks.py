"""Handlers, notifiers and watchers that cannot be called are refused before the first call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.kinds import Pod
from kubeocean.sharding import NodeWatcher, ResourceHandler, ShardNotifier
from kubeocean.sharding.callbacks import check_callbacks


class Good(ResourceHandler[Pod]):
    async def handle_add(self, obj: Pod) -> None: ...

    def should_process(self, obj: Pod) -> bool:
        return False


class Empty(ResourceHandler[Pod]):
    pass


class Blocking(ResourceHandler[Pod]):
    def handle_add(self, obj: Pod) -> None: ...  # type: ignore[override]


class Waiting(ResourceHandler[Pod]):
    async def handle_add(self, obj: Pod) -> None: ...

    async def should_process(self, obj: Pod) -> bool:  # type: ignore[override]
        return False


class Misspelled(Good):
    async def handle_change(self, old: Pod, new: Pod) -> None: ...


class Lost(ShardNotifier):
    def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None: ...  # type: ignore[override]


class Duck:
    async def handle_add(self, obj: Pod) -> None: ...


def counted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*arguments: Any) -> Any:
        return method(*arguments)

    return wrapper


class Decorated(ResourceHandler[Pod]):
    @counted
    async def handle_add(self, obj: Pod) -> None: ...


def check(given: object, base: type = ResourceHandler) -> None:
    check_callbacks(given, base, field="handler", prefix="handle_")


@pytest.mark.parametrize("given", [Good(), Decorated(), Misspelled()])
def test_an_object_that_overrides_a_method_is_accepted(given: object) -> None:
    check(given)


@pytest.mark.parametrize(
    ("given", "base", "message"),
    [
        (Good, ResourceHandler, "must be an object and not a class; write Good(…) (got 'Good')"),
        (Duck(), ResourceHandler, "must be an object of a subclass of ResourceHandler"),
        (None, NodeWatcher, "must be an object of a subclass of NodeWatcher"),
        (Empty(), ResourceHandler, "must override one of handle_add, handle_update, handle_delete"),
        (Blocking(), ResourceHandler, "handle_add must be declared with `async def` (got"),
        (Waiting(), ResourceHandler, "should_process must be declared with `def`, not with"),
        (Lost(), ShardNotifier, "on_shard_lost must be declared with `async def`"),
    ],
)
def test_an_object_that_cannot_be_called_is_refused(
    given: object, base: type, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(given, base)
    assert str(caught.value).startswith("handler: ")
    assert message in str(caught.value)


def test_a_method_that_is_never_called_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(Good())
        assert caplog.text == ""
        check(Misspelled())
    assert "not a callback" in caplog.text
