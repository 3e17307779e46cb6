"""From what a person writes (`openai/gpt-4o-mini`, `llama@http://host:8000/v1`, a name of models.yaml) to an endpoint.

An endpoint holds the names of environment variables, never what is in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

from karat.errors import ConfigError, RequestError, UnknownName, did_you_mean, nearest, refuse_nul, wording
from karat.models._messages import PARAMETERS
from karat.models._prices import Price, find_price
from karat.models._recording import _default_model
from karat.models.providers import API_NAMES, Provider, Quirks, providers, requested_tier
from karat.serialization import prepared

# Entries of a models.yaml that was written for SyGra: recognised by `model_type`, checked when a model is used.
#
# SyGra keeps addresses and keys out of the file: those of the model `gpt-4o` are in the environment variables
# `SYGRA_GPT-4O_URL` and `SYGRA_GPT-4O_TOKEN`.

COMPATIBLE = ("openai", "vllm", "tgi", "azure", "azure_openai", "ollama")
"""Model types that answer OpenAI's chat completions."""

RENAMED = {"max_new_tokens": "max_tokens"}


class SygraEntry:
    """One model of a SyGra models file, unconverted."""

    def __init__(self, name: str, given: Mapping[str, Any], path: str) -> None:
        self.name = name
        self.given = given
        self.path = path

    def _refuse(self, sentence: str) -> ConfigError:
        return ConfigError([f"{self.name}: {sentence}"], self.path)

    def fields(self) -> dict[str, Any]:
        """The fields of a karat entry that mean the same; what karat cannot ask is refused with the reason."""
        kind = str(self.given["model_type"])
        output, taken = self.given.get("output_type", "text"), self.given.get("input_type", "text")
        if output not in ("text", None):
            raise self._refuse(f"not supported: {output} output")
        if taken not in ("text", None):
            raise self._refuse(f"not supported: models of the input type {taken}")
        if kind not in COMPATIBLE:
            raise self._refuse(
                f"not supported: models of the type {kind} (supported: {', '.join(COMPATIBLE)});"
                f" name another model{wording(' with --model', '')}"
            )
        model = str(self.given.get("model") or self.given.get("model_serving_name") or self.name)
        out: dict[str, Any] = {"model": model, "parameters": self._parameters()}
        variable = "SYGRA_" + re.sub(r"\s+", "_", self.name).upper()
        token = f"{variable}_TOKEN"
        url = str(self.given.get("url") or os.environ.get(f"{variable}_URL", "")).split("|")[0].strip()
        if kind == "openai" and not url:
            return {
                **out,
                "model": f"openai/{model}",
                **({"key_env": token} if os.environ.get(token) else {}),
            }
        if kind == "ollama" and not url:
            url = "http://localhost:11434/v1"
        if not url:
            raise self._refuse(
                f"has no address: {_how_to_set(f'{variable}_URL')}, or name another"
                f" model{wording(' with --model', '')}"
            )
        host = urlsplit(url).hostname or ""
        if host.endswith((".azure.com", ".azure.us")) and urlsplit(url).path in ("", "/"):
            return {**out, "base_url": url.rstrip("/") + "/openai/v1", "headers_env": {"api-key": token}}
        return {**out, "base_url": url, **({"key_env": token} if os.environ.get(token) else {})}

    def _parameters(self) -> dict[str, Any]:
        given = self.given.get("parameters") or {}
        if not isinstance(given, Mapping):
            raise self._refuse("parameters is not a mapping")
        named = {RENAMED.get(str(key), str(key)): value for key, value in given.items()}
        own = {key: value for key, value in named.items() if key in PARAMETERS}
        extra = {key: value for key, value in named.items() if key not in PARAMETERS}
        return {**own, **({"extra": extra} if extra else {})}


def _how_to_set(variable: str) -> str:
    """Say how to set a SyGra variable, whose name a shell may not accept, and which may be in a file."""
    hints = []
    if not variable.isidentifier():
        hints.append(f"a shell cannot export this name: env '{variable}=https://…' karat …")
    if Path(".env").is_file():
        hints.append("karat does not read .env: env $(grep -v '^#' .env | xargs) karat …")
    return f"set {variable}" + (f" ({'; '.join(hints)})" if hints else "")


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rate and concurrency limits of a model."""

    concurrency: int = 256
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    adaptive: bool = True
    """Whether 429 halves the concurrency, which then grows back."""


class Timeouts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds to wait: for a connection, for the next bytes, for one whole request."""

    connect: float = 10.0
    read: float = 300.0
    total: float = 600.0


