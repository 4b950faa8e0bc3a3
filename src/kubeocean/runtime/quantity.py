"""Quantities: exact amounts of resources, read and printed as Kubernetes does.

An amount is a whole number of nano-units; nothing here is ever a float. Amounts finer than a nano
are rounded away from zero, so that a small request is not rounded to nothing; an amount with a
binary suffix is capped at 2^63-1. Quantities are equal when their amounts are: `1000m` is `1`.

`str` gives the text that an API server would: the largest suffix that needs no fraction, in the
format that the amount was written in. As on the server, a number that looks canonical already keeps
its text (`1.500`, `+1`); `canonical` does not keep that text.

Three differences from Kubernetes are intended: a text without a digit (`Ki`) is an error and not
zero; an exponent beyond ±999 is an error and not a wrapped or unbounded number; an amount that is
too large for the last suffix (`1000E`) is printed with that suffix and not without any.

`parse` refuses such a text, which is right for settings and policies. An API server stores more
(`1e5000` as `100e4998`), and any tenant may write such amounts: amounts of objects on a server are
read with `stored`, which caps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["ZERO", "Format", "Quantity"]


class Format(Enum):
    """Notation in which an amount was written and is printed: `12M`, `12Mi` or `12e6`."""

    DECIMAL_SI = "DecimalSI"  # 12M
    BINARY_SI = "BinarySI"  # 12Mi
    DECIMAL_EXPONENT = "DecimalExponent"  # 12e6


_MILLI: Final = 10**6
_WHOLE: Final = 10**9
_CAP: Final = (2**63 - 1) * _WHOLE
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount in nano-units; immutable, hashable and ordered by the amount alone."""

    nano: int
    format: Format = field(default=Format.DECIMAL_SI, compare=False)
    text: str = field(default="", compare=False, repr=False)  # as printed, if known

    @classmethod
    def parse(cls, value: str | int | float, *, field: str = "") -> Quantity:
        """Parse a text or a number of a document; errors name `field`."""
        try:
            return _parse(str(value).strip())
        except ValueError as error:
            raise ConfigError(str(error), field=field, value=value) from None

    @classmethod
    def stored(cls, value: str | int | float, *, field: str = "") -> Quantity:
        """Read an amount that an API server stores, capped at 2^63-1 units in either direction.

        :raises ConfigError: the value is no quantity, so no API server can have stored it.
        """
        text = str(value).strip()
        try:
            return _capped(text)
        except ValueError as error:
            raise ConfigError(str(error), field=field, value=text[:_LONGEST]) from None

    @classmethod
    def whole(cls, value: int, format: Format = Format.DECIMAL_SI) -> Quantity:
        """Return the amount of `value` units."""
        return cls(value * _WHOLE, format)

    @classmethod
    def milli(cls, value: int, format: Format = Format.DECIMAL_SI) -> Quantity:
        """Return the amount of `value` thousandths of a unit."""
        return cls(value * _MILLI, format)

    def value(self) -> int:
        """Return the amount in whole units, rounded away from zero."""
        return _divide_away(self.nano, _WHOLE)

    def milli_value(self) -> int:
        """Return the amount in thousandths of a unit, rounded away from zero."""
        return _divide_away(self.nano, _MILLI)

    def scaled(self, factor: Fraction | int, *, unit: Quantity | None = None) -> Quantity:
        """Return this amount times `factor`, rounded down to a multiple of `unit`.

        The default unit is a whole for binary amounts (there is no half byte), else a milli.
        """
        if unit is not None:
            step = unit.nano
        else:
            step = _WHOLE if self.format is Format.BINARY_SI else _MILLI
        steps = self.nano * factor.numerator // (factor.denominator * step)
        return Quantity(steps * step, self.format)

    def percent(self, percent: int, *, unit: Quantity | None = None) -> Quantity:
        """Return `percent` hundredths of this amount, rounded down as `scaled` does."""
        return self.scaled(Fraction(percent, 100), unit=unit)

    def canonical(self) -> str:
        """Return the canonical text of this amount in its format."""
        if self.format is Format.BINARY_SI and self._binary_is_exact():
            return _print(self.nano // _WHOLE, 1024, _BINARY_SUFFIXES)
        if self.format is Format.DECIMAL_EXPONENT:
            return _print_exponent(self.nano)
        return _print(self.nano, 1000, _DECIMAL_SUFFIXES)

    def _binary_is_exact(self) -> bool:
        return abs(self.nano) >= 1024 * _WHOLE and self.nano % _WHOLE == 0

    def __str__(self) -> str:
        return self.text or self.canonical()

    def __bool__(self) -> bool:
        return self.nano != 0

    # As in Kubernetes, zero does not determine the format of a sum.

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.format if self else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.format if self else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nano, self.format)


ZERO: Final = Quantity(0)


# Exponents of ten and of two, by suffix.
_SCALES: Final[dict[str, tuple[int, int, Format]]] = {
    **{s: (3 * n - 9, 0, Format.DECIMAL_SI) for n, s in enumerate(_DECIMAL_SUFFIXES)},
    **{s: (0, 10 * n, Format.BINARY_SI) for n, s in enumerate(_BINARY_SUFFIXES) if s},
}
_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]+)"
)
# Far beyond any resource, and far below numbers that are costly to hold or to print.
_LONGEST: Final = 1000
_LARGEST_EXPONENT: Final = 999
_CAPPED_POWER: Final = 20  # a number from 10^20 on is above the cap, whatever its other digits are
_DIGITS_THAT_COUNT: Final = 60  # below the cap, down to a nano of the largest binary suffix


