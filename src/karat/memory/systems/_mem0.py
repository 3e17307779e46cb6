"""An adapter to mem0 (package mem0ai, open source edition)."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import msgspec

from karat.errors import DataError, RequestError
from karat.memory import memory_systems
from karat.memory._system import (
    Capabilities,
    Retrieval,
    RetrievedMemory,
    StoredMemory,
    Turn,
    parse_time,
    time_text,
    turn_text,
)
from karat.memory.systems._libraries import Ids, LibraryMemory, reproducible, require, required_model
from karat.memory.systems._turns import check_share, identity
from karat.serialization import storable

USER = "user"
EVERYTHING = 1_000_000
"""The limit for `get_all`, which returns 20 memories by default."""
NO_DATE = "unknown"

_loading = threading.Lock()
_date: ContextVar[str | None] = ContextVar("karat_mem0_date", default=None)


@memory_systems.register("mem0")
class Mem0(LibraryMemory):
    """Extract facts with a model and store them in a local Qdrant (mem0ai 2.2).

    Its calls go to a model of `karat.models`, its embeddings to a karat embedder, its files into the directory of the
    sample. Its telemetry is switched off, and its prompt gets the dialogue's date in place of today's. `infer=False`
    stores the turns as they are, without a model. `threshold` is the least similarity of a memory that is found.
    """

    name = "mem0"

    def __init__(
        self,
        model: Any = None,
        embedder: Any = None,
        infer: bool = True,
        threshold: float = 0.0,
        batch_turns: int = 20,
    ) -> None:
        super().__init__(embedder, batch_turns)
        if not isinstance(infer, bool):
            raise RequestError(f"mem0: infer is {infer!r}: it must be true or false")
        self.version = require("mem0ai", "mem0", "mem0", self.name)
        self.infer = infer
        self.threshold = check_share(self.name, "threshold", threshold)
        self._model = required_model(self.name, model) if infer else None
        self._ids = Ids()
        self._batches = 0
        self._memory: Any = None

    def capabilities(self) -> Capabilities:
        # An extracted fact comes from a batch of turns, and mem0 does not name the turn.
        return Capabilities(event_time="text", save=True, parallel=True, provenance=not self.infer)

    def configuration(self) -> Any:
        return {
            "model": identity(self._model),
            "embedder": self._embedder.spec,
            "infer": self.infer,
            "threshold": self.threshold,
            "batch_turns": self.batch_turns,
        }

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._ids = Ids()
        self._batches = 0
        self._open()

    def _open(self) -> None:
        mem0 = _library()
        dimensions = len(self._vectors(["dimensions"])[0])
        vectors = {
            "collection_name": "memories",
            "path": str(self.directory / "qdrant"),
            "embedding_model_dims": dimensions,
            "on_disk": True,
        }
        memory = mem0.Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": vectors},
                # Both are replaced below, before they can be used.
                "llm": {"provider": "openai", "config": {"api_key": "unused", "model": "unused"}},
                "embedder": {"provider": "openai", "config": {"api_key": "unused"}},
                "history_db_path": str(self.directory / "history.db"),
            }
        )
        memory.llm = _KaratLlm(self._model)
        memory.embedding_model = _KaratEmbeddings(self, dimensions)
        self._memory = memory

    def _add(self, turns: Sequence[Turn], session_id: str) -> None:
        groups = [turns] if self.infer else [[turn] for turn in turns]
        for group in groups:
            latest = next((turn.time for turn in reversed(group) if turn.time), None)
            moment = parse_time(latest)
            self._batches += 1
            metadata = {
                "created_at": moment.isoformat() if moment else latest or NO_DATE,
                "session_id": session_id,
                "batch": self._batches,
                "turn_ids": [turn.turn_id for turn in group] if not self.infer else [],
            }
            messages = [
                {
                    "role": "assistant" if turn.speaker.lower() == "assistant" else "user",
                    "content": storable(turn_text(turn)),
                }
                for turn in group
            ]
            with self._in_dialogue(time_text(latest) or NO_DATE):
                self._memory.add(messages, user_id=USER, metadata=metadata, infer=self.infer)

    @contextmanager
    def _in_dialogue(self, date: str | None) -> Iterator[None]:
        from mem0.memory import main

        token = _date.set(date)
        try:
            with reproducible(self._ids, main):
                yield
        finally:
            _date.reset(token)

    def snapshot(self) -> list[StoredMemory]:
        found = self._memory.get_all(filters={"user_id": USER}, top_k=EVERYTHING, show_expired=True)[
            "results"
        ]
        if len(found) >= EVERYTHING:
            raise DataError(f"mem0 has more memories than a snapshot can list ({EVERYTHING:,})")
        memories = [_memory_with_place(item) for item in found]
        return [memory for _, memory in sorted(memories, key=lambda each: each[0])]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        asked = storable(query)
        if top_k <= 0 or not asked.strip():  # mem0 refuses a blank query
            return Retrieval(items=(), trace={"system": self.name})
        with self._in_dialogue(time_text(now) or None):
            found = self._memory.search(
                asked, top_k=top_k, filters={"user_id": USER}, threshold=self.threshold, show_expired=True
            )["results"]
        items = [
            RetrievedMemory(
                memory_id=str(item["id"]),
                text=storable(str(item["memory"])),
                score=storable(float(item["score"])),
                raw_backend_id=str(item["id"]),
                turn_ids=tuple((item.get("metadata") or {}).get("turn_ids") or ()),
            )
            for item in found
        ]
        return Retrieval(items=tuple(items), trace={"system": self.name, "threshold": self.threshold})

    def save(self, directory: Path) -> None:
        self._close_library()  # so that everything is in the files
        for name in ("qdrant", "history.db"):
            source = self.directory / name
            if source.is_dir():
                shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns(".lock"))
            elif source.exists():
                shutil.copy2(source, directory / name)
        counts = {"ids": self._ids.given, "batches": self._batches}
        (directory / "karat.json").write_bytes(msgspec.json.encode(counts))
        self._open()

    def load(self, directory: Path) -> None:
        path = directory / "karat.json"
        try:
            counts = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
            ids, batches = counts["ids"], counts["batches"]
        except (OSError, msgspec.MsgspecError, KeyError) as error:
            raise DataError(f"{path}: cannot load a saved mem0 memory: {error}") from error
        self._close_library()
        for name in ("qdrant", "history.db"):
            target = self.directory / name
            if target.is_dir():
                shutil.rmtree(target)
            elif target.exists():
                target.unlink()
            source = directory / name
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                shutil.copy2(source, target)
        self._ids, self._batches = Ids(ids), batches
        self._open()

    def close(self) -> None:
        self._close_library()

    def _close_library(self) -> None:
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.vector_store.client.close()
            memory.close()


def _memory_with_place(item: Mapping[str, Any]) -> tuple[tuple[int, str], StoredMemory]:
    """A memory of `get_all`, with its place in the order of the dialogue."""
    metadata = dict(item.get("metadata") or {})
    batch = int(metadata.get("batch") or 0)
    known = {"session_id", "batch", "turn_ids"}
    rest = {key: value for key, value in metadata.items() if key not in known}
    if item.get("created_at") not in (None, NO_DATE):
        rest["time"] = item["created_at"]
    memory = StoredMemory(
        memory_id=str(item["id"]),
        text=storable(str(item["memory"])),
        session_id=str(metadata["session_id"]) if metadata.get("session_id") else None,
        raw_backend_id=str(item["id"]),
        raw_backend_type="mem0",
        turn_ids=tuple(metadata.get("turn_ids") or ()),
        metadata=cast("dict[str, Any]", storable(rest)),
    )
    return (batch, memory.memory_id), memory


class _KaratLlm:
    """A model of `karat.models` as mem0 calls one. A reply that mem0 would silently skip is an error."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate_response(
        self, messages: list[dict[str, Any]], response_format: object = None, **options: Any
    ) -> str:
        if self._model is None:
            raise RequestError("mem0: infer is false, so there is no model to ask")
        date = _date.get()
        if date is None or f"## Observation Date\n{date}" not in messages[-1]["content"]:
            raise RequestError(
                "mem0: its prompt does not have the dialogue's date, which this version builds in another way:"
                " install mem0ai 2.2"
            )
        text: str = self._model.generate_sync(messages).text
        _check_extraction(text)
        return text


