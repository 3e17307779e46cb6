"""Evaluators of similarity: embeddings, BLEU, chrF and ROUGE."""

from __future__ import annotations

import importlib.util
import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, cast

from karat.errors import CannotJudge, MissingDependency, RequestError, Stopped, clip, plural
from karat.evaluators._answers import shared_count
from karat.evaluators._base import Item, ParameterCheck, Paths, codes_in, register_evaluator
from karat.evaluators._values import ReferenceEvaluator, reference_text, text_of
from karat.records import Result
from karat.registry import qualified_name
from karat.serialization import storable

LOCAL = "local/wordllama"
"""The embedder used when none is named and sentence-transformers is not installed: its package has the weights."""

SENTENCE_MODEL = "all-MiniLM-L6-v2"
"""The model used when none is named and sentence-transformers is installed."""

Vectors = Callable[[list[str]], Sequence[Sequence[float]]]


class TextEmbedder:
    """Texts → vectors, loaded on first use; vectors that are held are not asked for again."""

    def __init__(
        self,
        params: dict[str, Any],
        load: Callable[[], Vectors],
        *,
        local: bool = False,
        model: object = None,
    ) -> None:
        self.params = params
        self.is_local = local
        """Whether it computes here and waits for nothing."""
        self._model = model
        self._load = load
        self._vectors: Vectors | None = None
        self._lock = threading.Lock()
        self._held = threading.local()

    @property
    def is_remote(self) -> bool:
        """Whether it is a model of `karat.models` that is worth awaiting."""
        return self._model is not None and not self.is_local

    def embed(self, texts: list[str]) -> list[Sequence[float]]:
        """Return one vector for each text."""
        held: dict[str, Sequence[float]] = getattr(self._held, "vectors", {})
        missing = [text for text in dict.fromkeys(texts) if text not in held]
        found = dict(zip(missing, self._ask(missing), strict=True)) if missing else {}
        return [held[text] if text in held else found[text] for text in texts]

    async def embed_async(self, texts: list[str]) -> list[Sequence[float]]:
        """Return the vectors of texts from a remote model."""
        model = model_of(self._model)
        return _check_count(await model.embed(texts), texts) if texts else []

    def held(self) -> dict[str, Sequence[float]]:
        """Return the precomputed vectors of this thread."""
        return dict(getattr(self._held, "vectors", {}))

    @contextmanager
    def holding(self, vectors: dict[str, Sequence[float]]) -> Iterator[None]:
        """Provide precomputed vectors to this thread, within the block."""
        self._held.vectors = vectors
        try:
            yield
        finally:
            self._held.vectors = {}

    def _ask(self, texts: list[str]) -> list[Sequence[float]]:
        with self._lock:
            if self._vectors is None:
                self._vectors = self._load()
        return _check_count(self._vectors(texts), texts)


def _check_count(given: Any, texts: list[str]) -> list[Sequence[float]]:
    vectors = list(given)
    if len(vectors) != len(texts):
        raise CannotJudge(f"the embedder returned {len(vectors)} vectors for {len(texts)} texts")
    return vectors


def model_of(spec: object) -> Any:
    """The model that a spec of `karat.models` names; any other object is taken as one."""
    if not isinstance(spec, str):
        return spec
    from karat import models

    return models.get(spec)


def embedder_of(embed_fn: object, model_name: str | None, embedder: object) -> TextEmbedder:
    """The configured embedder; at most one of the three parameters may be given."""
    named = [name for name, given in _embedder_of(embed_fn, model_name, embedder) if given is not None]
    if len(named) > 1:
        raise RequestError(f"embedding_similarity: set {named[0]} or {named[1]}, not both")
    if embed_fn is not None:
        return _function_embedder(embed_fn)
    if model_name is not None:
        return _sentence_transformers_embedder(model_name)
    if embedder is None and importlib.util.find_spec("sentence_transformers") is not None:
        return _sentence_transformers_embedder(SENTENCE_MODEL)
    return _model_embedder(LOCAL if embedder is None else embedder)


