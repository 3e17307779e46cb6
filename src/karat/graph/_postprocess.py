"""Graph post-processors: reports over all output records of a run, written beside them.

A processor is a class with `process(data)` or `process(data, metadata)`, or, so that a report over a million records
needs no memory, with `start(metadata)`, `add(record)` and `finish()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from karat import paths
from karat.documents import Place
from karat.errors import FAILURES, KaratError, RequestError, did_you_mean
from karat.graph._functions import applied, positional
from karat.graph._lookup import TaskPlace
from karat.graph._reading import Problems, Section
from karat.serialization import encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENTRY_KEYS = ("processor", "params", "filter", "use_previous_output", "description")


class GraphPostProcessor:
    """Base of post-processors: override `process`, or `start`, `add` and `finish`.

    The return value becomes the report file: a list, or a mapping, which is written as a list of one item.
    """

    def __init__(self) -> None:
        """Take no parameters; a subclass takes those of its `params`."""

    def process(self, data: list[dict[str, Any]], metadata: dict[str, Any] | None = None) -> Any:
        """The report over all output records at once."""
        self.start(metadata or {})
        for record in data:
            self.add(record)
        return self.finish()

    def start(self, metadata: dict[str, Any]) -> None:
        """Start a report. `metadata` has `output_file`, `params` and the counts of the run's records."""

    def add(self, record: dict[str, Any]) -> None:
        """Add one output record."""
        raise TypeError(f"{type(self).__name__} has neither process nor add")

    def finish(self) -> Any:
        """The report over what was added."""
        raise TypeError(f"{type(self).__name__} has no finish")


class _Reporter(Protocol):
    """A post-processor with its parameters, of any class."""

    process: Callable[..., object]


class Processor:
    """A post-processor as the file defines it; each report gets a new instance."""

    def __init__(
        self,
        part: Any,
        params: dict[str, Any],
        keep: Callable[[dict[str, Any]], bool] | None,
        use_previous: bool,
        problems: Problems,
        wants: list[tuple[Place, str]],
        looks_at: list[tuple[Place, str]],
    ) -> None:
        self.part = part
        self.name = part.__name__
        self.params = params
        self.keep = keep
        """Which records it gets; None for all."""
        self.use_previous = use_previous
        self.problems = problems
        self.wants = wants
        """Output fields it needs, with the place where the file says so."""
        self.looks_at = looks_at
        """Those that its filter looks at, or that give results their metadata, in the same way."""

    @property
    def streams(self) -> bool:
        """Whether it takes records one by one."""
        own = getattr(self.part, "add", None)
        whole = getattr(self.part, "process", None)
        overridden = own is not None and own is not GraphPostProcessor.add
        return overridden and (whole is None or whole is GraphPostProcessor.process)

    @property
    def takes_attempts(self) -> bool:
        """Whether it takes the attempts at an example together; not where a subclass has an `add` of its own."""
        methods = (
            name for part in self.part.__mro__ for name in ("add_attempts", "add") if name in vars(part)
        )
        return next(methods) == "add_attempts"

    def make(self) -> Any:
        """The processor, made with its parameters."""
        return self.part(**self.params)

    def process(self, made: _Reporter, data: list[Any], metadata: dict[str, Any]) -> Any:
        """Return the report on a list of records."""
        takes = positional(made.process, 2)
        return made.process(*(data, metadata)[:takes])


def as_report(given: object, who: str) -> list[Any]:
    """The report of a processor, as the list that its file holds."""
    if isinstance(given, Mapping):
        return [dict(given)]
    if isinstance(given, (list, tuple)):
        return list(given)
    raise TypeError(f"{who} returned {type(given).__name__}: a report is a list or a mapping")


def read_processors(top: Section, place: TaskPlace) -> list[Processor]:
    """The processors of `graph_post_process`; two of the same class would write the same file."""
    found: list[Processor] = []
    for at, entry in enumerate(top.items("graph_post_process")):
        value = {"processor": entry} if isinstance(entry, str) else entry
        section = Section(value, ("graph_post_process", at), top.problems)
        try:
            processor = _read(section, place)
        except KaratError as error:
            top.problems.caught(section.place, error)
            continue
        if processor is None:
            continue
        if processor.name in [other.name for other in found]:
            section.problem(
                f"{processor.name} is named twice, and both would write {processor.name}_*.json: merge the two entries,"
                " or subclass it under another name"
            )
        if found and processor.use_previous and processor.keep is not None:
            section.problems.note(
                (*section.place, "filter"),
                "has no effect: the whole output of the processor before it is used",
            )
        found.append(processor)
    return found


