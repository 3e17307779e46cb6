"""A budget in dollars: money spent, money reserved for calls in flight, and when a stage has to stop."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from karat.errors import BudgetReached, RequestError, Stopped
from karat.models._messages import Request
from karat.models._prices import LONG_CACHE, MILLION, Price

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
            raise RequestError(f"a budget is a number of dollars above 0, not {limit!r}")
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

    def _reached(self, worst: float) -> str:
        if worst > self.limit:
            return (
                f"the budget of ${self.limit:g} is less than a single call may cost, which is ${worst:.4f}:"
                " give a larger one, or a lower max_tokens"
            )
        return (
            f"the budget of ${self.limit:g} is reached: ${self.spent:.4f} is spent and the next call may cost"
            f" ${worst:.4f}; finished items are stored;"
            " the same command continues with a new budget of the same size"
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


def worst_cost(
    price: Price | None, request: Request, size: int, spec: str, long_cache: bool = False
) -> float:
    """The highest possible cost of a request. A token has at least one byte, so the size in bytes bounds its input.

    `long_cache`: a part of it may be cached for an hour, which costs more.
    """
    if price is None:
        raise no_price(spec)
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
    rate = price.dearest_input * (LONG_CACHE if long_cache else 1.0)
    return (tokens * rate + (most or 0) * request.n * price.dearest_output) / MILLION
