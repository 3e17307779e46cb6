"""models.yaml: named models, as a person writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from karat.documents import read_document
from karat.errors import ConfigError, RequestError, did_you_mean
from karat.models._endpoints import SygraEntry
from karat.models._messages import check_parameters, is_secret


def _is_variable(name: str) -> str:
    # A key put here by mistake is refused, and not repeated as the name of a variable that is not set.
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            "must be the name of an environment variable in capitals, such as MY_KEY, not the key itself"
        )
    return name


_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
Variable = Annotated[str, AfterValidator(_is_variable)]
"""The name of an environment variable."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class LimitsEntry(_Part):
    """`limits:` of a model."""

    concurrency: int | None = Field(default=None, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    adaptive: bool | None = None


class TimeoutsEntry(_Part):
    """`timeouts:` of a model, in seconds."""

    connect: float | None = Field(default=None, gt=0)
    read: float | None = Field(default=None, gt=0)
    total: float | None = Field(default=None, gt=0)


class RetriesEntry(_Part):
    """`retries:` of a model."""

    limit: int | None = Field(default=None, ge=0)
    base: float | None = Field(default=None, gt=0)
    cap: float | None = Field(default=None, gt=0)
    longest_wait: float | None = Field(default=None, gt=0)


class PricesEntry(_Part):
    """`prices:` of a model, in US dollars for a million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)
    audio_input: float | None = Field(default=None, ge=0)
    audio_output: float | None = Field(default=None, ge=0)
    image_input: float | None = Field(default=None, ge=0)
    image_output: float | None = Field(default=None, ge=0)
    batch: float | None = Field(default=None, ge=0, le=1)
    max_output: int | None = Field(default=None, ge=1)
    tiers: dict[str, Annotated[float, Field(ge=0)]] = {}
    web_searches: float | None = Field(default=None, ge=0)


class ModelEntry(_Part):
    """One named model."""

    model: str = Field(min_length=1)
    base_url: str | None = None
    wire: str | None = None
    api: Literal["chat", "responses", "anthropic"] | None = None
    api_key_env: Variable | None = None
    api_key_command: str | None = Field(default=None, min_length=1)
    parameters: dict[str, Any] = {}
    limits: LimitsEntry = LimitsEntry()
    timeouts: TimeoutsEntry = TimeoutsEntry()
    retries: RetriesEntry = RetriesEntry()
    prices: PricesEntry | None = None
    structured: Literal["native", "prompt"] = "native"
    headers: dict[str, str] = {}
    headers_env: dict[str, Variable] = {}

    @field_validator("parameters")
    @classmethod
    def _known_parameters(cls, given: dict[str, Any]) -> dict[str, Any]:
        try:
            check_parameters(given)
        except RequestError as error:
            raise ValueError(str(error)) from None
        return given

    @field_validator("headers")
    @classmethod
    def _no_secret_headers(cls, given: dict[str, str]) -> dict[str, str]:
        for name, value in given.items():
            if is_secret(name, value):
                raise ValueError(
                    f"the header {name!r} looks like a secret: name its variable under headers_env"
                )
        return given


def read_models_file(path: Path) -> dict[str, ModelEntry | SygraEntry]:
    """Read the named models of a file and report all mistakes together. SyGra's entries are checked when used."""
    document = read_document(path).value
    if isinstance(document, dict) and set(document) == {"models"}:
        document = document["models"]
    if not isinstance(document, dict):
        raise ConfigError(
            ["is a list of names, each with its model: NAME: {model: PROVIDER/NAME, …}"], str(path)
        )
    found: dict[str, ModelEntry | SygraEntry] = {}
    problems: list[str] = []
    for name, entry in document.items():
        if isinstance(entry, dict) and "model_type" in entry:
            found[str(name)] = SygraEntry(str(name), entry, str(path))
            continue
        try:
            found[str(name)] = ModelEntry.model_validate(entry)
        except ValidationError as error:
            problems += [
                _problem(str(name), each) for each in error.errors(include_input=False, include_url=False)
            ]
    if problems:
        raise ConfigError(problems, str(path))
    return found


def _problem(name: str, error: Any) -> str:
    where = ".".join([name, *(str(part) for part in error["loc"])])
    if error["type"] == "extra_forbidden":
        field = str(error["loc"][-1])
        if any(word in field.lower() for word in ("key", "token", "secret", "password")):
            return f"{where}: secrets do not belong in this file: name an environment variable as api_key_env"
        return f"{where}: no such field; {did_you_mean(field, _fields_at(error['loc'][:-1]))}"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"


def _fields_at(path: tuple[Any, ...]) -> list[str]:
    part: Any = ModelEntry
    for step in path:
        part = {
            "limits": LimitsEntry,
            "timeouts": TimeoutsEntry,
            "retries": RetriesEntry,
            "prices": PricesEntry,
        }.get(step, part)
    return list(part.model_fields)
