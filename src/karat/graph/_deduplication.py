"""`SemanticDedupPostProcessor`: removes output records that mean the same as another, by embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from karat.datasets import whole_file
from karat.errors import RequestError, did_you_mean
from karat.graph._postprocess import GraphPostProcessor
from karat.serialization import encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

EMBEDDER = "local/wordllama"
MODES = ("nearest_neighbor", "all_pairs")
OTHERS = "sentence_transformers"
"""A package that other tools embed with; karat embeds with what it has, and its report says so."""
BLOCK = 1024
"""Records compared with all that are kept at a time."""


class SemanticDedupPostProcessor(GraphPostProcessor):
    """Keeps the first (or the last) of records whose `field` is similar; what was left out is in a report beside it.

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
        dropped = self._dropped(order, self._vectors([texts[at] for at in order])) if order else {}
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

    def _dropped(self, order: list[int], vectors: NDArray[Any]) -> dict[int, tuple[int, float]]:
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
        with whole_file(output.parent / name) as file:
            file.write(msgspec.json.format(encode(report), indent=2) + b"\n")
