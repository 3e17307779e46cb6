"""Embeddings and n-gram measures, with the real packages and the local embedder."""

from __future__ import annotations

import asyncio

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from karat.errors import RequestError
from karat.evaluators import Bleu, CannotJudge, Chrf, EmbeddingDistance, Rouge, build_evaluator

CAT = "the cat sat on the mat"
DOG = "the dog sat on a mat today"


def letters(text: str) -> list[float]:
    """A small embedding: how often each letter occurs."""
    return [float(text.count(chr(97 + at))) for at in range(26)]


class TestEmbeddingDistance:
    def test_an_injected_function(self):
        evaluator = EmbeddingDistance(embed_fn=letters)
        assert evaluator.evaluate(outputs="listen", reference_outputs="silent").score == pytest.approx(1.0)
        result = evaluator.evaluate(outputs="aab", reference_outputs="abb")
        assert result.score == pytest.approx(0.8)
        assert result.value == result.score
        assert "cosine 0.800" in result.comment

    def test_the_local_embedder_by_default(self):
        evaluator = EmbeddingDistance()
        near = evaluator.evaluate(outputs="a happy dog", reference_outputs="a joyful puppy")
        far = evaluator.evaluate(outputs="a happy dog", reference_outputs="stock market crash")
        assert 0.3 < near.score < 1
        assert far.score < near.score
        assert evaluator.params["embedder"] == "local/wordllama"

    def test_below_zero_counts_as_zero(self):
        evaluator = EmbeddingDistance(embed_fn=lambda text: [1.0] if text == "a" else [-1.0])
        result = evaluator.evaluate(outputs="a", reference_outputs="b")
        assert (result.score, result.value) == (0.0, -1.0)

    def test_many_at_once_ask_for_each_text_once(self):
        asked = []

        def embed(text):
            asked.append(text)
            return letters(text)

        items = [
            {"outputs": "abc", "reference_outputs": "abc"},
            {"outputs": "abc", "reference_outputs": "abd"},
        ]
        results = EmbeddingDistance(embed_fn=embed).evaluate_many(items)
        assert [round(result.score, 3) for result in results] == [1.0, 0.667]
        assert asked == ["abc", "abd"]

    def test_one_text_at_fault_fails_alone(self):
        def embed(text):
            if text == "bad":
                raise OSError("refused")
            return letters(text)

        items = [{"outputs": text, "reference_outputs": "good"} for text in ("good", "bad", "", None)]
        good, bad, empty, nothing = EmbeddingDistance(embed_fn=embed).evaluate_many(items)
        assert good.score == pytest.approx(1.0)
        assert isinstance(bad, OSError)
        assert (empty.score, nothing.score) == (0.0, 0.0)

    def test_an_embedder_object_is_awaited(self):
        class Remote:
            spec = "somewhere/letters"

            def embed_sync(self, texts):
                raise AssertionError("it should have been awaited")

            async def embed(self, texts):
                return [letters(text) for text in texts]

        evaluator = EmbeddingDistance(embedder=Remote(), any_of=True, path="t")
        assert evaluator.is_async
        assert not evaluator.batched
        result = asyncio.run(
            evaluator.evaluate_async(outputs={"t": "abc"}, reference_outputs=[{"t": "abd"}, {"t": "cba"}])
        )
        assert result.score == pytest.approx(1.0)
        assert result.metadata == {"reference": 1}

    @pytest.mark.parametrize("vector", [[0.0, 0.0], [float("nan"), 1.0], "text", [[1.0]], None])
    def test_vectors_without_an_angle_cannot_be_judged(self, vector):
        with pytest.raises(CannotJudge):
            EmbeddingDistance(embed_fn=lambda text: vector).evaluate(outputs="a", reference_outputs="b")

    def test_two_sources_or_a_wrong_one_are_refused(self, refuses):
        with refuses(RequestError):
            EmbeddingDistance(embed_fn=letters, embedder="local/wordllama")
        with pytest.raises(RequestError, match="plain function"):
            EmbeddingDistance(embed_fn=3)
        with refuses(RequestError):
            EmbeddingDistance(embedder=3)

    def test_a_function_is_not_reused_and_its_name_is_kept(self):
        evaluator = EmbeddingDistance(embed_fn=letters)
        assert evaluator.reuse is False
        assert evaluator.params["embed_fn"].endswith("letters")
        assert EmbeddingDistance().reuse is True


