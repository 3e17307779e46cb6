"""Models: what answers messages. Everything in karat that asks a model goes through here.

Names are imported when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

if TYPE_CHECKING:
    from karat.errors import BudgetReached as BudgetReached
    from karat.errors import CredentialsRefused as CredentialsRefused
    from karat.models._cache import cache_clear as cache_clear
    from karat.models._cache import cache_path as cache_path
    from karat.models._cache import cache_stats as cache_stats
    from karat.models._client import Model as Model
    from karat.models._client import available as available
    from karat.models._client import check as check
    from karat.models._client import get as get
    from karat.models._client import register_embedder as register_embedder
    from karat.models._endpoints import Endpoint as Endpoint
    from karat.models._endpoints import Limits as Limits
    from karat.models._endpoints import Retries as Retries
    from karat.models._endpoints import Timeouts as Timeouts
    from karat.models._endpoints import default_spec as default_spec
    from karat.models._endpoints import defined_names as defined_names
    from karat.models._failures import BadRequest as BadRequest
    from karat.models._failures import BrokenBody as BrokenBody
    from karat.models._failures import CertificateRejected as CertificateRejected
    from karat.models._failures import ConnectionDropped as ConnectionDropped
    from karat.models._failures import ConnectionRefused as ConnectionRefused
    from karat.models._failures import ContentFiltered as ContentFiltered
    from karat.models._failures import ContextTooLong as ContextTooLong
    from karat.models._failures import EmptyAnswer as EmptyAnswer
    from karat.models._failures import IncompleteAnswer as IncompleteAnswer
    from karat.models._failures import InvalidText as InvalidText
    from karat.models._failures import ModelFailure as ModelFailure
    from karat.models._failures import ParameterRefused as ParameterRefused
    from karat.models._failures import QuotaExhausted as QuotaExhausted
    from karat.models._failures import RateLimited as RateLimited
    from karat.models._failures import Refused as Refused
    from karat.models._failures import SchemaMismatch as SchemaMismatch
    from karat.models._failures import ServerFailed as ServerFailed
    from karat.models._failures import TimedOut as TimedOut
    from karat.models._messages import ROLES as ROLES
    from karat.models._messages import Choice as Choice
    from karat.models._messages import Reply as Reply
    from karat.models._messages import Request as Request
    from karat.models._messages import ToolCall as ToolCall
    from karat.models._messages import check_extra as check_extra
    from karat.models._messages import message_content as message_content
    from karat.models._prices import Budget as Budget
    from karat.models._prices import Price as Price
    from karat.models._prices import PriceUnknown as PriceUnknown
    from karat.models._prices import find_price as find_price
    from karat.models._prices import price_date as price_date
    from karat.models._prices import price_list as price_list
    from karat.models._recording import annotate as annotate
    from karat.models._recording import default_model as default_model
    from karat.models._recording import record_tool_call as record_tool_call
    from karat.models._recording import recording as recording
    from karat.models._recording import tool as tool
    from karat.models._runtime import aclose as aclose
    from karat.models._runtime import close as close
    from karat.models._structured import OutputSchema as OutputSchema
    from karat.models._structured import output_schema as output_schema
    from karat.models.providers import Answer as Answer
    from karat.models.providers import Provider as Provider
    from karat.models.providers import Quirks as Quirks
    from karat.models.providers import Tokens as Tokens
    from karat.models.providers import WireFormat as WireFormat
    from karat.models.providers import register_provider as register_provider
    from karat.models.providers._weights import pull as pull
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_cache": "cache_clear cache_path cache_stats",
            "_client": "Model available check get register_embedder",
            "_endpoints": "Endpoint Limits Retries Timeouts default_spec defined_names",
            "_failures": "BadRequest BrokenBody CertificateRejected ConnectionDropped ConnectionRefused "
            "ContentFiltered ContextTooLong CredentialsRefused EmptyAnswer IncompleteAnswer "
            "InvalidText ModelFailure ParameterRefused QuotaExhausted RateLimited Refused "
            "SchemaMismatch ServerFailed TimedOut",
            "_messages": "Choice ROLES Reply Request ToolCall check_extra message_content",
            "_prices": "Budget BudgetReached Price PriceUnknown find_price price_date price_list",
            "_recording": "annotate default_model record_tool_call recording tool",
            "_runtime": "aclose close",
            "_structured": "OutputSchema output_schema",
            "providers": "Answer Provider Quirks Tokens WireFormat register_provider",
            "providers._weights": "pull",
        },
    )
