"""A project folder for each test, and tasks written into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import karat
from karat import models
from karat.graph import load_task, write_files
from karat.graph.metrics import aggregator_metrics, unit_metrics


class Project:
    """A working folder: `write` makes files in it, `run` runs a task of it and reads the files that come of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def rows(self, path: str, rows: list[dict]) -> Path:
        return self.write(path, "".join(json.dumps(row) + "\n" for row in rows))

    def run(
        self, name: str, *, data: str | None = None, model: str | None = None, run_args=None, **options
    ) -> Outcome:
        task = load_task(name, model=model, run_args=run_args)
        files = {key: options.pop(key) for key in ("run_name", "format", "with_time") if key in options}
        run = karat.run(task, task.dataset(file=data, count=10), store="memory://", progress=False, **options)
        return Outcome(task, run, write_files(run, task, self.folder / "out", **files))


class Outcome:
    def __init__(self, task, run, written) -> None:
        self.task, self.run, self.written = task, run, written

    @property
    def records(self) -> list[dict]:
        text = self.written.output.read_text()
        if self.written.output.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines()]
        return json.loads(text)

    @property
    def failures(self) -> list[dict]:
        return json.loads(self.written.failed.read_text()) if self.written.failed else []

    def report(self, name: str = "MetricCollatorPostProcessor") -> dict:
        items = json.loads(self.written.reports[name].read_text())
        assert isinstance(items, list)
        assert len(items) == 1
        return items[0]


@pytest.fixture(scope="module", autouse=True)
def _models_ended():
    """What models hold open, such as connections to a provider that is gone, ends with the file that used them."""
    yield
    models.close()


@pytest.fixture
def project(tmp_path, monkeypatch):
    for registry in (unit_metrics, aggregator_metrics):  # metrics of one test are unknown to the next
        registry.list()
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache.db"))
    return Project(tmp_path)