def _read(section: Section, place: TaskPlace) -> Processor | None:
    section.known(ENTRY_KEYS)
    name = section.text("processor", needed=True)
    if name is None:
        return None
    try:
        part = place.load(name)
    except RequestError as error:
        section.problem(str(error), "processor")
        return None
    if not isinstance(part, type) or (lacking := _lacking(part)):
        reason = f": it has no {lacking}" if isinstance(part, type) else ""
        section.problem(
            f"{name} is not a class with process, or with start, add and finish{reason}", "processor"
        )
        return None
    params = section.mapping("params")
    use_previous = section.flag("use_previous_output", bool(params.get("use_previous_output", False)))
    filtered = section
    if "filter" in params and hasattr(
        part, "wants"
    ):  # a processor that declares its fields has no filter of its own
        if "filter" in section:
            section.problem("is given in params too: remove one of them", "filter")
        filtered = section.section("params")
        params = {key: value for key, value in params.items() if key != "filter"}
    params = _accepted_parameters(part, params, ("use_previous_output",))
    if not section.section("params").fits(part, params, name):
        return None
    try:
        wants, beside = part.wants(section, params) if hasattr(part, "wants") else ([], [])
        if not section.problems:
            part(**params)
    except KaratError as error:
        section.problems.caught((*section.place, "params"), error)
        return None
    except FAILURES as error:
        section.problem(f"{name} cannot be constructed: {type(error).__name__}: {error}", "params")
        return None
    keep = _filter(filtered, place)
    given = filtered.given.get("filter")
    fields = map(str, given) if isinstance(given, Mapping) and not use_previous else ()
    looks_at = [*beside, *(((*filtered.place, "filter", field), field) for field in fields)]
    return Processor(part, params, keep, use_previous, section.problems, wants, looks_at)


def _lacking(part: type) -> str:
    """The method that a class lacks to make a report, if any; methods of the base only call the others."""

    def has(name: str) -> bool:
        found = getattr(part, name, None)
        return callable(found) and found is not getattr(GraphPostProcessor, name)

    if has("process"):
        return ""
    if not has("add"):
        return "process and no add"
    return "" if has("finish") else "finish"


