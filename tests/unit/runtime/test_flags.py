"""Flags as Go programs parse them: every form of writing, and errors that name the flag."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import (
    BindAddress,
    address,
    boolean,
    duration,
    flag,
    integer,
    number,
    one_of,
    parse,
    text,
    usage,
)

UNITS = {"ns": 10**9, "us": 10**6, "µs": 10**6, "μs": 10**6, "ms": 1000, "s": 1}
NAMES = ("name", "count", "wait", "verbose", "where", "color")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: str = flag("name", text, "", "Who it is for.", required=True)
    count: int = flag("count", integer, "3", "How many.")
    wait_s: float = flag("wait", duration, "1m30s", "How long.")
    verbose: bool = flag("verbose", boolean, "false", "Whether to say more.")
    where: BindAddress | None = flag("where", address, ":80", "Where.")
    color: str = flag("color", one_of("", "red", "blue"), "", "Which colour.")
    remembered: int = 7  # not a flag


def read(*words: str) -> Example:
    actual = parse(Example, ["--name=x", *words])
    assert actual is not None
    return actual


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*words)
    return str(caught.value)


def test_defaults_are_read_like_anything_else() -> None:
    assert read() == Example(name="x")
    assert (read().wait_s, read().where) == (90.0, BindAddress("", 80, "--where"))


@pytest.mark.parametrize(
    "words", [("--count=5",), ("--count", "5"), ("-count=5",), ("-count", "5"), ("--count=+5",)]
)
def test_a_value_stands_behind_an_equals_sign_or_in_the_next_word(words: tuple[str, ...]) -> None:
    assert read(*words).count == 5


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("--verbose",), True),
        (("-verbose",), True),
        (("--verbose=true",), True),
        (("--verbose=T",), True),
        (("--verbose=1",), True),
        (("--verbose=FALSE",), False),
        (("--verbose=f",), False),
        (("--verbose", "--verbose=0"), False),
        (("--verbose", "--count", "1"), True),
    ],
)
def test_a_boolean_needs_no_value(words: tuple[str, ...], value: bool) -> None:
    assert read(*words).verbose is value


def test_the_last_of_several_wins_and_values_may_look_like_flags() -> None:
    assert read("--count=1", "--count", "2").count == 2
    assert read("--count", "-2").count == -2
    assert read("--name", "--count").name == "--count"
    assert read("--name=a=b").name == "a=b"


@pytest.mark.parametrize("word", ["-h", "--h", "--help", "-help", "--help=true"])
def test_help_wins_over_what_is_missing(word: str) -> None:
    assert parse(Example, [word]) is None
    assert parse(Example, ["--count=1", word, "--nonsense"]) is None


def test_usage_lists_every_flag_with_its_default() -> None:
    shown = usage(Example, program="example", about="Shows flags.")
    assert shown.startswith("Usage: example [flags]\n\nShows flags.\n\nFlags:\n")
    for line in (
        '  --color (default "")\n      Which colour.',
        "  --count (default 3)\n      How many.",
        "  --name (required)\n      Who it is for.",
        "  --verbose (default false)\n",
        "  --wait (default 1m30s)\n",
        "  --where (default :80)\n",
    ):
        assert line in shown
    assert "remembered" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cuont=1",), "--cuont: there is no such flag; did you mean --count?"),
        (("--zzz",), "--zzz: there is no such flag; --help lists them all"),
        (("--remembered=1",), "--remembered: there is no such flag"),
        (("--count",), "--count: needs a value"),
        (("--count=",), "--count: must be a whole number (got '')"),
        (("--count=1.5",), "--count: must be a whole number (got '1.5')"),
        (("--count=" + "9" * 5000,), "--count: must be a whole number"),
        (("--count=٣",), "--count: must be a whole number"),
        (("--verbose=",), "--verbose: must be true or false (got '')"),
        (("--verbose=yes",), "--verbose: must be true or false (got 'yes')"),
        (("--verbose", "false"), "--verbose: takes its value after an equals sign: write --verb"),
        (("--wait=15",), "--wait: must be a duration such as 15s, 1m30s or 500ms (got '15')"),
        (("--where=80",), "--where: must be :PORT"),
        (("--color=green",), "--color: must be one of \"\", red, blue (got 'green')"),
        (("--name=",), "--name: is required"),
        (
            ("stray",),
            "is not a flag; this command accepts only flags, such as --name=value (got 'stray')",
        ),
        (("--",), "is not a flag; this command accepts only flags"),
        (("-",), "is not a flag; this command accepts only flags"),
        (("---count=1",), "is not a flag; this command accepts only flags"),
        (("--=1",), "is not a flag; this command accepts only flags"),
        (("",), "is not a flag; this command accepts only flags"),
    ],
)
def test_what_is_not_understood_is_named(words: tuple[str, ...], message: str) -> None:
    assert refused(*words).startswith(message)


def test_a_required_flag_must_be_there() -> None:
    with pytest.raises(ConfigError, match="--name: is required"):
        parse(Example, ["--count=1"])


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("15s", 15.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("-1.5h", -5400.0),
        ("+.5s", 0.5),
        ("1.s", 1.0),
        ("500ms", 0.5),
        ("1ms500us", 0.0015),
        ("2s1m", 62.0),  # Go does not mind the order
    ],
)
def test_durations_are_go_durations(written: str, seconds: float) -> None:
    assert duration(written, "--wait") == seconds


@pytest.mark.parametrize(
    "written", ["", "s", "-", "+", ".s", "1", "00", "1d", "1 s", "1s ", "1s2", "1e3s", "١s", "--1s"]
)
def test_other_durations_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="--wait: must be a duration"):
        duration(written, "--wait")


@given(st.lists(st.tuples(st.integers(0, 9999), st.sampled_from(list(UNITS))), min_size=1))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    written = "".join(f"{amount}{unit}" for amount, unit in parts)
    if len(written) > 40:
        with pytest.raises(ConfigError):
            duration(written, "--wait")
        return
    assert duration(written, "--wait") == float(sum(Fraction(n, UNITS[unit]) for n, unit in parts))


@pytest.mark.parametrize("written", ["5", "-1", "0.5", ".5", "5.", "1e2", "+2E-1"])
def test_numbers_are_numbers(written: str) -> None:
    assert number(written, "--qps") == float(written)


@pytest.mark.parametrize("written", ["", "nan", "inf", "1_0", " 1", "1e999", "0x1", "9" * 50])
def test_other_numbers_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="--qps: must be a number"):
        number(written, "--qps")


@given(st.integers(-(10**18) + 1, 10**18 - 1), st.booleans(), st.text())
def test_what_is_written_is_read(count: int, verbose: bool, name: str) -> None:
    words = [f"--count={count}", f"--verbose={str(verbose).lower()}"]
    for spelled in ([f"--name=x{name}"], ["-name", f"x{name}"]):
        actual = read(*words, *spelled)
        assert (actual.count, actual.verbose, actual.name) == (count, verbose, f"x{name}")


words = st.one_of(
    st.text(),
    st.builds("{}{}".format, st.sampled_from(["-", "--"]), st.sampled_from(NAMES)),
    st.builds("--{}={}".format, st.sampled_from(NAMES), st.text()),
)


@given(st.lists(words))
def test_any_command_line_is_read_or_refused(line: list[str]) -> None:
    try:
        actual = parse(Example, line)
    except ConfigError as error:
        assert str(error)
    else:
        assert actual is None or actual.name
