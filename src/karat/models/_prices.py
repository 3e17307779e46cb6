"""What tokens cost: a bundled, dated table that `KARAT_PRICES` and models.yaml override."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from karat.errors import ConfigError

if TYPE_CHECKING:
    from karat.models.providers import Tokens

MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """Input the provider had cached; where None, the same as `input`."""
    cache_write: float | None = None
    audio_input: float | None = None
    audio_output: float | None = None
    batch: float | None = None
    """What a batch costs of this; where None, it is not known to be cheaper."""
    source: str = ""
    """Where it was read."""
    max_output: int | None = None
    """The most tokens the model can answer with: what a budget reserves when a request sets no limit."""

    @property
    def free(self) -> bool:
        """Whether nothing is charged."""
        return not self.input and not self.output

    def cost(self, tokens: Tokens) -> float:
        """Dollars for these tokens."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = tokens.input - tokens.cache_read - tokens.cache_write
        dollars = plain * self.input + tokens.cache_read * read + tokens.cache_write * write
        if self.audio_input is not None and tokens.audio_input:
            dollars += tokens.audio_input * (self.audio_input - self.input)
        if self.audio_output is not None and tokens.audio_output:
            dollars += tokens.audio_output * (self.audio_output - self.output)
        return max(0.0, dollars + tokens.output * self.output) / MILLION


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices as of a day."""

    date: str
    models: dict[str, Price]
    note: str = ""


def find_price(spec: str) -> Price | None:
    """The price of a model, or None. A dated version (`…-2024-08-06`) costs what its model costs."""
    for table in _tables():
        found = table.models.get(spec) or table.models.get(
            re.sub(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$", "", spec)
        )
        if found is not None:
            return found
    return None


def price_date() -> str:
    """The day of the bundled table."""
    return bundled().date


def _tables() -> list[PriceTable]:
    own = os.environ.get("KARAT_PRICES")
    if not own:
        return [bundled()]
    modified = os.stat(own).st_mtime_ns if os.path.exists(own) else 0
    return [_read(Path(own), modified), bundled()]


@lru_cache(maxsize=1)
def bundled() -> PriceTable:
    """The table that comes with karat."""
    return msgspec.json.decode((Path(__file__).parent / "prices.json").read_bytes(), type=PriceTable)


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int) -> PriceTable:
    try:
        content = path.read_bytes()
        if path.suffix in (".yaml", ".yml"):
            import yaml

            document = yaml.safe_load(content)
            if isinstance(document, dict) and "date" in document:
                document["date"] = str(document["date"])  # YAML reads a day as a date
            return msgspec.convert(document, PriceTable)
        return msgspec.json.decode(content, type=PriceTable)
    except Exception as error:
        raise ConfigError([f"KARAT_PRICES cannot be read: {error}"], str(path)) from None
