"""An adapter to Graphiti (package graphiti-core) with an embedded Kuzu database."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from karat.errors import RequestError
from karat.memory import memory_systems
from karat.memory._system import (
    Capabilities,
    Retrieval,
    RetrievedMemory,
    StoredMemory,
    Turn,
    parse_time,
    turn_text,
)
from karat.memory.systems._libraries import LibraryMemory, require, required_model
from karat.memory.systems._turns import identity
from karat.serialization import storable

GROUP = "karat"
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of a dialogue without dates; Graphiti needs one."""

LONGEST_QUERY = 100
"""Words of a query; Graphiti drops its full-text search for longer ones."""

T = TypeVar("T")

_WORD = re.compile(r"\w+")


@memory_systems.register("graphiti")
class Graphiti(LibraryMemory):
    """Build a graph of facts with a model, in a Kuzu database in the sample's directory (graphiti-core 0.31).

    A memory is a fact (an edge); a fact that a later one contradicts is archived. Its calls go to a model of
    `karat.models`, its embeddings to a karat embedder. `batch_turns=1` makes each turn an episode of its own, so that
    memories name their turns. Ids are random, and it cannot be saved.
    """

    name = "graphiti"

    def __init__(self, model: object = None, embedder: object = None, batch_turns: int = 10) -> None:
        super().__init__(embedder, batch_turns)
        self.version = require("graphiti-core", "graphiti_core", "graphiti", self.name)
        require("kuzu", "kuzu", "graphiti", self.name)
        self._model = required_model(self.name, model)
        self._graph: Any = None
        self._driver: Any = None
        self._worker: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._facts: dict[str, str] = {}
        """The session that each fact was found in, in order."""
        self._episodes: dict[str, tuple[str, ...]] = {}
        """The turns of each episode."""
        self._last = UNDATED

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="native", save=False, parallel=True, provenance=self.batch_turns == 1)

    def configuration(self) -> Any:
        return {
            "model": identity(self._model),
            "embedder": self._embedder.spec,
            "batch_turns": self.batch_turns,
        }

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._facts, self._episodes, self._last = {}, {}, UNDATED
        # Kuzu's connection belongs to one event loop, so all calls go to one thread that has it.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="karat-graphiti")
        self._loop = self._worker.submit(asyncio.new_event_loop).result()
        self._run(self._open(directory / "graph.kuzu"))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._worker is None or self._loop is None:
            work.close()
            raise RequestError("graphiti: call reset before any other method")
        return self._worker.submit(self._loop.run_until_complete, work).result()

    async def _open(self, path: Path) -> None:
        os.environ["GRAPHITI_TELEMETRY_ENABLED"] = "false"
        import graphiti_core
        from graphiti_core.driver.driver import GraphProvider
        from graphiti_core.driver.kuzu_driver import KuzuDriver
        from graphiti_core.graph_queries import get_fulltext_indices

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Kuzu is the only one that needs no server
            self._driver = KuzuDriver(db=str(path))
        self._driver._database = GROUP  # add_episode reads it, and this driver does not set it
        await self._driver.execute_query("INSTALL FTS;")
        await self._driver.execute_query("LOAD EXTENSION FTS;")
        for query in get_fulltext_indices(GraphProvider.KUZU):  # its own method for it does nothing with Kuzu
            await self._driver.execute_query(query)
        language_model, embedder, ranker = _clients(self, self._model)
        self._graph = graphiti_core.Graphiti(
            graph_driver=self._driver, llm_client=language_model, embedder=embedder, cross_encoder=ranker
        )

    def _add(self, turns: Sequence[Turn], session_id: str) -> None:
        from graphiti_core.nodes import EpisodeType

        latest = next((moment for turn in reversed(turns) if (moment := parse_time(turn.time))), None)
        self._last = latest.replace(tzinfo=UTC) if latest else self._last
        made = self._run(
            self._graph.add_episode(
                name=f"{session_id} {len(self._episodes)}",
                episode_body="\n".join(storable(turn_text(turn)) for turn in turns),
                source_description="dialogue",
                reference_time=self._last,
                source=EpisodeType.message,
                group_id=GROUP,
            )
        )
        self._episodes[made.episode.uuid] = tuple(turn.turn_id for turn in turns)
        for edge in self._edges():
            self._facts.setdefault(edge.uuid, session_id)

    def _edges(self) -> list[Any]:
        from graphiti_core.edges import EntityEdge
        from graphiti_core.errors import GroupsEdgesNotFoundError

        try:
            return list(self._run(EntityEdge.get_by_group_ids(self._driver, [GROUP])))
        except GroupsEdgesNotFoundError:
            return []

    def _turns_of(self, edge: Any) -> tuple[str, ...]:
        if self.batch_turns != 1:
            return ()
        turns = (turn for episode in edge.episodes for turn in self._episodes.get(episode, ()))
        return tuple(dict.fromkeys(turns))

    def snapshot(self) -> list[StoredMemory]:
        order = {name: position for position, name in enumerate(self._facts)}
        return [
            StoredMemory(
                memory_id=edge.uuid,
                text=_fact_with_date(edge),
                session_id=self._facts.get(edge.uuid) or None,
                status="archived" if edge.invalid_at is not None or edge.expired_at is not None else "active",
                raw_backend_id=edge.uuid,
                raw_backend_type="kuzu",
                turn_ids=self._turns_of(edge),
                metadata={"relation": edge.name},
            )
            for edge in sorted(self._edges(), key=lambda each: (order.get(each.uuid, len(order)), each.uuid))
        ]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        # Kuzu's full-text search takes "violin?" as another word than "violin".
        asked = " ".join(_WORD.findall(storable(query))[:LONGEST_QUERY])
        if top_k <= 0 or not asked or not self._facts:
            return Retrieval(items=(), trace={"system": self.name})
        found = self._run(self._search(asked, top_k))
        items = [
            RetrievedMemory(
                memory_id=edge.uuid,
                text=_fact_with_date(edge),
                raw_backend_id=edge.uuid,
                turn_ids=self._turns_of(edge),
            )
            for edge in found[:top_k]
        ]
        return Retrieval(items=tuple(items), trace={"system": self.name})

    async def _search(self, query: str, top_k: int) -> list[Any]:
        """Facts by words and by embeddings, joined by reciprocal rank, without a least similarity."""
        from graphiti_core.search import search_config

        edges = search_config.EdgeSearchConfig(
            search_methods=[
                search_config.EdgeSearchMethod.bm25,
                search_config.EdgeSearchMethod.cosine_similarity,
            ],
            reranker=search_config.EdgeReranker.rrf,
            sim_min_score=-1.0,
        )
        config = search_config.SearchConfig(edge_config=edges, limit=top_k)
        return list((await self._graph.search_(query, config=config, group_ids=[GROUP])).edges)

    def close(self) -> None:
        worker, loop, driver = self._worker, self._loop, self._driver
        self._worker = self._loop = self._driver = self._graph = None
        if worker is not None:
            if driver is not None:
                worker.submit(driver.client.close).result()
                worker.submit(driver.db.close).result()
            if loop is not None:
                worker.submit(loop.close).result()
            worker.shutdown()


