"""The settings of a judge: which models vote, how often, and within which limits.

They come from `judge=` (or `judge:` in YAML), from the configuration dict of an annotation task (`ai_support`), or from
environment variables. They are part of the evaluator's fingerprint; an `api_key` is used and never stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import msgspec

from karat.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from karat.models import Model

MAX_TOKENS = 1024
"""The first limit of a reply. A reply cut off by it is asked for once more with `LENGTH_FACTOR` times as much."""

LENGTH_FACTOR = 4

ALTERNATIVES = 5
"""Alternatives to each token whose probability is asked for. Some providers offer no more."""

DEFAULT_ADDRESSES = {"ollama": "http://localhost:11434/v1", "vllm": "http://localhost:8000/v1"}
"""Servers that people run themselves, where the provider is not a preset of `karat.models`."""

JudgeLike = Union[str, Sequence[str], Mapping[str, Any], "Model"]
"""A judge as users give it: a model or its name, several names (a jury), or settings."""

FIELDS = (
    "model",
    "models",
    "samples",
    "early_stop",
    "majority",
    "temperature",
    "max_tokens",
    "effort",
    "timeout",
    "check_consistency",
    "logprobs",
    "api",
    "endpoint_type",
    "base_url",
    "api_base",
    "api_key",
)


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The models that vote, and how. `models` are `karat.models.Model` objects, built once."""

    models: tuple[Any, ...]
    samples: int = 1
    """Votes of each model."""
    early_stop: bool = False
    """Ask one vote after another, and stop when the rest cannot change the verdict."""
    majority: float = 0.5
    """The share of all votes that a verdict has to exceed; otherwise the verdict is undecided."""
    temperature: float | None = None
    max_tokens: int | None = None
    effort: str | None = None
    check_consistency: bool = False
    """Ask once more whether the analysis supports the verdict; a vote that contradicts itself is an abstention."""
    logprobs: bool = False
    """Ask for the probabilities of tokens, and report how probable each verdict was to the judge."""
    written: dict[str, Any] = {}
    """The settings as they were given, without secrets: what `params` stores."""

    def identity(self) -> dict[str, Any]:
        """Everything that the verdicts depend on, as JSON and without secrets."""
        out: dict[str, Any] = {"models": [model.identity() for model in self.models]}
        for name in (
            "samples",
            "early_stop",
            "majority",
            "temperature",
            "max_tokens",
            "effort",
            "check_consistency",
        ):
            out[name] = getattr(self, name)
        if self.logprobs:
            out["logprobs"] = True
        return out

    @property
    def options(self) -> dict[str, Any]:
        """The options of every request, where they are set."""
        out: dict[str, Any] = {}
        if self.temperature is not None:
            out["temperature"] = self.temperature
        if self.effort is not None:
            out["effort"] = self.effort
        if self.logprobs:
            out["logprobs"] = ALTERNATIVES
        return out

    @property
    def names(self) -> list[str]:
        """The specs of the models, in the order in which they vote."""
        return [model.spec for model in self.models]


def judge_settings(who: str, judge: object = None, config: object = None) -> JudgeSettings:
    """Read `judge` (settings, a spec or a model) and `config`; without a model in either, the environment decides."""
    from karat import models

    given = _merge_settings(who, judge, config)
    number = _Numbers(who)
    written = {
        name: value
        for name, value in given.items()
        if name not in ("api_key", "model_object") and value is not None
    }
    specs = given.get("models")
    if specs is None:
        specs = [given.get("model_object") or given.get("model")]
    elif given.get("model") is not None:
        raise RequestError(f"{who}: give the judge a model or models, not both")
    if not isinstance(specs, (list, tuple)) or not specs:
        raise RequestError(f"{who}: judge.models must be a list with at least one model, not {specs!r}")
    written["models" if given.get("models") is not None else "model"] = (
        [_spec_text(each) for each in specs] if given.get("models") is not None else _spec_text(specs[0])
    )
    if specs == [None]:
        written.pop("model", None)
        try:
            specs = [models.default_spec("judge")]
        except RequestError:
            raise RequestError(
                f"{who}: no judge is configured: set KARAT_JUDGE_MODEL to PROVIDER/NAME, write judge: PROVIDER/NAME in"
                f' the file, or give the parameter, as in -e \'{{"name": "{who}", "params": {{"judge":'
                f' "PROVIDER/NAME"}}}}\''
            ) from None
    built = tuple(_model(who, spec, given) for spec in specs)
    settings = JudgeSettings(
        models=built,
        samples=number.whole("samples", given.get("samples"), 1, 1, 1000),
        early_stop=number.flag("early_stop", given.get("early_stop")),
        majority=number.real("majority", given.get("majority"), 0.5, 0.5, 1.0, open_high=True),
        temperature=number.optional_real("temperature", given.get("temperature")),
        max_tokens=number.optional_whole("max_tokens", given.get("max_tokens")),
        effort=given.get("effort"),
        check_consistency=number.flag("check_consistency", given.get("check_consistency")),
        logprobs=number.flag("logprobs", given.get("logprobs")),
        written=written,
    )
    if settings.options:
        for model in built:
            model.check_options(settings.options)  # before the first record
    return settings


