"""Models: what answers messages. Everything in karat that asks a model goes through here.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import Any

from karat.lazy import load

_WHERE = {
    "Model": "base",
    "get": "base",
    "Reply": "messages",
    "ToolCall": "messages",
    "Choice": "messages",
    "Budget": "budget",
    "BudgetReached": "budget",
    "PriceUnknown": "budget",
    "Endpoint": "specs",
    "Limits": "specs",
    "Retries": "specs",
    "Timeouts": "specs",
    "default_spec": "specs",
    "defined_names": "specs",
    "recording": "calls",
    "record_tool_call": "calls",
    "tool": "calls",
    "Wire": "wires",
    "register_wire": "wires",
    "register_embedder": "embedders",
    "Price": "prices",
    "find_price": "prices",
    "price_date": "prices",
    "cache_clear": "cache",
    "cache_path": "cache",
    "cache_stats": "cache",
    "available": "catalogue",
    "check": "catalogue",
    "pull": "weights",
    "aclose": "process",
    "close": "process",
    "ModelFailure": "failures",
    "BadRequest": "failures",
    "BrokenBody": "failures",
    "ConnectionDropped": "failures",
    "ConnectionRefused": "failures",
    "ContentFiltered": "failures",
    "ContextTooLong": "failures",
    "CredentialsRefused": "failures",
    "EmptyAnswer": "failures",
    "QuotaExhausted": "failures",
    "RateLimited": "failures",
    "SchemaMismatch": "failures",
    "ServerFailed": "failures",
    "TimedOut": "failures",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
