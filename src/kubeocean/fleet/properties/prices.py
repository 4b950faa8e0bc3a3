"""Prices: the cost of a machine of each size per hour, by region.

Prices are US dollars for Linux, on demand. The built-in list holds the sizes that the fleet's own
tests use; `read_prices` parses a longer or newer list. Unknown prices are not guessed: if the size
of a node has no price, the costs of its cluster are not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import instant_of

__all__ = ["BUILT_IN", "FALLBACK_REGION", "STALE_AFTER", "PriceList", "read_prices"]

FALLBACK_REGION: Final = "eastus"
STALE_AFTER: Final = timedelta(hours=24)
_MISSING: Final = 999  # stands for an unknown price in published lists


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of machines per hour by region and size, and the date of the list."""

    published: datetime
    regions: Mapping[str, Mapping[str, Fraction]]

    def price(self, region: str, sku: str) -> Fraction | None:
        """Return the price of a machine size per hour; None if it is not known.

        A region that is not listed has the prices of the fallback region.
        """
        prices = self.regions.get(region) or self.regions.get(FALLBACK_REGION) or {}
        price = prices.get(sku)
        return None if price is None or price == _MISSING else price

    def is_stale(self, now: datetime) -> bool:
        return now - self.published > STALE_AFTER


def read_prices(text: bytes) -> PriceList:
    """Parse a price list: `{"published": TIME, "regions": {REGION: {SIZE: PRICE}}}`.

    :raises ConfigError: the text has another form, or a price is not a positive number.
    """
    try:
        document = msgspec.json.Decoder(_PriceDocument, float_hook=Fraction).decode(text)
        published = instant_of(document.published)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"is not a price list: {error}", field="prices") from None
    regions = {
        region: {sku: _price(price, f"{region}.{sku}") for sku, price in prices.items()}
        for region, prices in document.regions.items()
    }
    return PriceList(published if published.tzinfo else published.replace(tzinfo=UTC), regions)


class _PriceDocument(msgspec.Struct):
    published: str
    regions: dict[str, dict[str, Any]]


def _price(written: Any, field: str) -> Fraction:
    if isinstance(written, int | Fraction) and not isinstance(written, bool) and written >= 0:
        return Fraction(written)
    raise ConfigError(
        "must be a positive number of US dollars", field=f"prices.{field}", value=str(written)
    )


def _list(**dollars: str) -> dict[str, Fraction]:
    return {f"Standard_{name}": Fraction(price) for name, price in dollars.items()}


BUILT_IN: Final = PriceList(
    datetime(2025, 5, 16, tzinfo=UTC),
    {
        "westus": _list(
            B2ats_v2="0.0112", B2ts_v2="0.0124", D8s_v5="0.448", E16_v5="1.12", M16ms="3.995"
        ),
        "northeurope": _list(
            B2ats_v2="0.0102", B2ts_v2="0.0206", D8s_v5="0.428", E16_v5="1.128", M16ms="3.6876"
        ),
        "eastasia": _list(
            B2ats_v2="0.0223", B2ts_v2="0.0238", D8s_v5="0.528", E16_v5="1.336", M16ms="5.569875"
        ),
        "eastus": _list(
            B2ats_v2="0.0186", B2ts_v2="0.0196", D8s_v5="0.384", E16_v5="1.008", M16ms="3.073"
        ),
    },
)
