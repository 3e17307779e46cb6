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
LONG_CACHE = 2.0
"""What input written to an hour's cache costs of plain input, for all models of Anthropic, which alone reports it.

platform.claude.com/docs/en/build-with-claude/prompt-caching#pricing; the copies of it in docs.rs/synaps and
docs.rs/claude-session-parser, read 2026-11-17.
"""


class LongContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request costs whose input is longer than `above` tokens."""

    above: int
    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """Input the provider had cached; where None, the same as `input`."""
    cache_write: float | None = None
    audio_input: float | None = None
    audio_output: float | None = None
    image_input: float | None = None
    image_output: float | None = None
    batch: float | None = None
    """What a batch costs of this; where None, it is not known to be cheaper."""
    source: str = ""
    """Where it was read."""
    long_context: LongContext | None = None
    max_output: int | None = None
    """The most tokens the model can answer with: what a budget reserves when a request sets no limit."""

    @property
    def free(self) -> bool:
        """Whether nothing is charged."""
        return not self.input and not self.output

    def in_batch(self) -> Price:
        """What the same costs by the provider's batch API."""
        share = 1.0 if self.batch is None else self.batch

        def part(price: float | None) -> float | None:
            return None if price is None else price * share

        longer = self.long_context
        return msgspec.structs.replace(
            self,
            input=self.input * share,
            output=self.output * share,
            cache_read=part(self.cache_read),
            cache_write=part(self.cache_write),
            audio_input=part(self.audio_input),
            audio_output=part(self.audio_output),
            image_input=part(self.image_input),
            image_output=part(self.image_output),
            batch=None,
            long_context=longer
            and LongContext(
                longer.above,
                longer.input * share,
                longer.output * share,
                part(longer.cache_read),
                part(longer.cache_write),
            ),
        )

    @property
    def dearest_input(self) -> float:
        """The most that a token of input can cost, unless it is cached for an hour."""
        longer = self.long_context
        rates = [self.input, self.cache_write, self.audio_input, self.image_input]
        rates += [longer.input, longer.cache_write] if longer is not None else []
        return max(rate for rate in rates if rate is not None)

    @property
    def dearest_output(self) -> float:
        """The most that a token of output can cost."""
        longer = self.long_context
        rates = [self.output, self.audio_output, self.image_output]
        rates += [longer.output] if longer is not None else []
        return max(rate for rate in rates if rate is not None)

    def cost(self, tokens: Tokens) -> float:
        """Dollars for these tokens."""
        longer = self.long_context
        if longer is not None and tokens.input > longer.above:
            whole = msgspec.structs.replace(
                self,
                input=longer.input,
                output=longer.output,
                cache_read=longer.cache_read,
                cache_write=longer.cache_write,
                long_context=None,
            )
            return whole.cost(tokens)
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = tokens.input - tokens.cache_read - tokens.cache_write
        dollars = plain * self.input + tokens.cache_read * read + tokens.cache_write * write
        if tokens.cache_write_long:
            dollars += tokens.cache_write_long * (LONG_CACHE * self.input - write)
        for count, rate, usual in (
            (tokens.audio_input, self.audio_input, self.input),
            (tokens.audio_output, self.audio_output, self.output),
            (tokens.image_input, self.image_input, self.input),
            (tokens.image_output, self.image_output, self.output),
        ):
            if rate is not None and count:
                dollars += count * (rate - usual)
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


def price_list() -> list[tuple[str, Price, str]]:
    """Every known price: `(model, price, day of its table)`; those of KARAT_PRICES come first, and win."""
    found: dict[str, tuple[str, Price, str]] = {}
    for table in _tables():
        for model, price in table.models.items():
            found.setdefault(model, (model, price, table.date))
    return list(found.values())


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