class Retries(msgspec.Struct, frozen=True, omit_defaults=True):
    """The retries of a call: full jitter up to `base` · 2ⁿ, at most `cap` seconds."""

    limit: int = 10
    base: float = 0.5
    cap: float = 30.0
    longest_wait: float = 120.0
    """A provider that asks for a longer wait than this is not waited for."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is asked and how, without any secret."""

    spec: str
    provider: str
    model: str
    base_url: str = ""
    api: str = "chat"
    """The wire format: chat, responses or anthropic."""
    official: bool = False
    """Whether it is the provider's own address: only then is anything known of what its models refuse."""
    key_env: str = ""
    token_env: str = ""
    key_command: str = ""
    """A command that prints a key which expires; it is run again when the key is refused."""
    key_header: str = ""
    needs_key: bool = False
    parameters: dict[str, Any] = {}
    headers: dict[str, str] = {}
    headers_env: dict[str, str] = {}
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    price: Price | None = None
    structured: Literal["native", "prompt"] = "native"
    quirks: Quirks = Quirks()

    @property
    def price_at_tier(self) -> Price | None:
        """The price at the service tier that the model's parameters ask for; None if it is unknown."""
        extra = self.parameters.get("extra")
        return self.price and self.price.at_tier(requested_tier(extra if isinstance(extra, Mapping) else {}))

    def identity(self) -> dict[str, Any]:
        """Return the endpoint's part of a run's fingerprint: everything that can change an answer."""
        out: dict[str, Any] = {
            "provider": self.provider,
            "api": self.api,
            "model": self.model,
            "parameters": self.parameters,
        }
        out["at"] = provider_of(self).identity(self)
        if self.structured != "native":
            out["structured"] = self.structured
        if self.headers:
            # A gateway may choose the model by a header. Only a hash of the values is stored: they may be secret.
            encoded_headers = msgspec.json.encode(sorted(self.headers.items()))
            out["headers"] = hashlib.blake2b(encoded_headers, digest_size=8).hexdigest()
        return out


_NO_SCHEME = re.compile(r"[^@\s]+@(?:localhost|[\w.-]+:\d+|[\w-]+(?:\.[\w-]+)+)(?:/[\w./-]*)?")
"""A name at an address without a scheme, and without anything in it that could be a password."""

_instances: dict[str, Provider] = {}


def provider_of(endpoint: Endpoint) -> Provider:
    """The provider of an endpoint; one instance per process."""
    return _instances.get(endpoint.provider) or provider_named(endpoint.provider)


def provider_named(name: str) -> Provider:
    """The provider registered under a name; one instance per process."""
    found = _instances.get(name)
    # `setdefault`: of those that threads make at the same moment, all get the first.
    return _instances.setdefault(name, providers.get(name)()) if found is None else found


def resolve(spec: str | None = None, *, role: Literal["task", "judge"] = "task") -> Endpoint:
    """The endpoint a spec means; without one, the default of the role."""
    spec = spec or default_spec(role)
    refuse_nul(spec)
    definitions = _definitions()
    if spec in definitions:
        return _define(spec, definitions[spec], definitions)
    return _write_out(spec, definitions)


def default_spec(role: Literal["task", "judge"] = "task") -> str:
    """The model used when none is named.

    For tasks that is the one `default_model` was entered with, `KARAT_MODEL` or `OPENAI_MODEL`; for judges
    `KARAT_JUDGE_MODEL`, `OPENAI_MODEL` or `KARAT_MODEL`: a judge is never the judged model by accident of context.
    """
    openai = os.environ.get("OPENAI_MODEL")
    if role == "judge":
        names = ["KARAT_JUDGE_MODEL", "KARAT_MODEL"]
        given = os.environ.get("KARAT_JUDGE_MODEL") or (openai and f"openai/{openai}")
        given = given or os.environ.get("KARAT_MODEL")
    else:
        names = ["KARAT_MODEL"]
        given = _default_model.get() or os.environ.get("KARAT_MODEL") or (openai and f"openai/{openai}")
    if given:
        return given
    raise RequestError(f"no model is named: give one, for example local/smollm2-135m, or set {names[0]}")


