"""docs/schema/experiment.schema.json: `python -m karat.experiments` prints the JSON Schema of experiment files."""

from __future__ import annotations

import json
import sys

from karat.experiments.schema import experiment_schema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(experiment_schema(), indent=2, ensure_ascii=False) + "\n")
