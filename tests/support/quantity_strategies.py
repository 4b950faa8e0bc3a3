"""Quantities as people write them: the whole grammar, as hypothesis strategies."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

__all__ = ["CAP", "SCALES", "Written", "quantities", "stored_quantities"]

CAP = Fraction(2**63 - 1)
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
SCALES: dict[str, Fraction] = {
    **{suffix: Fraction(10) ** (3 * n - 9) for n, suffix in enumerate(_DECIMAL)},
    **{suffix: Fraction(1024) ** (n + 1) for n, suffix in enumerate(_BINARY)},
}


@dataclass(frozen=True)
class Written:
    """The parts of a text, and the exact number that they mean."""

    sign: str
    digits: str
    fraction: str | None
    suffix: str

    @property
    def text(self) -> str:
        point = "" if self.fraction is None else f".{self.fraction}"
        return f"{self.sign}{self.digits}{point}{self.suffix}"

    @property
    def exact(self) -> Fraction:
        number = Fraction(f"{self.sign}{self.digits or 0}.{self.fraction or 0}")
        if self.suffix in SCALES:
            return number * SCALES[self.suffix]
        return number * Fraction(10) ** int(self.suffix[1:])


_digits = st.text("0123456789", max_size=25) | st.sampled_from(["0", "1", "8", "1000", "1024"])
_exponents = st.builds(
    lambda letter, sign, number: f"{letter}{sign}{number}",
    st.sampled_from("eE"),
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 30),
)


def quantities() -> st.SearchStrategy[Written]:
    """Return a strategy of numbers with at least one digit and any suffix."""
    return st.builds(
        Written,
        sign=st.sampled_from(["", "", "+", "-"]),
        digits=_digits,
        fraction=st.none() | _digits,
        suffix=st.sampled_from(list(SCALES)) | _exponents,
    ).filter(lambda written: bool(written.digits or written.fraction))


def stored_quantities(*, largest_exponent: int = 2**31) -> st.SearchStrategy[str]:
    """Return a strategy of texts that an API server may store: numbers of any size, short or with a
    long exponent."""
    exponents = st.integers(-largest_exponent, largest_exponent)
    huge = st.builds("{}e{}".format, st.integers(1, 999), exponents)
    long = st.builds("{}{}".format, st.integers(10**1000, 10**1500), st.sampled_from(list(SCALES)))
    return quantities().map(lambda written: written.text) | huge | long