def models_file() -> Path:
    """The file of named models: `KARAT_MODELS`, else models.yaml in the current folder, else SyGra's."""
    own, theirs = Path(os.environ.get("KARAT_MODELS") or "models.yaml"), Path("sygra/config/models.yaml")
    return theirs if not own.is_file() and theirs.is_file() and not os.environ.get("KARAT_MODELS") else own


def defined_names() -> list[str]:
    """The names models.yaml defines."""
    return sorted(_definitions())


def _definitions() -> dict[str, Any]:
    path = models_file()
    if not path.is_file():
        if os.environ.get("KARAT_MODELS"):
            raise RequestError(f"KARAT_MODELS names {path}, which is not a file")
        return {}
    state = path.stat()
    return _read(path.absolute(), path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read(_absolute: Path, path: Path, _modified: int, _size: int) -> dict[str, Any]:
    """The definitions in a file, read once for each state of it."""
    from karat.models._models_file import (
        read_models_file,
    )  # pydantic and yaml, only where there is such a file

    return dict(read_models_file(path))


def _write_out(spec: str, definitions: dict[str, Any]) -> Endpoint:
    name, at, url = spec.partition("@http")
    if at:
        check_url("http" + url, spec)
        return _endpoint(spec, "openai", name, base_url="http" + url)
    prefix, slash, name = spec.partition("/")
    if slash and name and providers.has(prefix):
        return _endpoint(spec, prefix, name)
    raise UnknownName(f"unknown model {without_secret(spec)!r}: {_meant(spec, definitions)}")


def _meant(spec: str, definitions: dict[str, Any]) -> str:
    """A suggestion for a spec that names no model."""
    prefix, slash, name = spec.partition("/")
    if slash and not name and providers.has(prefix):
        return f"a model's name is missing after the slash, as in {prefix}/NAME"
    if _NO_SCHEME.fullmatch(spec):
        return f"an address begins with http:// or https://, did you mean {spec.replace('@', '@http://')!r}?"
    from karat.models.providers._weights import KNOWN  # only for this message

    shown, known = without_secret(spec), providers.list()
    near = nearest(shown, definitions)
    if slash:
        near += [f"{each}/{shown.partition('/')[2]}" for each in nearest(prefix, known, 1)]
    else:
        near += [f"{each}/{shown}" for each in known if find_price(f"{each}/{shown}") is not None]
        near += [f"local/{each}" for each in nearest(shown, KNOWN)]
    lists = wording("karat models", "karat.models.available()")
    forms = (
        f"a model is written PROVIDER/NAME (openai/…, anthropic/…, local/…; {lists} lists the providers), "
        "NAME@http://host:port/v1, or is a name defined in models.yaml"
    )
    return f"did you mean {' or '.join(repr(each) for each in near)}? ({forms})" if near else forms


def _endpoint(spec: str, name: str, model: str, base_url: str = "", **given: Any) -> Endpoint:
    provider = provider_named(name)
    if not model:
        raise RequestError(f"model {spec!r} names no model")
    own = os.environ.get(provider.base_url_env, "").rstrip("/") if provider.base_url_env else ""
    if own:
        check_url(own, provider.base_url_env)
        if not own.endswith(provider.base_url_suffix):
            own += provider.base_url_suffix
    base_url = base_url.rstrip("/")
    usual = "" if "{" in provider.base_url and (base_url or own) else provider.default_base_url().rstrip("/")
    # A key goes only where it belongs: to the provider it is named after, not to any address in a spec.
    its_own = not base_url or base_url in (own, usual)
    official = (base_url or own or usual) == usual
    key_env = given.pop("key_env", None) or (provider.key_env if its_own else "")
    key_command = given.pop("key_command", None) or ""
    limits = {"concurrency": provider.concurrency, **given.pop("limits", {})}
    price = given.pop("price", None)
    if price is None:
        if provider.free and _in_house(base_url or own or usual):
            price = Price(0.0, 0.0)
        else:
            price = find_price(f"{name}/{model}" if its_own else spec)
    if provider.patience is not None and given.get("timeouts", Timeouts()) == Timeouts():
        given["timeouts"] = Timeouts(read=provider.patience, total=provider.patience)
    api = given.pop("api", None) or provider.choose_api(model, official)
    _check_api(spec, api, provider if its_own else None)
    return Endpoint(
        spec=spec,
        provider=name,
        model=model,
        base_url=base_url or own or usual,
        api=api,
        official=official,
        key_env="" if key_command else key_env,
        token_env=provider.token_env if its_own and key_env == provider.key_env and not key_command else "",
        key_command=key_command,
        needs_key=bool(key_env) and not key_command and provider.needs_key and (not own or not its_own),
        price=price,
        limits=msgspec.convert(limits, prepared(Limits)),
        quirks=provider.quirks,
        **given,
    )


def _in_house(base_url: str) -> bool:
    """Whether an address is in this process, on this machine or in its network: programs that cost nothing there are
    also sold as a service.
    """
    host = urlsplit(base_url).hostname or "localhost"
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host.partition("%")[0]).is_global
    return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa", ".localhost"))