def _merge_settings(who: str, judge: Any, config: Any) -> dict[str, Any]:
    """Merge both sources into one dict of FIELDS; `judge` wins field by field."""
    out: dict[str, Any] = {}
    if isinstance(judge, JudgeSettings):
        raise RequestError(f"{who}: judge must be settings, a model or its name")
    if config is not None:
        out.update(_from_config(who, config))
    if judge is None:
        return out
    if isinstance(judge, str):
        out.update({"model": judge, "models": None})
    elif isinstance(judge, Mapping):
        for name in judge:
            if name not in FIELDS:
                raise RequestError(
                    f"{who}: judge has no field {str(name)!r}: {did_you_mean(str(name), FIELDS)}"
                )
        if "model" in judge or "models" in judge:
            # Another model is not asked at the address of the one in the configuration, nor with its key.
            for name in ("model", "models", "api", "endpoint_type", "base_url", "api_base", "api_key"):
                out.pop(name, None)
        out.update(judge)
    elif hasattr(judge, "generate") and hasattr(judge, "identity"):
        out.update({"model_object": judge, "model": None, "models": None})
    elif isinstance(judge, Sequence) and all(isinstance(each, str) for each in judge):
        out.update({"models": list(judge), "model": None})
    else:
        raise RequestError(f"{who}: judge must be settings, a model or its name, not {type(judge).__name__}")
    if isinstance(out.get("model"), Mapping) or not isinstance(out.get("model"), (str, type(None))):
        if hasattr(out.get("model"), "generate"):
            out["model_object"] = out.pop("model")
        else:
            raise RequestError(f"{who}: judge.model must be the name of a model, such as openai/NAME")
    return out


def _from_config(who: str, config: Any) -> dict[str, Any]:
    """The settings in the configuration of an annotation task, or in a dict of settings."""
    if not isinstance(config, Mapping):
        if isinstance(config, str) or hasattr(config, "generate"):
            return _merge_settings(who, config, None)
        raise RequestError(f"{who}: config must be an object with ai_support, not {type(config).__name__}")
    alignment = config.get("judge_alignment")
    support = alignment.get("ai_support") if isinstance(alignment, Mapping) else None
    support = support if support is not None else config.get("ai_support")
    if support is None:
        if "judge" in config:
            return _merge_settings(who, config["judge"], None)
        if "endpoint_type" in config or "ai_config" in config:
            support = config
        else:
            return _merge_settings(who, config, None) if any(name in FIELDS for name in config) else {}
    if not isinstance(support, Mapping):
        raise RequestError(f"{who}: ai_support must be an object, not {type(support).__name__}")
    if support.get("enabled") is False:
        raise RequestError(f"{who}: the judge is switched off: set ai_support.enabled to true")
    details = support.get("ai_config")
    if details is not None and not isinstance(details, Mapping):
        raise RequestError(f"{who}: ai_support.ai_config must be an object, not {type(details).__name__}")
    known = ("model", "base_url", "api_base", "api_key", "max_tokens", "temperature", "timeout", "effort")
    out = {name: details[name] for name in known if details and details.get(name) is not None}
    if support.get("endpoint_type") is not None:
        out["endpoint_type"] = support["endpoint_type"]
        if "model" not in out:
            raise RequestError(f"{who}: ai_support.ai_config.model is missing: name the judge model")
    return out


