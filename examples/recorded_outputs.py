"""Judge outputs that were produced elsewhere: no task is run, only evaluators are."""

import json
import tempfile
from pathlib import Path

import karat
from karat.tasks import RecordedOutputs

with tempfile.TemporaryDirectory() as folder, karat.open_store("memory://") as store:
    recorded = Path(folder, "candidate.jsonl")
    lines = [{"id": "q1", "output": "Oslo"}, {"id": "q2", "output": "Bergen"}]
    recorded.write_text("\n".join(map(json.dumps, lines)))
    data = karat.Dataset.from_examples(
        [
            {"id": "q1", "input": "Capital?", "expected": "Oslo"},
            {"id": "q2", "input": "City?", "expected": "Bergen"},
        ],
        name="norway",
    )
    run = karat.run(RecordedOutputs(recorded), data, store=store)
    estimates = karat.aggregate(karat.evaluate(run, ["exact_match"])).estimates
    print(estimates)

assert estimates["exact_match"].value == 1.0