def _check_api(spec: str, api: str, provider: Provider | None) -> None:
    if api not in API_NAMES:
        raise RequestError(f"{spec}: api is {api!r}: {did_you_mean(str(api), API_NAMES)}")
    if provider is not None and provider.name != "local" and api not in provider.apis:
        raise RequestError(
            f"{spec}: {provider.name} does not speak {api!r}: its api is {' or '.join(provider.apis)}"
        )


def with_api(endpoint: Endpoint, api: str) -> Endpoint:
    """The same endpoint, asked in another wire format."""
    _check_api(endpoint.spec, api, provider_of(endpoint) if endpoint.official else None)
    return msgspec.structs.replace(endpoint, api=api)


def _define(name: str, entry: Any, definitions: dict[str, Any]) -> Endpoint:
    if isinstance(entry, SygraEntry):
        fields = entry.fields()
        model, base_url = fields.pop("model"), fields.pop("base_url", "")
        if not base_url:
            return _endpoint(name, *model.split("/", 1), **fields)
        check_url(base_url, f"the address of {name}")
        return _endpoint(name, "openai", model, base_url, **fields)
    given: dict[str, Any] = {
        "key_env": entry.api_key_env,
        "key_command": entry.api_key_command,
        "api": entry.api,
        "parameters": entry.parameters,
        "headers": entry.headers,
        "headers_env": entry.headers_env,
        "limits": entry.limits.model_dump(exclude_none=True),
        "timeouts": msgspec.convert(entry.timeouts.model_dump(exclude_none=True), prepared(Timeouts)),
        "retries": msgspec.convert(entry.retries.model_dump(exclude_none=True), prepared(Retries)),
        "structured": entry.structured,
    }
    if entry.prices is not None:
        given["price"] = msgspec.convert(entry.prices.model_dump(exclude_none=True), prepared(Price))
    if entry.base_url:
        check_url(entry.base_url, f"{models_file()}: {name}.base_url")
    if entry.base_url or entry.wire:
        prefix, slash, model = entry.model.partition("/")
        if not (slash and model and providers.has(prefix) and prefix == (entry.wire or prefix)):
            prefix, model = entry.wire or "openai", entry.model
        return _endpoint(name, prefix, model, entry.base_url or "", **given)
    if entry.model in definitions:
        raise RequestError(
            f"{models_file()}: {name}.model is {entry.model!r}, another name; write PROVIDER/NAME"
        )
    base = _write_out(entry.model, {})
    if base.base_url and "@http" in entry.model:
        return _endpoint(name, base.provider, base.model, base.base_url, **given)
    return _endpoint(name, base.provider, base.model, **given)


def check_url(url: str, where: str) -> None:
    """Refuse an address that carries a secret: specs are stored with every run."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # its message quotes what may be a part of a password
        valid = False
    if not valid:
        raise RequestError(f"{without_secret(where)}: an address is written http://host:port/v1")
    for path in ("/chat/completions", "/responses", "/messages"):
        if parts.path.rstrip("/").endswith(path):
            raise RequestError(
                f"{without_secret(where)}: the address ends with {path}, which karat appends: remove it"
            )
    if parts.username or parts.password:
        raise RequestError(
            f"{without_secret(where)}: the address holds a password, and addresses are stored: "
            "name an environment variable as api_key_env in models.yaml"
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if any(word in name.lower() for word in ("key", "token", "secret", "password", "sig", "code")):
            raise RequestError(
                f"{without_secret(where)}: the address holds {name}=…, and addresses are stored: "
                "name an environment variable as headers_env in models.yaml"
            )


def without_secret(where: str) -> str:
    """A spec without its address, which may hold a password and may be mistyped."""
    return re.sub(r"(?i)(@https?|://).*", r"\1…", where)
