"""The cost of calls: a bundled, dated table of prices that `KARAT_PRICES` and models.yaml override, and budgets."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from karat.errors import BudgetReached, ConfigError, RequestError, Stopped, wording
from karat.models._messages import Request
from karat.models.providers import requested_tier
from karat.serialization import prepared

if TYPE_CHECKING:
    from karat.models.providers import Tokens

MILLION = 1_000_000
LONG_CACHE = 2.0
"""What input written to an hour's cache costs of plain input, for all models of Anthropic, which alone reports it.

platform.claude.com/docs/en/build-with-claude/prompt-caching#pricing; the copies of it in docs.rs/synaps and
docs.rs/claude-session-parser, read 2026-11-17.
"""


class LongContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The price of a request whose input is longer than `above` tokens."""

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
    tiers: dict[str, float] = {}
    """What other service tiers cost of this: `{flex: 0.5, priority: 2}`. The cost at another tier is unknown."""
    web_searches: float | None = None
    """US dollars for a thousand searches of the provider's own tool; where None, the cost of a search is unknown."""

    @property
    def free(self) -> bool:
        """Whether nothing is charged."""
        return not self.input and not self.output

    def in_batch(self) -> Price:
        """Return the price through the provider's batch API; a search has no discount."""
        share = 1.0 if self.batch is None else self.batch
        return msgspec.structs.replace(self._scaled(share), batch=None, tiers={})

    def at_tier(self, tier: str) -> Price | None:
        """Return the price at a service tier as `served_tier` names it; None if that is unknown."""
        share = 1.0
        for name in filter(None, tier.split("+")):
            if name not in self.tiers:
                return None
            share *= self.tiers[name]
        return self if share == 1.0 else self._scaled(share)

    def _scaled(self, share: float) -> Price:
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

    def cost(self, tokens: Tokens) -> float | None:
        """Dollars for these tokens; None where the price of their tier, or of a tool of the provider, is unknown."""
        if tokens.tier:
            price = self.at_tier(tokens.tier)
            return None if price is None else price.cost(msgspec.structs.replace(tokens, tier=""))
        if tokens.other_fees or (tokens.web_searches and self.web_searches is None):
            return None
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
        dollars = max(0.0, dollars + tokens.output * self.output) / MILLION
        return dollars + tokens.web_searches * self.web_searches / 1000 if self.web_searches else dollars


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
    return msgspec.json.decode(
        (Path(__file__).parent / "prices.json").read_bytes(), type=prepared(PriceTable)
    )


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int) -> PriceTable:
    try:
        if path.suffix in (".yaml", ".yml"):
            from karat.documents import read_document

            return msgspec.convert(read_document(path).value, prepared(PriceTable))
        return msgspec.json.decode(path.read_bytes(), type=prepared(PriceTable))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError([f"KARAT_PRICES cannot be read: {error}"], str(path)) from None


# A budget in dollars: money spent, money reserved for calls in flight, and when a stage has to stop.

IMAGE_TOKENS = 16_384
"""The upper bound for the tokens of an image, which its bytes do not show."""

MESSAGE_TOKENS = 16
"""The upper bound for the tokens that a chat template adds to a message."""


class PriceUnknown(Stopped, RequestError):
    """There is a budget, and the cost of a call cannot be bounded. Nothing is sent, and the stage stops."""

    exit_code = 2