def _fact_with_date(edge: Any) -> str:
    """A fact with the time from which it holds, in the dialogue's calendar."""
    fact: str = storable(str(edge.fact))
    begin, end = edge.valid_at, edge.invalid_at
    if begin is None and end is None:
        return fact
    span = f"{begin.date().isoformat() if begin else '…'}{f' to {end.date().isoformat()}' if end else ''}"
    return f"[{span}] {fact}"


def _clients(system: LibraryMemory, model: Any) -> tuple[Any, Any, Any]:
    """Graphiti's interfaces over karat's models."""
    from graphiti_core.cross_encoder.client import CrossEncoderClient
    from graphiti_core.embedder.client import EmbedderClient
    from graphiti_core.llm_client.client import LLMClient
    from graphiti_core.llm_client.config import LLMConfig

    class Language(LLMClient):  # type: ignore[misc]  # the package has no types
        async def _generate_response(
            self, messages: Any, response_model: Any = None, *arguments: Any, **options: Any
        ) -> dict[str, Any]:
            given = [{"role": each.role, "content": each.content} for each in messages]
            if response_model is None:
                return {"content": (await model.generate(given)).text}
            reply = await model.generate(given, schema=response_model)
            found: dict[str, Any] = reply.parsed.model_dump(mode="json")
            return found

    class Embedder(EmbedderClient):  # type: ignore[misc]
        async def create(self, input_data: str | Iterable[object]) -> list[float]:
            texts = [input_data] if isinstance(input_data, str) else list(input_data)
            return (await self.create_batch([str(text) for text in texts]))[0]

        async def create_batch(self, input_data_list: list[str]) -> list[list[float]]:
            return await asyncio.to_thread(system._vectors, input_data_list)

    class Ranker(CrossEncoderClient):  # type: ignore[misc]
        async def rank(self, query: str, passages: list[str]) -> list[tuple[str, float]]:
            raise RequestError("graphiti: this adapter ranks by reciprocal rank, not with a cross-encoder")

    return Language(LLMConfig()), Embedder(), Ranker()
