"""Models: what answers messages. Everything in karat that asks a model goes through here.

Names are imported when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.errors import BudgetReached, CredentialsRefused
    from karat.models._cache import cache_clear, cache_path, cache_stats
    from karat.models._client import Model, available, check, get, register_embedder
    from karat.models._endpoints import Endpoint, Limits, Retries, Timeouts, default_spec, defined_names
    from karat.models._failures import (
        BadRequest,
        BrokenBody,
        CertificateRejected,
        ConnectionDropped,
        ConnectionRefused,
        ContentFiltered,
        ContextTooLong,
        EmptyAnswer,
        IncompleteAnswer,
        InvalidText,
        ModelFailure,
        ParameterRefused,
        QuotaExhausted,
        RateLimited,
        Refused,
        SchemaMismatch,
        ServerFailed,
        TimedOut,
    )
    from karat.models._messages import ROLES, Choice, Reply, Request, ToolCall, check_extra, message_content
    from karat.models._prices import Budget, Price, PriceUnknown, find_price, price_date, price_list
    from karat.models._recording import annotate, default_model, record_tool_call, recording, tool
    from karat.models._runtime import aclose, close
    from karat.models._structured import OutputSchema, output_schema
    from karat.models.providers import Answer, Provider, Quirks, Tokens, WireFormat, register_provider
    from karat.models.providers._weights import pull

_WHERE = {
    "Answer": "providers",
    "BadRequest": "_failures",
    "BrokenBody": "_failures",
    "Budget": "_prices",
    "BudgetReached": "_prices",
    "CertificateRejected": "_failures",
    "Choice": "_messages",
    "ConnectionDropped": "_failures",
    "ConnectionRefused": "_failures",
    "ContentFiltered": "_failures",
    "ContextTooLong": "_failures",
    "CredentialsRefused": "_failures",
    "EmptyAnswer": "_failures",
    "Endpoint": "_endpoints",
    "IncompleteAnswer": "_failures",
    "InvalidText": "_failures",
    "Limits": "_endpoints",
    "Model": "_client",
    "ModelFailure": "_failures",
    "ParameterRefused": "_failures",
    "Price": "_prices",
    "OutputSchema": "_structured",
    "PriceUnknown": "_prices",
    "ROLES": "_messages",
    "annotate": "_recording",
    "check_extra": "_messages",
    "message_content": "_messages",
    "output_schema": "_structured",
    "Provider": "providers",
    "Quirks": "providers",
    "QuotaExhausted": "_failures",
    "RateLimited": "_failures",
    "Refused": "_failures",
    "Reply": "_messages",
    "Request": "_messages",
    "Retries": "_endpoints",
    "SchemaMismatch": "_failures",
    "ServerFailed": "_failures",
    "TimedOut": "_failures",
    "Timeouts": "_endpoints",
    "Tokens": "providers",
    "ToolCall": "_messages",
    "WireFormat": "providers",
    "aclose": "_runtime",
    "available": "_client",
    "cache_clear": "_cache",
    "cache_path": "_cache",
    "cache_stats": "_cache",
    "check": "_client",
    "close": "_runtime",
    "default_model": "_recording",
    "default_spec": "_endpoints",
    "defined_names": "_endpoints",
    "find_price": "_prices",
    "get": "_client",
    "price_date": "_prices",
    "price_list": "_prices",
    "pull": "providers._weights",
    "record_tool_call": "_recording",
    "recording": "_recording",
    "register_embedder": "_client",
    "register_provider": "providers",
    "tool": "_recording",
}

__all__ = [
    "ROLES",
    "Answer",
    "BadRequest",
    "BrokenBody",
    "Budget",
    "BudgetReached",
    "CertificateRejected",
    "Choice",
    "ConnectionDropped",
    "ConnectionRefused",
    "ContentFiltered",
    "ContextTooLong",
    "CredentialsRefused",
    "EmptyAnswer",
    "Endpoint",
    "IncompleteAnswer",
    "InvalidText",
    "Limits",
    "Model",
    "ModelFailure",
    "OutputSchema",
    "ParameterRefused",
    "Price",
    "PriceUnknown",
    "Provider",
    "Quirks",
    "QuotaExhausted",
    "RateLimited",
    "Refused",
    "Reply",
    "Request",
    "Retries",
    "SchemaMismatch",
    "ServerFailed",
    "TimedOut",
    "Timeouts",
    "Tokens",
    "ToolCall",
    "WireFormat",
    "aclose",
    "annotate",
    "available",
    "cache_clear",
    "cache_path",
    "cache_stats",
    "check",
    "check_extra",
    "close",
    "default_model",
    "default_spec",
    "defined_names",
    "find_price",
    "get",
    "message_content",
    "output_schema",
    "price_date",
    "price_list",
    "pull",
    "record_tool_call",
    "recording",
    "register_embedder",
    "register_provider",
    "tool",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