def _embedder_of(embed_fn: Any, model_name: Any, embedder: Any) -> list[tuple[str, Any]]:
    return [("embed_fn", embed_fn), ("model_name", model_name), ("embedder", embedder)]


def _function_embedder(embed_fn: Any) -> TextEmbedder:
    if not callable(embed_fn) or inspect.iscoroutinefunction(embed_fn):
        raise RequestError(
            "embedding_similarity: embed_fn must be a plain function of one text that gives its vector"
        )
    return TextEmbedder(
        {"embed_fn": qualified_name(embed_fn)}, lambda: lambda texts: [embed_fn(text) for text in texts]
    )


def _sentence_transformers_embedder(model_name: Any) -> TextEmbedder:
    if not isinstance(model_name, str) or not model_name:
        raise RequestError("embedding_similarity: model_name is the name of a sentence-transformers model")
    if importlib.util.find_spec("sentence_transformers") is None:
        raise RequestError(
            f"embedding_similarity with model_name {model_name!r} needs the package sentence-transformers:"
            " pip install sentence-transformers"
        )

    def load() -> Vectors:
        from sentence_transformers import SentenceTransformer

        try:
            model = SentenceTransformer(model_name)
        except Exception as error:  # it asks the network, the disk and the model's own code
            raise RequestError(
                f"embedding_similarity: sentence-transformers cannot load {model_name!r}: {str(error)[:200]}"
            ) from error
        return lambda texts: model.encode(texts, show_progress_bar=False).tolist()

    return TextEmbedder({"model_name": model_name}, load, local=True)


def _model_embedder(spec: Any) -> TextEmbedder:
    """A model of `karat.models`, by name, or any object with `embed` and `embed_sync`."""
    if not isinstance(spec, str) and not callable(getattr(spec, "embed_sync", None)):
        raise RequestError(
            "embedding_similarity: embedder must be the name of a model, or an object with embed_sync"
        )
    name = spec if isinstance(spec, str) else str(getattr(spec, "spec", type(spec).__qualname__))
    local = name.startswith("local/")
    return TextEmbedder({"embedder": name}, lambda: model_of(spec).embed_sync, local=local, model=spec)


def cosine(first: Sequence[float], second: Sequence[float], who: str) -> float:
    """The cosine of the angle between two vectors; an error where there is none."""
    import numpy

    try:
        a, b = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
    except (TypeError, ValueError):
        raise CannotJudge(f"{who}: the embedder returned something that is not a vector of numbers") from None
    if a.ndim != 1 or a.shape != b.shape:
        raise CannotJudge(f"{who}: the embedder returned vectors of the shapes {a.shape} and {b.shape}")
    with numpy.errstate(all="ignore"):
        value = float(a @ b / (numpy.linalg.norm(a) * numpy.linalg.norm(b)))
    if value - value != 0:
        raise CannotJudge(f"{who}: the cosine is undefined: an embedding is zero or not finite")
    # Rounding leaves some vectors with a cosine of 0.9999999999999999 to themselves.
    return 1.0 if numpy.array_equal(a, b) else min(1.0, max(-1.0, value))