class _OutOfBoundsError(ValueError):
    """Raised for a quantity whose length or exponent is too large to compute with."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    if len(text) > _LONGEST:
        raise _OutOfBoundsError(f"a quantity may not be longer than {_LONGEST} characters")
    match = _match(text)
    sign, suffix = match["sign"], match["suffix"]
    digits, fraction = match["digits"].lstrip("0") or "0", match["fraction"] or ""
    tens, twos, format = _SCALES.get(suffix) or _exponent(suffix)

    amount = int(digits + fraction) << twos
    shift = tens + 9 - len(fraction)
    nano = amount * 10**shift if shift >= 0 else _divide_away(amount, 10**-shift)
    if format is Format.BINARY_SI:
        nano = min(nano, _CAP)
        if 0 < nano < _WHOLE:
            format = Format.DECIMAL_SI
    quantity = Quantity(-nano if sign == "-" else nano, format)
    keep = _looks_canonical(digits, fraction, tens, twos)
    return Quantity(quantity.nano, format, text if keep else quantity.canonical())


def _match(text: str) -> re.Match[str]:
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match["digits"] or match["fraction"]):
        raise ValueError("must be a quantity such as 500m, 2, 1.5Gi or 1e3")
    return match


def _capped(text: str) -> Quantity:
    try:
        quantity = _parse(text)
    except _OutOfBoundsError:
        quantity = _parse(_within_bounds(_match(text)))
    if abs(quantity.nano) <= _CAP:
        return quantity
    return Quantity(_CAP if quantity.nano > 0 else -_CAP, quantity.format)


def _within_bounds(match: re.Match[str]) -> str:
    """Return a shorter text for the same amount, or for an amount that is capped or rounded to the
    same.

    Linear in the length of the text: the whole text is never converted to a number.
    """
    sign, suffix, fraction = match["sign"], match["suffix"], match["fraction"] or ""
    digits = match["digits"].lstrip("0")
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        # Written as 0.<significant digits> with the matching exponent.
        significant = (digits + fraction).lstrip("0")
        if not significant:
            return "0"
        power = len(significant) - len(fraction) + _clamped(suffix[1:])
        if power > _CAPPED_POWER:
            return f"{sign}1e{_CAPPED_POWER}"
        suffix, digits, fraction = f"e{max(power, -_LARGEST_EXPONENT)}", "", significant
    if len(digits) > _DIGITS_THAT_COUNT:
        digits, fraction = digits[:_DIGITS_THAT_COUNT], ""
    rest = fraction[_DIGITS_THAT_COUNT:].strip("0")
    # Amounts are rounded away from zero, so a digit must stand for those that are cut.
    return f"{sign}{digits or '0'}.{fraction[:_DIGITS_THAT_COUNT]}{'1' if rest else ''}{suffix}"


def _clamped(exponent: str) -> int:
    """Return an exponent of any length, capped at ±10^9; no text has enough digits to compensate
    that."""
    digits = exponent.lstrip("+-").lstrip("0") or "0"
    amount = int(digits) if len(digits) <= 9 else 10**9
    return -amount if exponent.startswith("-") else amount


def _exponent(suffix: str) -> tuple[int, int, Format]:
    if abs(exponent := _clamped(suffix[1:])) > _LARGEST_EXPONENT:
        raise _OutOfBoundsError(
            f"the exponent must be between -{_LARGEST_EXPONENT} and {_LARGEST_EXPONENT}"
        )
    return exponent, 0, Format.DECIMAL_EXPONENT


def _looks_canonical(digits: str, fraction: str, tens: int, twos: int) -> bool:
    """Return whether an API server keeps the text of this number, by the test that its parser
    makes.

    The test is a shortcut for short numbers and accepts a few that are not canonical. The same test
    is made here, because servers store, send and compare the texts that pass.
    """
    if twos:
        short = len(digits) + twos * 3 // 10 < 15
        return short and not fraction and int(digits) % 8 != 0
    scale, number = tens - len(fraction), digits + fraction
    short = len(number) <= 18 and scale >= -9
    return short and scale % 3 == 0 and number[0] != "0" and not number.endswith("000")


def _divide_away(amount: int, by: int) -> int:
    """Return the quotient, rounded away from zero."""
    return -(-amount // by) if amount >= 0 else amount // by


def _print(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    """Return the amount with the largest suffix that divides it without a remainder; suffixes
    ascend by factors of `base`.
    """
    if amount == 0:
        return "0"
    step = 0
    while amount % base == 0 and step < len(suffixes) - 1:
        amount, step = amount // base, step + 1
    return f"{amount}{suffixes[step]}"


def _print_exponent(nano: int) -> str:
    if nano == 0:
        return "0"
    exponent = -9
    while nano % 1000 == 0:
        nano, exponent = nano // 1000, exponent + 3
    return f"{nano}e{exponent}" if exponent else str(nano)
