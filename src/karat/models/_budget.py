"""A budget: what is spent, what calls in flight may still cost, and the point at which a stage stops."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from karat.errors import BudgetReached, RequestError, Stopped
from karat.models._messages import Request
from karat.models._prices import MILLION, Price

IMAGE_TOKENS = 16_384
"""What an image is taken to cost at most; its bytes say nothing about it."""

MESSAGE_TOKENS = 16
"""What a template adds to a message at most."""


class PriceUnknown(Stopped, RequestError):
    """A budget was given and what a call may cost cannot be told: nothing is sent, and the stage stops."""

    exit_code = 2


class Budget:
    """Dollars that may be spent, shared by every call made with it.

    A call is let through only when the worst it can cost still fits beside what is spent and what the calls in
    flight can cost at worst. When it does not, it waits for those to end; when none is left, the budget is
    reached. Only the thread that makes the calls touches it while they are made.
    """

    def __init__(self, limit: float) -> None:
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not (number and math.isfinite(limit) and limit > 0):
            raise RequestError(f"a budget is a number of dollars above 0, not {limit!r}")
        self.limit = float(limit)
        self.spent = 0.0
        """What calls cost, and the worst case of those whose answer was lost on the way."""
        self.reserved = 0.0
        """The worst case of the calls in flight."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"Budget({self.limit}, spent={self.spent:.6f}, reserved={self.reserved:.6f})"

    async def reserve(self, worst: float) -> None:
        """Sets the worst case of a call aside, or raises BudgetReached."""
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
        """Replaces what was set aside by what the call did cost."""
        self.reserved = self.reserved - worst if self.reserved - worst > 1e-12 else 0.0
        self.spent += cost
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


def as_budget(given: float | Budget) -> Budget:
    """A budget, which may be given as a number of dollars."""
    return given if isinstance(given, Budget) else Budget(given)


def no_price(spec: str) -> PriceUnknown:
    """What is said when a budget is given for a model without a price."""
    return PriceUnknown(
        f"a budget needs a price, and none is known for {spec}: give prices for it in models.yaml or KARAT_PRICES"
    )


def worst_cost(price: Price | None, request: Request, size: int, spec: str) -> float:
    """The most a request can cost. A token is at least a byte, so the bytes of the request bound its input."""
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
    return (tokens * price.dearest_input + (most or 0) * request.n * price.dearest_output) / MILLION