def _accepted_parameters(part: Any, params: dict[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
    """The parameters without those of the language that the processor does not ask for."""
    import inspect

    parameters = inspect.signature(part).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    return {k: v for k, v in params.items() if k not in optional or takes_all or k in names}


def _filter(section: Section, place: TaskPlace) -> Callable[[dict[str, Any]], bool] | None:
    """`filter`: a function by its dotted name, or fields with the value (or the values) they must have."""
    given = section.given.get("filter")
    if given is None:
        return None
    if isinstance(given, str):
        try:
            function = applied(place.load(given), 1, f"filter {given}")
        except KaratError as error:
            section.problems.caught((*section.place, "filter"), error)
            return None
        return lambda record: bool(function(record))
    if not isinstance(given, Mapping) or not given:
        section.problem("must be the dotted name of a function, or a mapping of fields to values", "filter")
        return None
    wanted = [(str(path), value if isinstance(value, list) else [value]) for path, value in given.items()]
    return lambda record: all(paths.get(record, path) in values for path, values in wanted)


# `SemanticDedupPostProcessor`: removes output records that mean the same as another, by embeddings.

EMBEDDER = "local/wordllama"
MODES = ("nearest_neighbor", "all_pairs")
OTHERS = "sentence_transformers"
"""A package that other tools embed with; karat embeds with what it has, and its report says so."""
BLOCK = 1024
"""Records compared with all that are kept at a time."""


class SemanticDedupPostProcessor(GraphPostProcessor):
    """Keep the first (or the last) of records whose `field` is similar; a report beside the output lists the others.

    Two texts are the same if their cosine similarity is at least `similarity_threshold`. `embedding_model` is a karat
    model, by default the embedded one. Records without a text in the field are kept. Every record is compared with all
    records kept so far in every `dedup_mode`, so `vectorstore_k` has no effect.
    """

    def __init__(
        self,
        field: str = "text",
        similarity_threshold: float = 0.9,
        id_field: str = "id",
        embedding_backend: str = "karat",
        embedding_model: str | None = None,
        report_filename: str | None = None,
        keep: str = "first",
        max_pairs_in_report: int = 2000,
        dedup_mode: str = MODES[0],
        vectorstore_k: int = 20,
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("keep", keep, ("first", "last")),
            ("dedup_mode", dedup_mode, MODES),
            ("embedding_backend", embedding_backend, ("karat", OTHERS)),
        ):
            if value not in known:
                raise RequestError(f"{name} is {value!r}: {did_you_mean(str(value), known)}")
        if isinstance(similarity_threshold, bool) or not -1.0 <= similarity_threshold <= 1.0:
            raise RequestError(
                f"similarity_threshold is {similarity_threshold!r}: it must be a cosine, such as 0.9"
            )
        self.field = field
        self.threshold = float(similarity_threshold)
        self.id_field = id_field
        self.asked_for = f"{OTHERS}/{embedding_model}" if embedding_backend == OTHERS else None
        self.embedder = EMBEDDER if embedding_backend == OTHERS or not embedding_model else embedding_model
        self.report_filename = report_filename
        self.keep = keep
        self.most_pairs = int(max_pairs_in_report)

    def process(
        self, data: list[dict[str, Any]], metadata: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The records that are kept, in their order."""
        texts = {at: text for at, record in enumerate(data) if (text := self._text(record)).strip()}
        order = list(texts) if self.keep == "first" else list(reversed(texts))
        dropped = self._dropped_records(order, self._vectors([texts[at] for at in order])) if order else {}
        if (metadata or {}).get("output_file"):
            self._write_report(
                Path(str((metadata or {})["output_file"])), data, dropped, len(data) - len(texts)
            )
        return [record for at, record in enumerate(data) if at not in dropped]

    def _text(self, record: Any) -> str:
        value = record.get(self.field) if isinstance(record, dict) else record
        if isinstance(value, (list, tuple)):
            return "\n".join(str(each) for each in value if each is not None)
        return "" if value is None else str(value)

    def _vectors(self, texts: list[str]) -> NDArray[Any]:
        import numpy

        from karat.models import get

        vectors: NDArray[Any] = numpy.asarray(get(self.embedder).embed_sync(texts), dtype=numpy.float32)
        vectors /= numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _dropped_records(self, order: list[int], vectors: NDArray[Any]) -> dict[int, tuple[int, float]]:
        """Records that are left out, each with the one kept in its place and how similar they are."""
        import numpy

        kept: list[int] = []
        dropped: dict[int, tuple[int, float]] = {}
        for start in range(0, len(order), BLOCK):
            block = vectors[start : start + BLOCK]
            before = block @ vectors[kept].T if kept else numpy.zeros((len(block), 0), dtype=block.dtype)
            inside, known = block @ block.T, list(kept)
            here: list[int] = []  # places in the block that are kept
            for at in range(len(block)):
                likeness = numpy.concatenate([before[at], inside[at, here]])
                best = int(likeness.argmax()) if len(likeness) else -1
                if best >= 0 and likeness[best] >= self.threshold:
                    place = known[best] if best < len(known) else start + here[best - len(known)]
                    dropped[order[start + at]] = (order[place], float(likeness[best]))
                else:
                    here.append(at)
            kept += [start + at for at in here]
        return dropped

    def _write_report(
        self, output: Path, data: list[Any], dropped: dict[int, tuple[int, float]], without_text: int
    ) -> None:
        def id_of(at: int) -> str:
            record = data[at]
            found = record.get(self.id_field) if isinstance(record, dict) else None
            return str(at if found is None else found)

        pairs = [
            {
                "kept_index": place,
                "dropped_index": at,
                "kept_id": id_of(place),
                "dropped_id": id_of(at),
                "similarity": similarity,
            }
            for at, (place, similarity) in sorted(dropped.items())[: self.most_pairs]
        ]
        report = {
            "processor": type(self).__name__,
            "field": self.field,
            "embedding_model": self.embedder,
            **({"embedding_model_asked_for": self.asked_for} if self.asked_for else {}),
            "similarity_threshold": self.threshold,
            "keep": self.keep,
            "input_count": len(data),
            "output_count": len(data) - len(dropped),
            "dropped_count": len(dropped),
            "without_text_count": without_text,
            "pairs_reported": len(pairs),
            "duplicates": pairs,
        }
        name = self.report_filename or f"{output.stem.replace('output', 'semantic_dedup_report', 1)}.json"
        from karat.datasets import whole_file

        with whole_file(output.parent / name) as file:
            file.write(msgspec.json.format(encode(report), indent=2) + b"\n")
