"""Checks of the objects whose methods users override: handlers, notifiers and watchers.

A method that should be `async` and is not fails with every call, for every object; a method with a
misspelled name is never called. Both are found when the object is given to a ring or a controller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from kubeocean.errors import ConfigError
from kubeocean.runtime.logs import get_logger

__all__ = ["check_callbacks"]

_log = get_logger(__name__)


def check_callbacks(given: object, base: type, *, field: str, prefix: str) -> None:
    """Check that `given` is an object of a subclass of `base` whose methods can be called.

    A method that begins with `prefix` and does not exist in `base` is logged: it is never called.

    :raises ConfigError: `given` is a class, is not of a subclass of `base`, overrides no method, or
        overrides a method with one that is not a coroutine function, or should not be one.
    """
    if isinstance(given, type):
        message = f"must be an object and not a class; write {given.__name__}(…)"
        raise ConfigError(message, field=field, value=given.__qualname__)
    kind = type(given)
    if not isinstance(given, base):
        message = f"must be an object of a subclass of {base.__name__}"
        raise ConfigError(message, field=field, value=kind.__qualname__)
    declared = dict(_methods(base))
    if all(getattr(kind, name) is method for name, method in declared.items()):
        message = f"must override one of {', '.join(declared)}"
        raise ConfigError(message, field=field, value=kind.__qualname__)
    for name, method in declared.items():
        needs_async = inspect.iscoroutinefunction(method)
        if _is_async(getattr(given, name)) != needs_async:
            how = "`async def`" if needs_async else "`def`, not with `async def`"
            message = f"{name} must be declared with {how}"
            raise ConfigError(message, field=field, value=kind.__qualname__)
    for name in dir(kind):
        if name.startswith(prefix) and name not in declared:
            _log.warning(
                "Ignored method that is not a callback",
                method=f"{kind.__qualname__}.{name}",
                callbacks=", ".join(declared),
            )


def _methods(base: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the public methods that a class declares."""
    for name, value in vars(base).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield name, value


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method))
