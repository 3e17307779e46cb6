"""Systems that draw conclusions: GAMemory after Generative Agents, RFMemory after Reflexion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from karat.memory import memory_systems
from karat.memory._system import Capabilities, Retrieval, Turn, parse_time
from karat.memory.systems import _model
from karat.memory.systems._search import EMBEDDER, EmbeddedMemory
from karat.memory.systems._turns import (
    Entry,
    TurnMemory,
    best_first,
    bundle,
    check_share,
    check_whole,
    newest_within,
)

_INSIGHTS = (
    "What can be concluded about the people in this dialogue from the following lines, taken together?"
)
_LESSONS = """A session of a dialogue has ended. Look back on it: which lasting facts, preferences, decisions and \
changes must be known in later sessions, and what said earlier is no longer true?"""


@memory_systems.register("GAMemory")
class GAMemory(EmbeddedMemory):
    """Ranks turns by similarity, recency and importance (after Generative Agents).

    Recency halves every `half_life_days` of the dialogue's calendar before the question. Each of the three is scaled
    to 0..1 over all memories, weighted and added. With a model, the model rates importance at the end of each session,
    and derives insights when the importance since the last ones reaches `reflect_at`; without one, importance comes
    from the words of a turn and there are no insights.
    """

    name = "GAMemory"
    backend_type = "vector"

    def __init__(
        self,
        embedder: object = EMBEDDER,
        model: object = None,
        half_life_days: float = 14.0,
        similarity_weight: float = 1.0,
        recency_weight: float = 1.0,
        importance_weight: float = 1.0,
        reflect_at: float = 5.0,
    ) -> None:
        super().__init__(embedder)
        self._model = _model.model_of(self.name, model)
        self.half_life_days = check_share(self.name, "half_life_days", half_life_days, 0.001)
        self.weights = (
            check_share(self.name, "similarity_weight", similarity_weight),
            check_share(self.name, "recency_weight", recency_weight),
            check_share(self.name, "importance_weight", importance_weight),
        )
        self.reflect_at = check_share(self.name, "reflect_at", reflect_at)
        self._unrated = 0
        self._unreflected = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="native", save=True, parallel=True, provenance=True)

    def configuration(self) -> Any:
        return {
            **super().configuration(),
            "model": _model.identity(self._model),
            "half_life_days": self.half_life_days,
            "weights": list(self.weights),
            "reflect_at": self.reflect_at,
        }

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._unrated = self._unreflected = 0

    def ingest_turn(self, turn: Turn) -> None:
        super().ingest_turn(turn)
        if self._model is None:
            self.entries[-1] = _with_salience(self.entries[-1], turn)

    def end_session(self, session_id: str) -> None:
        if self._model is not None:
            new = self.entries[self._unrated :]
            for position, rating in enumerate(_model.rate(self._model, new), self._unrated):
                self.entries[position] = msgspec.structs.replace(self.entries[position], importance=rating)
            self._unrated = len(self.entries)
            self._reflect(session_id)
        super().end_session(session_id)

    def _reflect(self, session_id: str) -> None:
        assert self._model is not None
        recent = [entry for entry in self.entries[self._unreflected :] if entry.kind == "turn"]
        if sum(entry.importance for entry in recent) < self.reflect_at:
            return
        important = sorted(recent, key=lambda entry: -entry.importance)[: _model.BATCH]
        for statement in _model.state(self._model, _INSIGHTS, important):
            self._store(derived(self.entries, statement, session_id, "insight"))
        self._unrated = self._unreflected = len(self.entries)

    def _metadata_of(self, entry: Entry) -> Mapping[str, Any]:
        return {**super()._metadata_of(entry), "importance": entry.importance}

    def _ranked(self, query: str, now: str | None) -> list[tuple[int, float]]:
        if not self.entries:
            return []
        similarity = dict(self._vectors.search(query))
        parts = (
            _scaled([similarity[position] for position in range(len(self.entries))]),
            _scaled(self._recency(now)),
            _scaled([entry.importance for entry in self.entries]),
        )
        return best_first(
            (position, sum(weight * value for weight, value in zip(self.weights, values, strict=True)))
            for position, values in enumerate(zip(*parts, strict=True))
        )

    def _recency(self, now: str | None) -> list[float]:
        """How recent each memory is at the time of the question; a turn without a date has that of the one before."""
        dates = [parse_time(entry.time) for entry in self.entries]
        known = [date for date in dates if date is not None]
        if not known:
            return [float(position) for position in range(len(dates))]
        end = parse_time(now) or max(known)
        recency = []
        last = known[0]
        for date in dates:
            last = date or last
            days = max(0.0, (end - last).total_seconds() / 86_400)
            recency.append(0.5 ** min(1_000.0, days / self.half_life_days))
        return recency

    def _state(self) -> dict[str, Any]:
        return {"unrated": self._unrated, "unreflected": self._unreflected}

    def _restore(self, state: dict[str, Any]) -> None:
        self._unrated, self._unreflected = int(state["unrated"]), int(state["unreflected"])


@memory_systems.register("RFMemory")
class RFMemory(TurnMemory):
    """Keeps everything, and looks back on each session for what must be known later (after Reflexion).

    With a model, the model writes the reflections of a session, which may replace earlier ones; without one, they are
    the `reflections` most telling turns of the session. All reflections and the newest turns are returned as two
    texts, which share a token budget; reflections get at most a quarter.
    """

    name = "RFMemory"

    def __init__(self, model: object = None, tokens: int = 8_000, reflections: int = 3) -> None:
        super().__init__()
        self._model = _model.model_of(self.name, model)
        self.tokens = check_whole(self.name, "tokens", tokens, 8)
        self.reflections = check_whole(self.name, "reflections", reflections)
        self._chosen: list[str] = []
        self._session_start = 0

    def configuration(self) -> Any:
        return {
            "model": _model.identity(self._model),
            "tokens": self.tokens,
            "reflections": self.reflections,
        }

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._chosen, self._session_start = [], 0

    def ingest_turn(self, turn: Turn) -> None:
        super().ingest_turn(turn)
        self.entries[-1] = _with_salience(self.entries[-1], turn)

    def end_session(self, session_id: str) -> None:
        session = self.entries[self._session_start :]
        if self._model is None:
            best = sorted(session, key=lambda entry: -entry.importance)[: self.reflections]
            kept = {entry.memory_id for entry in best if entry.importance > 0}
            self._chosen += [entry.memory_id for entry in session if entry.memory_id in kept]
        elif session:
            known = [entry for entry in self.entries if entry.kind == "reflection" and not entry.archived]
            for statement in _model.state(self._model, _LESSONS, session, known[-_model.BATCH :]):
                archive(self.entries, statement.replaces)
                self._store(derived(self.entries, statement, session_id, "reflection"))
        self._session_start = len(self.entries)

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        if top_k <= 0 or not self.entries:
            return Retrieval(items=(), trace={"system": self.name, "stored": len(self.entries)})
        chosen = set(self._chosen)
        reflections = newest_within(
            [e for e in self.entries if e.memory_id in chosen or (e.kind == "reflection" and not e.archived)],
            self.tokens // 4,
        )
        shown = {entry.memory_id for entry in reflections}
        turns = newest_within(
            [e for e in self.entries if e.kind == "turn" and e.memory_id not in shown],
            self.tokens - self.tokens // 4,
        )
        parts = [("karat:reflections", reflections), ("karat:bundle", turns)]
        items = [bundle(entries, name) for name, entries in parts if entries]
        if top_k == 1:
            items = [bundle([*reflections, *turns])]
        return Retrieval(
            items=tuple(items),
            trace={
                "system": self.name,
                "stored": len(self.entries),
                "bundled": len(turns) + len(reflections),
            },
        )

    def _state(self) -> dict[str, Any]:
        return {"chosen": self._chosen, "session_start": self._session_start}

    def _restore(self, state: dict[str, Any]) -> None:
        self._chosen = [str(each) for each in state["chosen"]]
        self._session_start = int(state["session_start"])


def derived(entries: list[Entry], statement: _model.Statement, session_id: str, kind: str) -> Entry:
    """A memory that rests on others: it names their turns and has the time of the newest."""
    times = [entry.time for entry in statement.sources if entry.time]
    return Entry(
        memory_id=str(len(entries)),
        text=statement.text,
        session_id=session_id,
        turn_ids=tuple(dict.fromkeys(turn for entry in statement.sources for turn in entry.turn_ids)),
        time=times[-1] if times else next((e.time for e in reversed(entries) if e.time), None),
        importance=max((entry.importance for entry in statement.sources), default=0.0),
        kind=kind,
        replaces=tuple(entry.memory_id for entry in statement.replaces),
    )


def archive(entries: list[Entry], replaced: list[Entry]) -> None:
    """Mark memories as out of date."""
    ids = {entry.memory_id for entry in replaced}
    for position, entry in enumerate(entries):
        if entry.memory_id in ids:
            entries[position] = msgspec.structs.replace(entry, archived=True)


def _with_salience(entry: Entry, turn: Turn) -> Entry:
    return msgspec.structs.replace(entry, importance=_model.salience(turn.text))


def _scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]