@register_evaluator("embedding_similarity")
class EmbeddingDistance(ReferenceEvaluator[str | None]):
    """The similarity of output and reference in meaning: the cosine of their embeddings, at least 0.

    The embeddings come from `embed_fn` (one text in, one vector out), from `embedder` (a model that `karat.models`
    knows) or from the sentence-transformers model `model_name`. Without any of them, they come from
    sentence-transformers (`all-MiniLM-L6-v2`) where that package is installed, else from the embedded embeddings, which
    need no network. They are loaded on first use. `value` is the cosine itself. An empty text has no meaning: two are
    the same, one is as far as can be. Texts over `max_length` characters are an error of their item.
    """

    gives_labels = False

    name: ClassVar[str] = "embedding_similarity"
    reuse = True
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": "a happy dog",
        "reference_outputs": "a happy dog",
        "score": 1.0,
    }

    def __init__(
        self,
        embed_fn: Callable[[str], Sequence[float]] | None = None,
        model_name: str | None = None,
        embedder: object = None,
        max_length: int = 100_000,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        self._max_length: int = ParameterCheck(self.name).whole("max_length", max_length, 1)
        self._embedder: TextEmbedder = embedder_of(embed_fn, model_name, embedder)
        # per instance: parameters do not identify a function's results; a remote embedder is awaited
        self.reuse = embed_fn is None
        self.is_async = self._embedder.is_remote
        self.batched = self._embedder.is_local
        self.params = {**self._embedder.params, "max_length": max_length, "path": path, "any_of": any_of}
        self._codes = codes_in(embed_fn)

    def configuration(self) -> Any:
        """The parameters, and the code of a function that embeds."""
        return {**self.params, "code": self._codes} if self._codes else self.params

    def _best(self, output: object, references: list[Any]) -> Result:
        """Embed the output and all references together."""
        texts = [text_of(each, "the value") for each in (output, *references)]
        wanted = list(dict.fromkeys(storable(text) for text in texts if text is not None and text.strip()))
        self._check_length(wanted)
        held = self._embedder.held()
        with self._embedder.holding(held or dict(zip(wanted, self._embedder.embed(wanted), strict=True))):
            return super()._best(output, references)

    def _check_length(self, texts: Iterable[str]) -> None:
        longest = max(map(len, texts), default=0)
        if longest > self._max_length:
            raise CannotJudge(
                f"{self.key}: a text of {longest:,} characters is over max_length ({self._max_length:,})"
            )

    def prepare(self, output: object) -> str | None:
        return text_of(output, "the output")

    def judge(self, output: str | None, reference: object) -> Result:
        text, expected = output, reference_text(reference, self.key)
        if text is None:
            return Result(self.key, 0.0, None, "there is no output")
        self._check_length((text, expected))
        if not text.strip() or not expected.strip():
            score = float(not text.strip() and not expected.strip())
            return Result(
                self.key, score, score, "both texts are empty" if score else "one of the texts is empty"
            )
        first, second = self._embedder.embed([storable(text), storable(expected)])  # no half characters
        similarity = cosine(first, second, self.key)
        comment = (
            f"cosine {similarity:.3f} between the output {clip(text)} and the reference {clip(expected)}"
        )
        return Result(self.key, min(1.0, max(0.0, similarity)), similarity, comment)

    async def evaluate_async(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """The same, without holding a thread while a remote embedder answers."""
        if not self._embedder.is_remote:
            return await super().evaluate_async(outputs=outputs, reference_outputs=reference_outputs)
        texts = self._texts([{"outputs": outputs, "reference_outputs": reference_outputs}])
        vectors = await self._embedder.embed_async(texts)
        with self._embedder.holding(dict(zip(texts, vectors, strict=True))):
            return self.evaluate(outputs=outputs, reference_outputs=reference_outputs)

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Many at once: every text is embedded once, together with the others."""
        texts = self._texts(items)
        try:
            vectors = self._embedder.embed(texts)
        except (Stopped, RequestError):
            raise
        except Exception:
            # one text may be at fault: each item is asked for alone, and fails alone
            return super().evaluate_many(items)
        with self._embedder.holding(dict(zip(texts, vectors, strict=True))):
            return super().evaluate_many(items)

    def _texts(self, items: Sequence[Item]) -> list[str]:
        """The texts whose vectors these items need; items that cannot be judged say so later."""
        wanted: dict[str, None] = {}
        for item in items:
            try:
                output, references = self._sides(item.get("outputs"), item.get("reference_outputs"))
                texts = [text_of(each, "the value") for each in (output, *references)]
                self._check_length(text for text in texts if text is not None)
            except CannotJudge:
                continue
            wanted.update((storable(text), None) for text in texts if text is not None and text.strip())
        return list(wanted)


class _NgramEvaluator(ReferenceEvaluator[object]):
    """Base of the n-gram measures: a package of the extra `text`, one or several references."""

    gives_labels = False

    package: ClassVar[str]

    def __init__(self, max_length: int, path: Paths, any_of: bool) -> None:
        super().__init__(path=path, any_of=any_of)
        self._max_length: int = ParameterCheck(self.name).whole("max_length", max_length, 1)
        if importlib.util.find_spec(self.package) is None:
            raise MissingDependency(self.package.replace("_", "-"), "text", f"the evaluator {self.name}")

    def judge(self, output: object, reference: object) -> Result:
        return self._measure(output, [reference_text(reference, self.key)])

    def _best(self, output: object, references: list[Any]) -> Result:
        return self._measure(output, [reference_text(each, self.key) for each in references])

    def _measure(self, output: object, references: list[str]) -> Result:
        text = text_of(output, "the output")
        if text is None:
            return Result(self.key, 0.0, None, "there is no output")
        if not text.strip() and any(not reference.strip() for reference in references):
            return Result(self.key, 1.0, 1.0, "both texts are empty")
        return self._score(text, references)

    def _score(self, text: str, references: list[str]) -> Result:
        raise CannotJudge(f"{self.name} does not say how it measures")

    def _check_length(self, text: str, references: list[str]) -> None:
        longest = max(len(text), *map(len, references))
        if longest > self._max_length:
            raise CannotJudge(
                f"{self.key}: a text of {longest:,} characters is over max_length ({self._max_length:,})"
            )


MOST_ORDERS = 10
"""Each length of n-grams takes as long again: 50 of them take seconds for a text of 100 kB."""


def _order(name: str, value: int, least: int, check: ParameterCheck) -> None:
    """Check the length of the longest n-grams."""
    if check.whole(name, value, least) > MOST_ORDERS:
        raise check.refuse(name, f"a whole number from {least} to {MOST_ORDERS}", value)


@register_evaluator("bleu")
class Bleu(_NgramEvaluator):
    """BLEU of the output against one or, with `any_of`, several references, from 0 to 1 (sacrebleu).

    It is the sentence score with effective order: n-grams longer than the text do not count against it. Texts over
    `max_length` characters are an error of their item.
    """

    name: ClassVar[str] = "bleu"
    package: ClassVar[str] = "sacrebleu"
    example: ClassVar[dict[str, Any]] = {
        "params": {"lowercase": True},
        "outputs": "The cat sat on the mat",
        "reference_outputs": "the cat sat on the mat",
        "score": 1.0,
    }

    def __init__(
        self,
        lowercase: bool = False,
        tokenize: str = "13a",
        max_order: int = 4,
        max_length: int = 100_000,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(max_length, path, any_of)
        check = ParameterCheck(self.name)
        check.flag("lowercase", lowercase)
        # the other tokenizers of sacrebleu download models or need further packages
        check.choice("tokenize", tokenize, ["13a", "char", "intl", "none", "zh"])
        _order("max_order", max_order, 1, check)
        self.params = {
            "lowercase": lowercase,
            "tokenize": tokenize,
            "max_order": max_order,
            "max_length": max_length,
            "path": path,
            "any_of": any_of,
        }

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        given = self.params
        return BLEU(
            lowercase=given["lowercase"],
            tokenize=given["tokenize"],
            max_ngram_order=given["max_order"],
            effective_order=True,
        )

    def _score(self, text: str, references: list[str]) -> Result:
        self._check_length(text, references)
        measured = self._metric.sentence_score(text, references)
        score = min(1.0, measured.score / 100)
        metadata = {
            "precisions": [precision / 100 for precision in measured.precisions],
            "brevity_penalty": measured.bp,
        }
        comment = f"BLEU {score:.3f}: {plural(measured.sys_len, 'word')} against {measured.ref_len}"
        return Result(self.key, score, score, comment, metadata)


MOST_CHRF_WORK = 15_000_000
"""Characters of the output times references that chrF may compare; it needs 70 ns for each."""


@register_evaluator("chrf")
class Chrf(_NgramEvaluator):
    """chrF of the output against one or, with `any_of`, several references, from 0 to 1 (sacrebleu).

    `word_order: 2` makes it chrF++. Texts over `max_length` characters are an error of their item: a million take
    seconds.
    """

    name: ClassVar[str] = "chrf"
    package: ClassVar[str] = "sacrebleu"
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": "the cat sat",
        "reference_outputs": "the cat sat",
        "score": 1.0,
    }

    def __init__(
        self,
        char_order: int = 6,
        word_order: int = 0,
        beta: int = 2,
        lowercase: bool = False,
        max_length: int = 100_000,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(max_length, path, any_of)
        check = ParameterCheck(self.name)
        _order("char_order", char_order, 1, check)
        _order("word_order", word_order, 0, check)
        check.whole("beta", beta, 1)
        check.flag("lowercase", lowercase)
        self.params = {
            "char_order": char_order,
            "word_order": word_order,
            "beta": beta,
            "lowercase": lowercase,
            "max_length": max_length,
            "path": path,
            "any_of": any_of,
        }

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        given = self.params
        return CHRF(
            char_order=given["char_order"],
            word_order=given["word_order"],
            beta=given["beta"],
            lowercase=given["lowercase"],
        )

    def _score(self, text: str, references: list[str]) -> Result:
        self._check_length(text, references)
        work = len(text) * len(references)  # the package goes through the output again for each
        if len(references) > 1 and work > MOST_CHRF_WORK * max(1.0, self._max_length / 100_000):
            raise CannotJudge(
                f"{self.key}: {plural(len(references), 'reference')} beside an output of {len(text):,} characters"
                " take too long to compare: give fewer, or raise max_length"
            )
        score = min(1.0, self._metric.sentence_score(text, references).score / 100)
        name = "chrF++" if self.params["word_order"] else "chrF"
        return Result(
            self.key, score, score, f"{name} {score:.3f} against {plural(len(references), 'reference')}"
        )


@register_evaluator("rouge")
class Rouge(_NgramEvaluator):
    """ROUGE of the output against one or, with `any_of`, several references (rouge-score).

    `variant` is `rouge1`, `rouge2`, `rougeL` or `rougeLsum`; `measure` is `f1`, `precision` or `recall`. The
    words are runs of ASCII letters and digits, as the measure defines them: a reference without any is an error
    of its item, not a zero. Texts over `max_length` characters are an error of their item, and so are texts that are
    too long for `rougeLsum`, whose time grows with the product of their words.
    """

    name: ClassVar[str] = "rouge"
    batched = False  # two long texts can take seconds
    package: ClassVar[str] = "rouge_score"
    example: ClassVar[dict[str, Any]] = {
        "params": {"variant": "rouge1"},
        "outputs": "the cat sat",
        "reference_outputs": "the dog sat",
        "score": 2 / 3,
    }

    def __init__(
        self,
        variant: str = "rougeL",
        measure: str = "f1",
        stemmer: bool = False,
        max_length: int = 100_000,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(max_length, path, any_of)
        check = ParameterCheck(self.name)
        check.choice("variant", variant, ["rouge1", "rouge2", "rougeL", "rougeLsum"])
        check.choice("measure", measure, ["f1", "precision", "recall"])
        check.flag("stemmer", stemmer)
        self.params = {
            "variant": variant,
            "measure": measure,
            "stemmer": stemmer,
            "max_length": max_length,
            "path": path,
            "any_of": any_of,
        }

    @cached_property
    def _metric(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer

        return RougeScorer([self.params["variant"]], tokenizer=DefaultTokenizer(self.params["stemmer"]))

    @cached_property
    def _tokenize(self) -> Callable[[str], list[str]]:
        from rouge_score.tokenizers import DefaultTokenizer

        return cast("Callable[[str], list[str]]", DefaultTokenizer(self.params["stemmer"]).tokenize)

    def _score(self, text: str, references: list[str]) -> Result:
        variant = self.params["variant"]
        self._check_length(text, references)
        if not any(map(_has_words, references)):
            raise CannotJudge(
                f"{self.key} counts words of ASCII letters and digits, and the reference {clip(references[0])}"
                " has none: use chrf, or token_f1 with tokens: characters"
            )
        if variant == "rougeLsum":
            precision, recall, f_measure = self._by_summary(text, references)
        else:
            words = self._tokenize(text)
            if variant == "rougeL":
                each = [_shared_in_order(words, self._tokenize(reference)) for reference in references]
            else:
                order = 2 if variant == "rouge2" else 1
                have = _ngrams(words, order)  # once for all references
                each = [_overlap(have, _ngrams(self._tokenize(reference), order)) for reference in references]
            precision, recall, f_measure = max(each, key=lambda measured: measured[2])
        metadata = {"precision": precision, "recall": recall, "f1": f_measure}
        score = metadata[self.params["measure"]]
        comment = f"{variant} {self.params['measure']} {score:.3f}: {precision:.0%} of the output's"
        comment += f" {_parts(variant)} are in the reference, {recall:.0%} of the reference's in the output"
        return Result(self.key, score, score, comment, metadata)

    def _by_summary(self, text: str, references: list[str]) -> tuple[float, float, float]:
        """Return rougeLsum: each sentence of a reference against each of the output, as the package does it."""
        size = _steps(text)
        work = sum(size * _steps(reference) for reference in references)
        if work > MAX_SUMMARY_WORK:
            raise CannotJudge(
                f"{self.key}: rougeLsum compares every word with every word, and these texts are too long for it"
                f" ({work:,} pairs, at most {MAX_SUMMARY_WORK:,}): use rougeL"
            )
        measured = self._metric.score_multi(references, text)["rougeLsum"]
        return float(measured.precision), float(measured.recall), float(measured.fmeasure)


MAX_SUMMARY_WORK = 2_000_000
"""Pairs of words that rougeLsum may compare; the package needs half a microsecond for each."""


_WORDS = re.compile(r"[a-z0-9]+")
"""Words as the measure defines them."""


def _steps(text: str) -> int:
    """Words, and lines with the fixed cost that the package has for each pair of them."""
    return sum(1 for _ in _WORDS.finditer(text.lower())) + 8 * (text.count("\n") + 1)


def _ngrams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(order)), strict=False))


def _overlap(have: Counter[Any], want: Counter[Any]) -> tuple[float, float, float]:
    """Precision, recall and F1 of the n-grams that both have, each as often as it occurs."""
    return _measures(shared_count(have, want), have.total(), want.total())


def _shared_in_order(output: list[str], reference: list[str]) -> tuple[float, float, float]:
    """Precision, recall and F1 of the longest common subsequence of words."""
    from rapidfuzz.distance import LCSseq

    if not output or not reference:
        return 0.0, 0.0, 0.0
    return _measures(int(LCSseq.similarity(output, reference)), len(output), len(reference))


def _measures(shared: int, output: int, reference: int) -> tuple[float, float, float]:
    precision, recall = shared / max(output, 1), shared / max(reference, 1)
    return precision, recall, 2 * precision * recall / (precision + recall) if shared else 0.0


def _parts(variant: str) -> str:
    """Return what a variant counts: words, pairs of words, or words in the longest common subsequence."""
    return {"rouge1": "words", "rouge2": "pairs of words"}.get(variant, "words, in order,")


def _has_words(text: str) -> bool:
    return any(character.isascii() and character.isalnum() for character in text.lower())