class TestBleu:
    def test_as_sacrebleu_scores_a_sentence(self):
        expected = BLEU(effective_order=True).sentence_score(DOG, [CAT]).score / 100
        assert Bleu().evaluate(outputs=DOG, reference_outputs=CAT).score == pytest.approx(expected)
        both = BLEU(effective_order=True).sentence_score(DOG, [CAT, DOG]).score / 100
        result = Bleu(any_of=True).evaluate(outputs=DOG, reference_outputs=[CAT, DOG])
        assert result.score == pytest.approx(both) == 1.0

    def test_options(self):
        assert Bleu(lowercase=True).evaluate(outputs=CAT.upper(), reference_outputs=CAT).score == 1.0
        assert Bleu(tokenize="char").evaluate(outputs="東京", reference_outputs="東京").score == 1.0
        with pytest.raises(RequestError, match="tokenize"):
            Bleu(tokenize="flores200")

    def test_empty_texts(self):
        assert Bleu().evaluate(outputs="", reference_outputs="").score == 1.0
        assert Bleu().evaluate(outputs="", reference_outputs="a").score == 0.0
        assert Bleu().evaluate(outputs=None, reference_outputs="a").score == 0.0


class TestChrf:
    def test_as_sacrebleu_scores_a_sentence(self):
        for order in (0, 2):
            expected = CHRF(word_order=order).sentence_score(DOG, [CAT]).score / 100
            result = Chrf(word_order=order).evaluate(outputs=DOG, reference_outputs=CAT)
            assert result.score == pytest.approx(expected)

    def test_options_are_checked(self, refuses):
        with refuses(RequestError):
            Chrf(char_order=0)


