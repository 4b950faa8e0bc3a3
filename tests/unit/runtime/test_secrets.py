from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.runtime.redaction import Secret

unhurried = settings(deadline=None)  # a busy machine is no failure
# Longer than a fingerprint, so that no hash can hold it by chance.
values = st.text(min_size=12) | st.binary(min_size=12)


@unhurried
@given(values)
def test_no_way_of_formatting_shows_the_value(value: str | bytes) -> None:
    secret = Secret(value)
    bare = value if isinstance(value, str) else value.decode("latin-1")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", repr({"token": [secret]})]
    assert all(bare not in text and ascii(value)[2:-1] not in text for text in shown)
    assert secret.reveal() == value


def test_the_fingerprint_tells_same_from_different() -> None:
    assert repr(Secret("one token")) == repr(Secret("one token"))
    assert repr(Secret("one token")) != repr(Secret("another token"))
    assert len(str(Secret("x" * 1000))) == len("Secret(01234567)")


@unhurried
@given(values, values)
def test_secrets_are_equal_exactly_if_their_values_are(
    one: str | bytes, other: str | bytes
) -> None:
    assert (Secret(one) == Secret(other)) == (one == other)
    assert Secret(one) == Secret(one)
    assert hash(Secret(one)) == hash(Secret(one))


def test_a_secret_is_equal_to_nothing_else() -> None:
    assert Secret("same") != "same"
    assert Secret("same") != Secret(b"same")


def test_an_empty_secret_is_false() -> None:
    assert not Secret("")
    assert Secret("x")


def test_a_lone_surrogate_can_be_kept_and_compared() -> None:
    assert Secret("\ud800") == Secret("\ud800")
    assert repr(Secret("\ud800")).startswith("Secret(")


def test_a_copy_is_the_same_secret() -> None:
    secret = Secret("value")
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret

    @dataclasses.dataclass
    class Holder:
        token: Secret[str]

    assert dataclasses.asdict(Holder(secret)) == {"token": secret}


def test_a_secret_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Secret("value"))


def test_a_secret_has_no_attributes_to_look_into() -> None:
    assert not hasattr(Secret("value"), "__dict__")