def _spec_text(spec: Any) -> Any:
    return spec if isinstance(spec, str) or spec is None else getattr(spec, "spec", str(spec))


def _model(who: str, spec: Any, given: Mapping[str, Any]) -> Any:
    """The model of a spec, with the address, key and timeout that were given beside it."""
    from karat import models
    from karat.models._request_context import keep_key

    if not isinstance(spec, str):
        if not hasattr(spec, "generate"):
            raise RequestError(f"{who}: judge.model must be the name of a model, not {type(spec).__name__}")
        return spec if given.get("api") is None else models.get(spec, api=given["api"])
    address = given.get("base_url") or given.get("api_base")
    key, kind = given.get("api_key"), given.get("endpoint_type")
    if address is not None and not isinstance(address, str):
        raise RequestError(f"{who}: base_url must be text")
    if kind is None and address is None:
        model = models.get(spec)
    else:
        model = _model_at(who, str(kind or "openai").lower(), spec, address)
    if given.get("api") is not None:
        model = models.get(model, api=given["api"])
    changes: dict[str, Any] = {}
    if key is not None:
        if not isinstance(key, str) or not key.strip():
            raise RequestError(f"{who}: api_key must be non-empty text")
        changes["key_env"] = keep_key(key.strip())
    if given.get("timeout") is not None:
        seconds = _Numbers(who).real("timeout", given["timeout"], 0.0, 0.0, 86400.0, open_low=True)
        changes["timeouts"] = msgspec.structs.replace(model.endpoint.timeouts, read=seconds, total=seconds)
    if changes:
        model = models.Model(msgspec.structs.replace(model.endpoint, **changes))
    return model


def _model_at(who: str, kind: str, name: str, address: str | None) -> Any:
    """Return the model of an endpoint type, at an address if there is one."""
    from karat import models
    from karat.models._endpoints import check_url
    from karat.models.providers import providers

    if providers.has(kind):
        model = models.get(name if name.startswith(f"{kind}/") else f"{kind}/{name}")
        if address is None:
            return model
        if kind == "openai":
            return models.get(f"{name.removeprefix('openai/')}@{address}")
        check_url(address, f"{who}: base_url")
        return models.Model(
            msgspec.structs.replace(model.endpoint, base_url=address.rstrip("/"), needs_key=False)
        )
    if address or kind in DEFAULT_ADDRESSES:
        return models.get(f"{name}@{address or DEFAULT_ADDRESSES[kind]}")
    known = sorted({*providers.list(), *DEFAULT_ADDRESSES})
    raise RequestError(f"{who}: unknown endpoint_type {kind!r}: {did_you_mean(kind, known)}")


class _Numbers:
    """Checks of numbers; the first wrong one is a RequestError."""

    def __init__(self, who: str) -> None:
        self.who = who

    def flag(self, name: str, value: object) -> bool:
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RequestError(f"{self.who}: {name} must be true or false, not {str(value)[:40]!r}")
        return value

    def whole(self, name: str, value: object, default: int, low: int, high: int) -> int:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RequestError(
                f"{self.who}: {name} must be a whole number from {low} to {high}, not {str(value)[:40]!r}"
            )
        return value

    def optional_whole(self, name: str, value: object) -> int | None:
        return None if value is None else self.whole(name, value, 1, 1, 10_000_000)

    def real(
        self,
        name: str,
        value: object,
        default: float,
        low: float,
        high: float,
        *,
        open_low: bool = False,
        open_high: bool = False,
    ) -> float:
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not low <= value <= high
            or (open_low and value == low)
            or (open_high and value == high)
        ):
            raise RequestError(
                f"{self.who}: {name} must be a number between {low:g} and {high:g}, not {str(value)[:40]!r}"
            )
        return float(value)

    def optional_real(self, name: str, value: object) -> float | None:
        return None if value is None else self.real(name, value, 0.0, 0.0, 100.0)
