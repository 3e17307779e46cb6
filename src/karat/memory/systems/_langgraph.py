"""Adapters to LangGraph stores: `langgraph` stores turns unchanged, `langmem` stores what LangMem extracts."""

from __future__ import annotations

import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from karat import paths
from karat.errors import DataError, RequestError
from karat.memory import memory_systems
from karat.memory._system import Capabilities, Retrieval, RetrievedMemory, StoredMemory, Turn, turn_text
from karat.memory.systems._libraries import Ids, LibraryMemory, reproducible, require, required_model
from karat.memory.systems._turns import check_whole, identity
from karat.registry import load_object
from karat.serialization import prepared, storable

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.store.base import Op

    from karat.models import Model

PAGE = 1_000
FILE = "items.json"


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: dict[str, Any]
    session_id: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    system: str
    items: list[_Item]
    ids: int = 0


class _StoreMemory(LibraryMemory):
    """Memories that are the items of one namespace of a store."""

    field: str
    """The path of the text within an item's value."""

    def __init__(self, embedder: Any, batch_turns: int) -> None:
        super().__init__(embedder, batch_turns)
        self._store: Any = None
        self._namespace: tuple[str, ...] = ("memories",)
        self._sessions: dict[str, str] = {}
        """The session that each item was last written in."""
        self._ids = Ids()

    def _new_store(self) -> Any:
        dimensions = len(self._vectors(["dimensions"])[0])
        return _checked_store(
            {"dims": dimensions, "embed": lambda texts: self._vectors(texts), "fields": [self.field]}
        )

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._store = self._new_store()
        self._sessions, self._ids = {}, Ids()

    def _items(self) -> list[Any]:
        items: list[Any] = []
        while True:
            page = self._store.search(self._namespace, limit=PAGE, offset=len(items))
            items += page
            if len(page) < PAGE:
                return items

    def snapshot(self) -> list[StoredMemory]:
        order = {key: number for number, key in enumerate(self._sessions)}
        return [
            StoredMemory(
                memory_id=item.key,
                text=self._text(item.value),
                session_id=self._sessions.get(item.key) or None,
                raw_backend_id=item.key,
                raw_backend_type=type(self._store).__mro__[1].__name__
                if isinstance(self._store, _Checked)
                else type(self._store).__name__,
                turn_ids=tuple(item.value.get("turn_ids") or ()),
            )
            for item in sorted(self._items(), key=lambda each: (order.get(each.key, len(order)), each.key))
        ]

    def _text(self, value: Mapping[str, Any]) -> str:
        found = paths.get(value, self.field)
        if not isinstance(found, str):
            raise DataError(f"{self.name}: an item of the store has no text at {self.field!r}")
        text: str = storable(found)
        return text

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        asked = storable(query)
        if top_k <= 0 or not asked.strip():
            return Retrieval(items=(), trace={"system": self.name})
        found = self._store.search(self._namespace, query=asked, limit=top_k)
        items = [
            RetrievedMemory(
                memory_id=item.key,
                text=self._text(item.value),
                score=None if item.score is None else storable(float(item.score)),
                raw_backend_id=item.key,
                turn_ids=tuple(item.value.get("turn_ids") or ()),
            )
            for item in found[:top_k]
        ]
        return Retrieval(items=tuple(items), trace={"system": self.name})

    def save(self, directory: Path) -> None:
        sessions = self._sessions
        held = {item.key: item.value for item in self._items()}
        items = [_Item(key=key, value=held[key], session_id=sessions[key]) for key in sessions if key in held]
        content = _File(format=1, system=self.name, items=items, ids=self._ids.given)
        (directory / FILE).write_bytes(msgspec.json.encode(content))

    def load(self, directory: Path) -> None:
        path = directory / FILE
        try:
            content = msgspec.json.decode(path.read_bytes(), type=prepared(_File))
        except (OSError, msgspec.MsgspecError) as error:
            raise DataError(f"{path}: cannot load a saved {self.name} memory: {error}") from error
        if content.format != 1 or content.system != self.name:
            raise DataError(
                f"{path}: saved by {content.system} (format {content.format}), not by {self.name} (format 1)"
            )
        self._ids = Ids(content.ids)
        for item in content.items:
            self._store.put(self._namespace, item.key, item.value)
            self._sessions[item.key] = item.session_id


