"""Compare two prompts on the same examples, paired, with a gate; a fake provider on loopback answers."""

import karat
from karat.tasks import PromptTask
from karat.testing import FakeProvider

dataset = karat.Dataset.from_examples(
    [{"id": str(n), "input": n, "expected": str(n * n)} for n in range(40)], name="squares"
)


def answer(body: dict[str, object]) -> str:
    """A model that squares a number where the prompt asks for a square, and repeats it otherwise."""
    text = str(body["messages"])
    number = int("".join(c for c in text if c.isdigit()))
    return str(number * number if "square" in text else number)


with FakeProvider(answer) as server, karat.open_store("memory://") as store:
    runs = [
        karat.run(PromptTask(prompt, model=server.spec("small")), dataset, store=store)
        for prompt in ("The square of {input}?", "What is {input}?")
    ]
    karat.evaluate(runs, ["exact_match"])
    comparison = karat.compare(runs, fail_if_worse="accuracy:0.05", store=store)
    print(comparison.report())

assert comparison.verdict == "fails"
