"""The catalogue of usable models: what each model needs, and a check that a model answers."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

from karat.errors import KaratError
from karat.models._client import Embedder, get
from karat.models._endpoints import Endpoint, defined_names, provider_named, resolve, without_secret
from karat.models._recording import recording
from karat.models.providers import _weights as weights
from karat.models.providers import providers


def available() -> list[dict[str, Any]]:
    """List the known models as `{spec, kind, ready, needs}`; `needs` is empty if a model is ready.

    `ready` is None for a server that needs no key: whether it runs is known when it is called.
    """
    rows = [_local(name) for name in weights.KNOWN]
    rows.append(_row("local/wordllama", "embedder", _package("wordllama")))
    for name in providers.list():
        if name != "local":
            rows.append(_provider(name))
    for name in defined_names():
        endpoint = resolve(name)
        server = endpoint.base_url if endpoint.provider != "local" and not endpoint.needs_key else ""
        rows.append(_row(name, "defined", _endpoint_needs(endpoint), server))
    return rows


def check(spec: str) -> dict[str, Any]:
    """Tries one call, past the cache: `{spec, ok, seconds, answer, served_model, error}`."""
    start = time.perf_counter()
    out: dict[str, Any] = {
        "spec": without_secret(spec),
        "ok": False,
        "answer": "",
        "served_model": "",
        "error": None,
    }
    try:
        model = get(spec)
        out["spec"] = spec  # which holds no secret, or it would have been refused
        with recording(cache="off"):
            if isinstance(model, Embedder):
                out["answer"] = f"{model.embed_sync(['one word']).shape[1]} dimensions"
            else:
                reply = model.generate_sync("Answer with the word yes.", max_tokens=512)
                out |= {"answer": reply.text[:200], "served_model": reply.served_model}
        out["ok"] = True
    except KaratError as error:
        out["error"] = str(error)
    out["seconds"] = time.perf_counter() - start
    return out


def _row(spec: str, kind: str, needs: str, server: str = "") -> dict[str, Any]:
    if server and not needs:
        return {"spec": spec, "kind": kind, "ready": None, "needs": f"no key; a server at {server}"}
    return {"spec": spec, "kind": kind, "ready": not needs, "needs": needs}


def _package(name: str) -> str:
    return "" if importlib.util.find_spec(name) else "pip install 'karat[local]'"


def _local(name: str) -> dict[str, Any]:
    needs = _package("xllamacpp")
    if not needs:
        try:
            weights.find(name)
        except KaratError as error:
            needs = str(error)
    return _row(f"local/{name}", "local", needs)


def _provider(name: str) -> dict[str, Any]:
    provider = provider_named(name)
    model = os.environ.get("OPENAI_MODEL") if name == "openai" else None
    own = bool(provider.base_url_env and os.environ.get(provider.base_url_env))
    needs = [] if own else provider.missing_variables()
    keys = [each for each in (provider.key_env, provider.token_env) if each]
    if provider.needs_key and not own and keys and not any(os.environ.get(each) for each in keys):
        needs.append(" or ".join(keys))
    # The address in a variable is not shown: it may have a password in it.
    server = "" if provider.needs_key else provider.base_url_env if own else provider.base_url
    return _row(f"{name}/{model or 'NAME'}", "provider", ", ".join(needs), server)


def _endpoint_needs(endpoint: Endpoint) -> str:
    if endpoint.provider == "local":
        return _package("xllamacpp")
    variables = (
        [endpoint.key_env] if endpoint.needs_key and not os.environ.get(endpoint.token_env or "") else []
    )
    return ", ".join(
        name for name in [*variables, *endpoint.headers_env.values()] if not os.environ.get(name)
    )