class Budget:
    """An amount of dollars that all calls made with it share.

    A call starts only if its highest possible cost fits into the budget beside the money spent and the highest possible
    cost of the calls in flight. If it does not fit, it waits until some of those have ended; if there are none, the
    budget is reached. While calls are made, only the thread that makes them may use this object.
    """

    def __init__(self, limit: float) -> None:
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not (number and math.isfinite(limit) and limit > 0):
            raise RequestError(f"a budget must be a number of dollars above 0, not {limit!r}")
        self.limit = float(limit)
        self.spent = 0.0
        """The cost of finished calls; a call whose answer was lost counts with its highest possible cost."""
        self.reserved = 0.0
        """The highest possible cost of the calls in flight."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"Budget({self.limit}, spent={self.spent:.6f}, reserved={self.reserved:.6f})"

    async def reserve(self, worst: float) -> None:
        """Reserve the highest possible cost of a call; raises BudgetReached if it does not fit."""
        while self.spent + self.reserved + worst > self.limit + 1e-12:
            if self.reserved <= 0:
                raise BudgetReached(self._reached(worst))
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self.reserved += worst

    @property
    def overdrawn(self) -> bool:
        """Whether calls cost more than was reserved for them, so that those in flight may exceed the limit."""
        return self.spent + self.reserved > self.limit + 1e-12

    def _reached(self, worst: float) -> str:
        if worst > self.limit:
            return (
                f"the budget of ${self.limit:g} is less than a single call may cost, which is ${worst:.4f}:"
                " give a larger one, or a lower max_tokens"
            )
        return (
            f"the budget of ${self.limit:g} is reached: ${self.spent:.4f} is spent and the next call may cost"
            f" ${worst:.4f}; finished items are stored;"
            f" the same {wording('command', 'call')} continues with a new budget of the same size"
        )

    def settle(self, worst: float, cost: float) -> None:
        """Replace the reserved amount by the actual cost of the call."""
        self.reserved = self.reserved - worst if self.reserved - worst > 1e-12 else 0.0
        self.spent += cost
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


def as_budget(given: float | Budget) -> Budget:
    """Return a Budget; a number is an amount of dollars."""
    return given if isinstance(given, Budget) else Budget(given)


def no_price(spec: str) -> PriceUnknown:
    """The error for a budget with a model whose price is unknown."""
    return PriceUnknown(
        f"a budget needs a price, and none is known for {spec}: give prices for it in models.yaml or KARAT_PRICES"
    )


_PAID_TOOL = re.compile(
    r"web_search|web_fetch|x_search|google_search|file_search|collections_search|code_(?:execution|interpreter)"
    r"|image_generation|browser_search|mcp"
)
"""Types of tools that run at the provider: each use adds input, and most have a fee."""

_SEARCH_OPTIONS = ("web_search_options", "search_parameters", "plugins")
"""Fields that let OpenAI, xAI and OpenRouter search the web in chat completions."""


def _paid_tool(request: Request) -> str:
    """The first tool of a request that runs at the provider; empty without one."""
    tools = [*(request.tools or ()), *({"type": name} for name in request.extra if name in _SEARCH_OPTIONS)]
    names = (str(tool.get("type")) for tool in tools if "function" not in tool)
    return next((name for name in names if name in _SEARCH_OPTIONS or _PAID_TOOL.match(name)), "")


def worst_cost(
    price: Price | None, request: Request, size: int, spec: str, long_cache: bool = False
) -> float:
    """The highest possible cost of a request. A token has at least one byte, so the size in bytes bounds its input.

    `long_cache`: a part of it may be cached for an hour, which costs more.
    """
    if price is None:
        raise no_price(spec)
    tier = requested_tier(request.extra)
    at_tier = price.at_tier(tier)
    if at_tier is None:
        raise PriceUnknown(
            f"a budget needs a price, and none is known for {spec} at the service tier {tier}: remove the tier, or give"
            " prices with tiers for it in models.yaml or KARAT_PRICES"
        )
    price = at_tier
    paid = _paid_tool(request)
    if paid:
        raise PriceUnknown(
            f"a budget cannot bound the cost of {paid}, because {spec} decides how often to use it: leave out the tool,"
            " or the budget"
        )
    own = [request.extra.get(name) for name in ("max_tokens", "max_completion_tokens")]
    most = max([n for n in (request.max_tokens, *own) if isinstance(n, int)], default=0) or price.max_output
    if most is None and price.output:
        raise PriceUnknown(f"a budget needs max_tokens for {spec}, or max_output beside its prices")
    images = sum(
        isinstance(part, dict) and part.get("type") in ("image_url", "image", "input_image")
        for message in request.messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )
    tokens = size + MESSAGE_TOKENS * (len(request.messages) + 1) + IMAGE_TOKENS * images
    if price.long_context is not None and tokens <= price.long_context.above:
        price = msgspec.structs.replace(price, long_context=None)
    rate = price.dearest_input * (LONG_CACHE if long_cache else 1.0)
    return (tokens * rate + (most or 0) * request.n * price.dearest_output) / MILLION