@memory_systems.register("langgraph")
class LangGraphMemory(_StoreMemory):
    """Store the turns as they are in a LangGraph store, and return what its search finds.

    Without `store`, it is an InMemoryStore with a karat embedder. `store` is a BaseStore, or a function that returns
    one, as an object or as `package.module.make_store` or `file.py:make_store`; each sample gets a namespace of its
    own, whose items are deleted when the sample is done.
    """

    name = "langgraph"
    field = "text"

    def __init__(self, store: Any = None, embedder: Any = None, batch_turns: int = 100) -> None:
        super().__init__(embedder, batch_turns)
        self.version = require("langgraph", "langgraph", "langmem", self.name)
        self._given = load_object(store) if isinstance(store, str) else store
        self._spec = store if isinstance(store, str) or store is None else type(store).__qualname__
        self._count = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="text", save=True, parallel=self._given is None, provenance=True)

    def configuration(self) -> Any:
        return {"store": self._spec, "embedder": self._embedder.spec if self._given is None else None}

    def _new_store(self) -> Any:
        from langgraph.store.base import BaseStore

        if self._given is None:
            return super()._new_store()
        store = self._given if isinstance(self._given, BaseStore) else self._given()
        if not isinstance(store, BaseStore):
            raise RequestError(f"langgraph: store gives {type(store).__name__}: it must give a BaseStore")
        self._namespace = ("karat", uuid.uuid4().hex)  # the store may outlive this sample
        return store

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._count = 0

    def _add(self, turns: Sequence[Turn], session_id: str) -> None:
        for turn in turns:
            key = str(self._count)
            self._count += 1
            value = {"text": storable(turn_text(turn)), "turn_ids": [turn.turn_id]}
            self._store.put(self._namespace, key, value)
            self._sessions[key] = session_id

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._count = len(self._sessions)

    def close(self) -> None:
        if self._store is not None and self._given is not None:
            for item in self._items():
                self._store.delete(self._namespace, item.key)
        self._store = None


@memory_systems.register("langmem")
class LangMem(_StoreMemory):
    """Extract and update memories with a model in an InMemoryStore (langmem 0.0.30).

    Its calls go to a model of `karat.models`, its embeddings to a karat embedder. `query_limit` is how many stored
    memories the model is shown with a batch of turns. LangSmith tracing is switched off while it works.
    """

    name = "langmem"
    field = "content.content"

    def __init__(
        self,
        model: Any = None,
        embedder: Any = None,
        batch_turns: int = 20,
        query_limit: int = 5,
        enable_deletes: bool = True,
    ) -> None:
        super().__init__(embedder, batch_turns)
        self.version = require("langmem", "langmem", "langmem", self.name)
        self.query_limit = check_whole(self.name, "query_limit", query_limit)
        if not isinstance(enable_deletes, bool):
            raise RequestError(f"langmem: enable_deletes is {enable_deletes!r}: it must be true or false")
        self.enable_deletes = enable_deletes
        self._model = required_model(self.name, model)

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="text", save=True, parallel=True, provenance=False)

    def configuration(self) -> Any:
        return {
            "model": identity(self._model),
            "embedder": self._embedder.spec,
            "batch_turns": self.batch_turns,
            "query_limit": self.query_limit,
            "enable_deletes": self.enable_deletes,
        }

    def _add(self, turns: Sequence[Turn], session_id: str) -> None:
        langmem, extraction, trustcall = _langmem()
        manager = langmem.create_memory_store_manager(
            karat_chat_model(self._model),
            store=self._store,
            namespace=self._namespace,
            query_limit=self.query_limit,
            enable_deletes=self.enable_deletes,
        )
        messages = [
            {
                "role": "assistant" if turn.speaker.lower() == "assistant" else "user",
                "content": storable(turn_text(turn)),
            }
            for turn in turns
        ]
        before = {item.key: item.value for item in self._items()}
        with _without_tracing(), reproducible(self._ids, extraction, trustcall):
            manager.invoke({"messages": messages})
        self._store.raise_errors()
        after = {item.key: item.value for item in self._items()}
        for key in sorted(after.keys() - before.keys(), key=self._ids.position):
            self._sessions[key] = session_id
        for key in [key for key in self._sessions if key not in after]:
            del self._sessions[key]
        for key, value in after.items():
            if before.get(key, value) != value:
                self._sessions[key] = session_id

    def close(self) -> None:
        self._store = None