class TestRouge:
    @pytest.mark.parametrize("variant", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
    def test_as_rouge_score_scores(self, variant):
        expected = RougeScorer([variant], use_stemmer=True).score(CAT, DOG)[variant]
        result = Rouge(variant, stemmer=True).evaluate(outputs=DOG, reference_outputs=CAT)
        assert result.score == pytest.approx(expected.fmeasure)
        assert result.metadata["precision"] == pytest.approx(expected.precision)
        recall = Rouge(variant, measure="recall", stemmer=True).evaluate(outputs=DOG, reference_outputs=CAT)
        assert recall.score == pytest.approx(expected.recall)

    def test_several_references_and_bounds(self, refuses):
        assert Rouge(any_of=True).evaluate(outputs=DOG, reference_outputs=[CAT, DOG]).score == 1.0
        with pytest.raises(CannotJudge, match="over max_length"):
            Rouge().evaluate(outputs="a " * 60_000, reference_outputs="a")
        assert Rouge().evaluate(outputs="a " * 20_000, reference_outputs="a").score > 0
        assert Rouge("rougeLsum").evaluate(outputs=CAT, reference_outputs=DOG).score > 0
        with refuses(CannotJudge):
            Rouge("rougeLsum").evaluate(outputs="a b\n" * 5_000, reference_outputs="a c\n" * 5_000)

    @pytest.mark.parametrize("reference", ["", " ", "\u4f60\u597d", "!?"])
    def test_a_reference_without_words_is_an_error(self, reference, refuses):
        with refuses(CannotJudge):
            Rouge().evaluate(outputs="hello", reference_outputs=reference)

    def test_a_reference_without_words_is_an_error_and_no_zero(self):
        with pytest.raises(CannotJudge, match="use chrf"):
            Rouge().evaluate(outputs="東京", reference_outputs="東京")
        assert Rouge().evaluate(outputs="東京", reference_outputs="Tokyo").score == 0.0
        assert Rouge(any_of=True).evaluate(outputs="Tokyo", reference_outputs=["東京", "Tokyo"]).score == 1.0


@pytest.mark.parametrize("build", [Bleu, Chrf, Rouge])
def test_texts_of_millions_of_characters_are_an_error_of_their_item(build, refuses):
    with refuses(CannotJudge):
        build().evaluate(outputs="ab " * 66_666 + "ab", reference_outputs="ab")
    assert build(max_length=300_000).evaluate(
        outputs="ab ab", reference_outputs="ab ab"
    ).score == pytest.approx(1.0)


def test_rouge_says_what_is_shared(says):
    said = Rouge("rouge1").evaluate(outputs="the cat sat on", reference_outputs="the dog sat on it").comment
    says(said)


class TestSentenceTransformers:
    """With a module that has the documented surface of the package, which needs gigabytes to be installed."""

    @pytest.fixture
    def package(self, monkeypatch):
        import importlib.machinery
        import sys
        import types

        import numpy

        module = types.ModuleType("sentence_transformers")
        module.__spec__ = importlib.machinery.ModuleSpec("sentence_transformers", None)
        module.loaded = []

        class SentenceTransformer:
            def __init__(self, model_name_or_path):
                module.loaded.append(model_name_or_path)
                if model_name_or_path == "nobody/knows":
                    raise OSError("there is no such model")

            def encode(self, sentences, show_progress_bar=None):
                assert show_progress_bar is False
                return numpy.array([letters(text) for text in sentences], dtype=numpy.float32)

        module.SentenceTransformer = SentenceTransformer
        monkeypatch.setitem(sys.modules, "sentence_transformers", module)
        return module

    def test_it_is_used_where_it_is_installed(self, package):
        evaluator = EmbeddingDistance()
        assert evaluator.params["model_name"] == "all-MiniLM-L6-v2"
        assert evaluator.evaluate(outputs="aab", reference_outputs="abb").score == pytest.approx(0.8)
        assert package.loaded == ["all-MiniLM-L6-v2"]

    def test_it_is_loaded_once_on_first_use(self, package):
        evaluator = EmbeddingDistance(model_name="all-MiniLM-L6-v2")
        assert package.loaded == []
        items = [{"outputs": "aab", "reference_outputs": "abb"}, {"outputs": "b", "reference_outputs": "b"}]
        assert [round(result.score, 6) for result in evaluator.evaluate_many(items)] == [0.8, 1.0]
        assert evaluator.evaluate(outputs="aab", reference_outputs="abb").score == pytest.approx(0.8)
        assert package.loaded == ["all-MiniLM-L6-v2"]

    def test_a_model_that_cannot_be_loaded_stops_the_request(self, package, refuses):
        evaluator = EmbeddingDistance(model_name="nobody/knows")
        with refuses(RequestError):
            evaluator.evaluate_many([{"outputs": "a", "reference_outputs": "b"}] * 3)
        assert package.loaded == ["nobody/knows"]


@pytest.mark.parametrize(
    ("name", "params"),
    [("bleu", {"max_order": 50}), ("chrf", {"char_order": 50}), ("chrf", {"word_order": 50})],
    ids=str,
)
def test_the_order_of_ngrams_is_limited(name, params) -> None:
    """Time grows with the order: one of 50 takes seconds for a text of 100 kB."""
    with pytest.raises(RequestError):
        build_evaluator(name, params)


def test_a_text_is_exactly_as_close_to_itself_as_can_be() -> None:
    """Rounding would leave a cosine below 1, which `evaluator:embedding_similarity` with threshold 1.0 refuses."""
    vectors = {str(at): [0.1 * at, 0.7, 1 / at] for at in range(1, 50)}
    evaluator = EmbeddingDistance(embed_fn=vectors.__getitem__)
    scores = [evaluator.evaluate(outputs=text, reference_outputs=text).score for text in vectors]
    assert set(scores) == {1.0}