def _check_extraction(text: str) -> None:
    from mem0.memory.utils import extract_json, remove_code_blocks

    try:
        cleaned = remove_code_blocks(text)
        try:
            found = msgspec.json.decode(cleaned)
        except msgspec.MsgspecError:
            found = msgspec.json.decode(extract_json(cleaned))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"mem0: the model's reply is not JSON: {error}") from error
    memories = found.get("memory") if isinstance(found, dict) else None
    if not isinstance(memories, list) or not all(
        isinstance(each, dict) and isinstance(each.get("text"), str) for each in memories
    ):
        raise ValueError('mem0: the model\'s reply has no list "memory" of objects with a "text"')


class _KaratEmbeddings:
    """A karat embedder as mem0 calls one."""

    def __init__(self, system: LibraryMemory, dimensions: int) -> None:
        from mem0.configs.embeddings.base import BaseEmbedderConfig

        self._system = system
        self.config = BaseEmbedderConfig(embedding_dims=dimensions)

    def embed(self, text: str, memory_action: object = None) -> list[float]:
        return self._system._vectors([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: object = "add") -> list[list[float]]:
        return self._system._vectors(texts)


def _library() -> Any:
    """The module mem0 without telemetry, with the dialogue's date in its prompt."""
    with _loading:
        os.environ["MEM0_TELEMETRY"] = "False"  # read when it is imported
        if "MEM0_DIR" not in os.environ:  # it writes a user id into the home directory when it is imported
            os.environ["MEM0_DIR"] = tempfile.mkdtemp(prefix="karat-mem0-")
        import mem0
        from mem0.memory import main, telemetry

        for name in ("mem0.vector_stores.qdrant", "mem0.utils.spacy_models"):
            # Each instance warns about missing optional packages, which the documentation already mentions.
            if logging.getLogger(name).level == logging.NOTSET:
                logging.getLogger(name).setLevel(logging.ERROR)
        # It may have been imported before, with telemetry on.
        telemetry.MEM0_TELEMETRY = main.MEM0_TELEMETRY = False
        telemetry.client_telemetry.posthog = None
        original = main.generate_additive_extraction_prompt
        if not hasattr(original, "karat"):

            def prompt(*arguments: Any, **options: Any) -> str:
                date = _date.get()
                if date is not None:
                    options |= {"current_date": date, "timestamp": date}
                return str(original(*arguments, **options))

            prompt.karat = True  # type: ignore[attr-defined]  # marks that it is wrapped
            main.generate_additive_extraction_prompt = prompt
    return mem0