_loading = threading.Lock()


def _langmem() -> tuple[Any, Any, Any]:
    """The module langmem, and those of its modules and of trustcall's that make ids."""
    with _loading, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trustcall imports a name that LangGraph has deprecated
        import langmem
        import trustcall._base
        from langmem.knowledge import extraction
    return langmem, extraction, trustcall._base


class _Checked:
    """The mark of a store whose errors are kept."""

    def raise_errors(self) -> None:
        raise NotImplementedError


def _checked_store(index: dict[str, Any]) -> Any:
    """An InMemoryStore that keeps errors: LangMem writes in threads and ignores their exceptions."""
    from langgraph.store.memory import InMemoryStore

    class Store(InMemoryStore, _Checked):
        __slots__ = ("_errors", "_lock")

        def __init__(self) -> None:
            super().__init__(index=index)  # type: ignore[arg-type]  # the dict has the form of an IndexConfig
            self._errors: list[BaseException] = []
            self._lock = threading.Lock()

        def batch(self, ops: Iterable[Op]) -> list[Any]:
            with self._lock:
                try:
                    return super().batch(ops)
                except BaseException as error:
                    self._errors.append(error)
                    raise

        def raise_errors(self) -> None:
            if self._errors:
                raise self._errors[0]

    return Store()


@contextmanager
def _without_tracing() -> Iterator[None]:
    """Keep LangChain from sending data to LangSmith, even if the environment enables it."""
    from langsmith.run_helpers import tracing_context

    with tracing_context(enabled=False):
        yield


def karat_chat_model(model: Model) -> BaseChatModel:
    """A model of `karat.models` as a LangChain chat model, so that its calls are recorded, limited and cached."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, convert_to_openai_messages
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.utils.function_calling import convert_to_openai_tool

    class KaratChatModel(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "karat"

        def bind_tools(
            self, tools: Iterable[Any], *, tool_choice: str | bool | None = None, **options: Any
        ) -> Any:
            names: dict[Any, str] = {"any": "required", True: "required"}
            choice: Any = names.get(tool_choice, tool_choice)
            if isinstance(choice, str) and choice not in ("required", "auto", "none"):
                choice = {"type": "function", "function": {"name": choice}}
            given: dict[str, Any] = {"tools": [convert_to_openai_tool(tool) for tool in tools]}
            return self.bind(**given, **({"tool_choice": choice} if choice is not None else {}))

        def _generate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
        ) -> ChatResult:
            asked: dict[str, Any] = {key: options[key] for key in ("tools", "tool_choice") if key in options}
            if stop:
                asked["stop"] = stop
            reply = model.generate_sync(convert_to_openai_messages(messages), **asked)
            calls = []
            for call in reply.tool_calls:
                if not isinstance(call.arguments, dict):
                    raise ValueError(
                        f"{model.spec} called {call.name} with arguments that are not a JSON object"
                    )
                calls.append({"name": call.name, "args": call.arguments, "id": call.id})
            return ChatResult(
                generations=[ChatGeneration(message=AIMessage(content=reply.text, tool_calls=calls))]
            )

    return KaratChatModel()
