"""Write an evaluator: as a function, and as a class with parameters that is registered under a name."""

from typing import Any

import karat
from karat.evaluators import register_evaluator


def polite(outputs: str) -> bool:
    """Whether the answer thanks or greets. A function may take inputs, outputs, expected and example."""
    return any(word in outputs.lower() for word in ("thank", "hello", "please"))


@register_evaluator("word_limit")
class WordLimit(karat.Evaluator):
    """1 up to `most` words, else 0."""

    name = "word_limit"

    def __init__(self, most: int = 10) -> None:
        super().__init__()
        self.params = {"most": most}

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> karat.Result:
        words = len(str(outputs).split())
        return karat.Result(self.key, float(words <= self.params["most"]), words, f"{words} words")


def reply(message: str) -> str:
    return f"Thank you for asking about {message}."


data = karat.Dataset.from_examples(
    [{"input": "prices"}, {"input": "the opening hours on Sunday"}], name="mail"
)
with karat.open_store("memory://") as store:
    run = karat.run(reply, data, store=store)
    evaluation = karat.evaluate(run, [polite, {"name": "word_limit", "params": {"most": 8}}])
    estimates = karat.aggregate(evaluation).estimates
    print(estimates)

assert estimates["polite"].value == 1.0
assert estimates["word_limit"].value == 0.5
