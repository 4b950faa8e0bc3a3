"""Labels: what may be a key and what may be a value.

A key is a name of at most 63 characters, optionally after a DNS subdomain and a slash; a value is
such a name or empty. A check returns nothing or raises a `ConfigError` that names field and value.
"""

from __future__ import annotations

import re
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["check_label_key", "check_label_value", "check_subdomain"]

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME_RULE: Final = (
    "must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
)
_NAME_LONGEST: Final = 63
_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)
_SUBDOMAIN_LONGEST: Final = 253


def check_label_key(key: str, *, field: str = "") -> None:
    """`name` or `prefix/name`."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _SUBDOMAIN_LONGEST or not _SUBDOMAIN.fullmatch(prefix)):
        raise ConfigError(
            "the prefix of a label key must be a DNS subdomain", field=field, value=key
        )
    if len(name) > _NAME_LONGEST:
        message = f"the name of a label key may have {_NAME_LONGEST} characters"
        raise ConfigError(message, field=field, value=key)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a label key {_NAME_RULE}", field=field, value=key)


def check_label_value(value: str, *, field: str = "") -> None:
    """Empty, or a name."""
    if len(value) > _NAME_LONGEST:
        message = f"a label value may have {_NAME_LONGEST} characters"
        raise ConfigError(message, field=field, value=value)
    if value and not _NAME.fullmatch(value):
        raise ConfigError(f"a label value {_NAME_RULE}", field=field, value=value)


def check_subdomain(name: str, *, field: str = "") -> None:
    """What most objects, nodes among them, may be called."""
    if len(name) > _SUBDOMAIN_LONGEST or not _SUBDOMAIN.fullmatch(name):
        raise ConfigError("must be a lowercase DNS subdomain", field=field, value=name)
