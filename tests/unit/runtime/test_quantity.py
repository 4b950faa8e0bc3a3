"""Quantities against a model of the grammar in fractions, and against the output of Kubernetes."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.quantity import ZERO, Format, Quantity
from support.quantity_strategies import CAP, SCALES, Written, quantities

unhurried = settings(deadline=None)  # a busy machine is no failure

NANO = Fraction(1, 10**9)


def away(amount: Fraction) -> int:
    return math.ceil(amount) if amount >= 0 else math.floor(amount)


def amount_of(quantity: Quantity) -> Fraction:
    return quantity.nano * NANO


def naive_print(amount: Fraction, format: Format) -> str:
    """Return the amount with the largest suffix of the format that divides it, by trying all."""
    binary = format is Format.BINARY_SI and abs(amount) >= 1024 and amount.denominator == 1
    if format is Format.DECIMAL_EXPONENT:
        suffixes = {f"e{n}": Fraction(10) ** n for n in range(-9, 72, 3) if n} | {"": Fraction(1)}
    elif binary:
        suffixes = {s: scale for s, scale in SCALES.items() if s.endswith("i") or not s}
    else:
        suffixes = {s: scale for s, scale in SCALES.items() if not s.endswith("i")}
    whole = [s for s, scale in suffixes.items() if (amount / scale).denominator == 1]
    best = max(whole, key=lambda s: suffixes[s])
    return f"{amount / suffixes[best]}{best}" if amount else "0"


@unhurried
@given(quantities())
def test_the_amount_is_the_number_times_its_suffix_rounded_away_and_capped(
    written: Written,
) -> None:
    exact = away(written.exact / NANO) * NANO
    capped = max(-CAP, min(CAP, exact)) if written.suffix.endswith("i") else exact
    assert amount_of(Quantity.parse(written.text)) == capped


@unhurried
@given(quantities())
def test_the_format_follows_the_suffix(written: Written) -> None:
    quantity = Quantity.parse(written.text)
    if written.suffix.endswith("i"):
        fraction_of_one = 0 < abs(amount_of(quantity)) < 1
        assert quantity.format is (Format.DECIMAL_SI if fraction_of_one else Format.BINARY_SI)
    elif written.suffix in SCALES:
        assert quantity.format is Format.DECIMAL_SI
    else:
        assert quantity.format is Format.DECIMAL_EXPONENT


@unhurried
@given(quantities())
@example(Written("+", "1", "", ""))
@example(Written("", "1", "500", ""))
@example(Written("", "1", "", "Ki"))
def test_the_text_of_a_quantity_reads_as_the_same_amount(written: Written) -> None:
    quantity = Quantity.parse(written.text)
    assert Quantity.parse(str(quantity)) == quantity
    assert Quantity.parse(quantity.canonical()) == quantity


@unhurried
@given(quantities())
def test_the_canonical_text_is_the_shortest_way_to_write_it_whole(written: Written) -> None:
    quantity = Quantity.parse(written.text)
    assert quantity.canonical() == naive_print(amount_of(quantity), quantity.format)


@unhurried
@given(quantities())
@example(Written("", "2", "9296875", "Ki"))
def test_printing_twice_prints_the_same(written: Written) -> None:
    once = Quantity.parse(Quantity.parse(written.text).canonical())
    # A binary amount that is no multiple of 1024 has no binary text, and is printed as a decimal.
    if once.format is Quantity.parse(written.text).format:
        assert once.canonical() == Quantity.parse(written.text).canonical()
    assert Quantity.parse(once.canonical()).canonical() == once.canonical()
    assert str(Quantity.parse(str(once))) == str(once)


@unhurried
@given(quantities(), quantities())
def test_order_equality_and_hash_are_those_of_the_amounts(one: Written, other: Written) -> None:
    a, b = Quantity.parse(one.text), Quantity.parse(other.text)
    for compare in (operator.lt, operator.le, operator.ge, operator.gt):
        assert compare(a, b) == compare(a.nano, b.nano)
    assert (a == b) == (amount_of(a) == amount_of(b))
    assert min(a, b).nano == min(a.nano, b.nano)
    assert max(a, b).nano == max(a.nano, b.nano)
    assert (a != b) or hash(a) == hash(b)


@unhurried
@given(quantities(), quantities())
@example(Written("", "1", None, "T"), Written("-", "1", None, "e12"))
def test_sums_and_differences_are_exact(one: Written, other: Written) -> None:
    a, b = Quantity.parse(one.text), Quantity.parse(other.text)
    assert amount_of(a + b) == amount_of(a) + amount_of(b)
    assert amount_of(a - b) == amount_of(a) - amount_of(b)
    assert a - b == a + -b
    # The sum with zero has the format of the other amount.
    assert (a + b).format is (a or b).format
    assert (a + b - b).format is (a + b or b).format


@unhurried
@given(quantities())
def test_values_are_rounded_away_from_zero(written: Written) -> None:
    quantity = Quantity.parse(written.text)
    assert quantity.value() == away(amount_of(quantity))
    assert quantity.milli_value() == away(amount_of(quantity) * 1000)


@unhurried
@given(
    quantities(),
    st.fractions(min_value=0, max_value=3),
    st.sampled_from(["1n", "1m", "1", "250m", "4Ki"]),
)
def test_scaling_rounds_down_to_the_unit(written: Written, factor: Fraction, text: str) -> None:
    quantity, unit = Quantity.parse(written.text), Quantity.parse(text)
    scaled = quantity.scaled(factor, unit=unit)
    exact = amount_of(quantity) * factor
    assert exact - amount_of(unit) < amount_of(scaled) <= exact
    assert scaled.nano % unit.nano == 0
    assert scaled.format is quantity.format


@pytest.mark.parametrize(
    ("text", "percent", "expected"),
    [
        ("4", 80, "3200m"),
        ("1", 33, "330m"),
        ("1m", 50, "0"),
        ("1500u", 100, "1m"),
        ("1Gi", 50, "512Mi"),
        ("1Gi", 33, "354334801"),
        ("1e3", 50, "500"),
        ("-1", 33, "-330m"),
        ("1", 0, "0"),
    ],
)
def test_a_percentage_is_whole_bytes_or_whole_millis(
    text: str, percent: int, expected: str
) -> None:
    assert str(Quantity.parse(text).percent(percent)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0.000Ki", "0"),
        ("0e3", "0"),
        ("1.5", "1500m"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("-0.5Ki", "-512"),
        ("-1024Ki", "-1Mi"),
        ("0.0001Ki", "102400u"),
        ("1.0001Ki", "1024102400u"),
        ("2.9296875Ki", "3000"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("10e2", "1e3"),
        ("1e2", "100"),
        ("1e-3", "1e-3"),
        ("1e-1", "100e-3"),
        ("1000", "1k"),
        ("1000000", "1M"),
        (".5", "500m"),
        ("5.", "5."),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.1n", "2n"),
        ("0.0000000001", "1n"),
        ("1e-10", "1e-9"),
        ("1e-999", "1e-9"),
        ("16Ei", "9223372036854775807"),
        ("-16Ei", "-9223372036854775807"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775808"),
        ("1E", "1E"),
        ("100E", "100E"),
        ("1e30", "1e30"),
    ],
)
def test_it_prints_what_kubernetes_prints(text: str, expected: str) -> None:
    assert str(Quantity.parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.500", "1500m"),
        ("+1", "1"),
        ("01", "1"),
        ("1.Ki", "1Ki"),
        ("001.234k", "1234"),
        ("1e+3", "1e3"),
        ("1001", "1001"),
        ("0" + "1" * 11 + "Ki", "1" * 11 + "Ki"),
        ("0" + "1" * 8 + "Mi", "1" * 8 + "Mi"),
    ],
)
def test_text_that_looks_canonical_is_kept_until_the_amount_changes(
    text: str, canonical: str
) -> None:
    quantity = Quantity.parse(text)
    assert str(quantity) == text
    assert quantity.canonical() == str(quantity + ZERO) == canonical


@pytest.mark.parametrize("text", ["1" * 12 + "Ki", "1" * 9 + "Mi"])
def test_text_of_a_long_binary_number_is_not_kept(text: str) -> None:
    assert str(Quantity.parse("0" + text)) == text


@pytest.mark.parametrize("text", ["1000E", "1000000E", "-5000E"])
def test_what_exceeds_the_last_suffix_keeps_it(text: str) -> None:
    assert str(Quantity.parse(text)) == text


def test_a_binary_sum_beyond_the_cap_is_exact() -> None:
    seven = Quantity.parse("7Ei")
    assert str(seven + seven) == "14Ei"
    assert str(Quantity.whole(2**70, Format.BINARY_SI)) == "1024Ei"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        ".",
        "Ki",
        "m",
        "e3",
        "1K",
        "1ki",
        "1KI",
        "1i",
        "1mi",
        "1 Gi",
        "1e",
        "1e+",
        "1e1.5",
        "1.1.1",
        "--1",
        "1-",
        "0x10",
        "1_000",
        "١",
        "1,5",
        "1Gib",
        "1kk",
        "1e1000",
        "1e-1000",
        "1" * 1001,
        "nan",
        "inf",
    ],
)
def test_what_is_not_a_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"spec\.limits\.cpu") as refused:
        Quantity.parse(text, field="spec.limits.cpu")
    assert refused.value.field == "spec.limits.cpu"
    assert refused.value.value == text
    assert repr(text)[:200] in str(refused.value)  # of a long text only the beginning


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, "2"), (0.5, "500m"), (1e22, "10e21"), (-3, "-3"), (" 1Gi\n", "1Gi")],
)
def test_bare_numbers_and_blanks_are_read_as_documents_have_them(
    value: str | int | float, expected: str
) -> None:
    assert str(Quantity.parse(value)) == expected


@pytest.mark.parametrize("value", [True, float("nan"), float("inf")])
def test_other_values_are_refused(value: float) -> None:
    with pytest.raises(ConfigError):
        Quantity.parse(value)


def test_the_longest_texts_can_still_be_printed() -> None:
    largest = Quantity.parse("9" * 995 + "e999")
    assert Quantity.parse("-" + "9" * 995 + "e999") == -largest
    assert str(largest + largest).endswith("8e999")


def test_equal_amounts_are_one_key_whatever_the_format() -> None:
    assert {Quantity.parse("1000m"): "a"}[Quantity.parse("1")] == "a"
    assert len({Quantity.parse(text) for text in ("1Ki", "1024", "1.024k", "1024e0")}) == 1


def test_constructors_and_truth() -> None:
    assert Quantity.whole(2) == Quantity.milli(2000) == Quantity.parse("2")
    assert str(Quantity.whole(2**30, Format.BINARY_SI)) == "1Gi"
    assert not ZERO
    assert Quantity.parse("-1n")
    assert sum([Quantity.parse("1Gi"), Quantity.parse("1Mi")], ZERO) == Quantity.parse("1025Mi")
    assert str(ZERO + Quantity.parse("1Gi")) == "1Gi"
    assert str(Quantity.parse("0") - Quantity.parse("2e3")) == "-2e3"


def test_repeated_texts_are_parsed_once() -> None:
    assert Quantity.parse("123456Mi") is Quantity.parse("123456Mi")


def test_a_quantity_cannot_change() -> None:
    with pytest.raises(AttributeError):
        Quantity.parse("1").nano = 2


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100e4998", str(LARGEST)),
        ("-100e4998", str(-LARGEST)),
        ("1e" + "9" * 5000, str(LARGEST)),
        ("9" * 5000, str(LARGEST)),
        ("9" * 5000 + "n", str(LARGEST)),
        ("9" * 5000 + "Ei", str(LARGEST)),
        ("1000E", str(LARGEST)),
        ("1e-5000", "1e-9"),
        ("-1e-5000", "-1e-9"),
        ("0e5000", "0"),
        ("0" * 5000 + "2", "2"),
        ("0." + "0" * 5000 + "1", "1n"),
        ("1." + "0" * 5000 + "1Ki", "1024000000001n"),
        ("1" + "0" * 2000 + "e-2000", "1"),
        ("0." + "0" * 2000 + "25e2001", "2500e-3"),
        ("500m", "500m"),
        ("1Gi", "1Gi"),
    ],
)
def test_what_a_server_stores_is_capped_and_never_refused(text: str, expected: str) -> None:
    assert Quantity.stored(text) == Quantity.parse(expected)


@given(quantities())
def test_amounts_within_bounds_are_stored_as_parsed(written: Written) -> None:
    parsed, stored = Quantity.parse(written.text), Quantity.stored(written.text)
    cap = Quantity.whole(LARGEST)
    assert stored == max(-cap, min(cap, parsed))
    if stored == parsed:
        assert str(stored) == str(parsed)


@given(
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=5000),
    st.text("0123456789", max_size=5000),
    st.sampled_from([*SCALES]) | st.integers(-(10**12), 10**12).map(lambda power: f"e{power}"),
)
def test_any_number_can_be_stored_and_printed(
    sign: str, digits: str, fraction: str, suffix: str
) -> None:
    quantity = Quantity.stored(f"{sign}{digits}.{fraction}{suffix}")
    assert abs(quantity.value()) <= LARGEST
    assert Quantity.stored(str(quantity)) == quantity


@pytest.mark.parametrize("text", ["", "much", "1e", "9" * 5000 + "Gib"])
def test_what_no_server_stores_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Quantity.stored(text)
