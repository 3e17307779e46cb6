"""Both stages over a dataset: run a memory system, judge what it stored and answered, and write the five files."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

import karat
from karat import models
from karat.datasets import whole_file
from karat.errors import KaratError, RequestError, UnknownName, nearest, option, plural, wording
from karat.formatting import Block, as_text
from karat.memory import _files as files
from karat.memory._dimensions import BY_KEY, DIMENSIONS, SETTLED, Dimension
from karat.memory._evaluators import (
    CONTEXT,
    MATCHED,
    RETRIEVAL,
    MemoryDimensions,
    evaluators_for,
    prompt_hashes,
)
from karat.memory._pipeline import (
    EXTRACTIVE,
    MemoryTask,
    Settings,
    SystemSpec,
    answerer_of,
    prompt_identity,
    system_spec,
)
from karat.memory._system import NO_TYPE, MemorySystem, Sample, as_example, units_of
from karat.records import Call, Example, Failed, ItemResult, Ok, Output
from karat.registry import parameters_of
from karat.stats import cohen_kappa, percent_agreement

DETERMINISTIC = "deterministic"
JUDGE_VARIABLES = ("KARAT_JUDGE_MODEL", "OPENAI_MODEL", "KARAT_MODEL")
MODEL_VARIABLES = ("KARAT_MODEL", "OPENAI_MODEL")
DEFAULT_CONCURRENCY = 4
MOST_NOTES = 20
"""Notes about a dataset that are printed; the manifest has all."""
CONTROLS = ("no_memory", "always_refuse", "full_context", "oracle")
MOST_COMPARED = 20_000
"""Verdicts for which kappa is computed; the share that agrees is for all."""


class MemoryOptions(TypedDict, total=False):
    """Options that are passed on to the stages."""

    new: bool
    """Start again even if the same run is in the store."""
    accept_code_change: bool
    """Continue a run although the code of the memory system changed."""
    retry_failed: bool
    """Try failed sessions, questions and judgments again."""
    wait: bool
    """Wait for another process that works on the same run."""
    cache: Any
    """`use` cached replies of models, `refresh` them, or `off`."""
    budget: float | None
    """Stop before model calls cost more than this many dollars."""


class JudgeChoice(msgspec.Struct, frozen=True):
    """The judge that is used, and the setting that named it."""

    model: Any
    """What evaluators take; None for the deterministic matcher."""
    spec: str
    named_by: str

    @property
    def text(self) -> str:
        """Return one line for people."""
        return f"judge: {self.spec} (named by {_setting(self.named_by)})"


def choose_judge(judge: object = None) -> JudgeChoice:
    """The judge: what is given, else KARAT_JUDGE_MODEL, OPENAI_MODEL, KARAT_MODEL."""
    if judge is not None:
        found = judge.get("model") if isinstance(judge, Mapping) else judge
        return _judge(judge, str(getattr(found, "spec", found)), "judge")
    for name in JUDGE_VARIABLES:
        if os.environ.get(name):
            spec = models.default_spec("judge")
            return _judge(spec, spec, name)
    raise RequestError(
        f"no judge is named: give {option('judge', 'MODEL')} or set KARAT_JUDGE_MODEL;"
        f" {option('judge', DETERMINISTIC)} compares words and needs no model"
    )


def _judge(model: Any, spec: str, named_by: str) -> JudgeChoice:
    if not spec.strip():
        raise RequestError(
            f"{_setting(named_by)} is empty: name a model, or {DETERMINISTIC}, which needs none"
        )
    return JudgeChoice(None if model == DETERMINISTIC else model, spec, named_by)


@contextmanager
def _suggesting(setting: str, given: Any, word: str) -> Iterator[None]:
    """Add the word that stands for no model to the error for an unknown model that is nearly that word."""
    try:
        yield
    except UnknownName as error:
        if isinstance(given, str) and nearest(given, [word]):
            raise UnknownName(f"unknown model {given!r}: did you mean {option(setting, word)}?") from error
        raise


def _setting(name: str) -> str:
    """A setting in a message: an option, a variable of the environment, or a file."""
    return wording(f"--{name}", f"the argument {name}") if name in ("judge", "model") else name


class ModelChoice(msgspec.Struct, frozen=True):
    """The answering model, and the setting that named it."""

    model: Any
    text: str


def choose_model(model: object = None) -> ModelChoice:
    """The answering model: what is given, else KARAT_MODEL, else OPENAI_MODEL, else none."""
    if model is not None:
        return _answering(model, "model")
    for name in MODEL_VARIABLES:
        if os.environ.get(name):
            return _answering(models.default_spec("task"), name)
    return ModelChoice(
        None,
        f"answers: none, because no model is named: give {option('model', 'MODEL')}, or {option('model', EXTRACTIVE)},"
        " which needs none",
    )


def _show_failed(made: karat.Run | karat.Evaluation) -> str:
    """Return the command that shows the failed items of a run or an evaluation."""
    records = "run.outputs()" if isinstance(made, karat.Run) else "evaluation.results()"
    return f"{wording(made.store.command('show', made.id, '--failed'), records)} lists them"


def _answering(model: object, named_by: str) -> ModelChoice:
    spec = str(getattr(model, "spec", model))
    marked = ", copied from retrieved text without an LLM" if model == EXTRACTIVE else ""
    return ModelChoice(model, f"answers: {spec}{marked} (named by {_setting(named_by)})")


class MemoryEvaluation:
    """The result of a memory evaluation: its records in the store, its files, and its figures."""

    def __init__(
        self,
        *,
        baseline: str,
        run: karat.Run,
        evaluation: karat.Evaluation,
        aggregation: karat.Aggregation,
        output_dir: Path,
        metrics: dict[str, Any],
        manifest: dict[str, Any],
        notices: list[str],
        max_judge_errors: float,
    ) -> None:
        self.baseline = baseline
        self.run = run
        self.evaluation = evaluation
        self.aggregation = aggregation
        self.output_dir = output_dir
        self.metrics = metrics
        """The content of `aggregate_metrics.json`."""
        self.manifest = manifest
        self.notices = notices
        """What a person has to know: which judge and model were used, what was restarted or left out."""
        self.max_judge_errors = max_judge_errors
        self._others: list[dict[str, Any]] | None = None
        self._first_failure = self._first()  # now: later the store may be closed

    @property
    def judge_errors(self) -> float:
        """The share of judgments that failed."""
        counts = self.metrics["judgments"]
        total = counts["ok"] + counts["failed"]
        return counts["failed"] / total if total else 0.0

    @property
    def problems(self) -> list[str]:
        """The reasons why the evaluation is not a success; empty if it is."""
        out = []
        missing = self.metrics["missing"]
        if missing["sessions"] or missing["questions"]:
            out.append(
                f"{missing['sessions']} of {missing['of_sessions']} sessions and {missing['questions']} of"
                f" {missing['of_questions']} questions failed{self._first_failure}:"
                f" {_show_failed(self.run)}, {option('retry_failed', True)} tries them again"
            )
        if self.judge_errors > self.max_judge_errors:
            counts = self.metrics["judgments"]
            out.append(
                f"{counts['failed']} of {counts['ok'] + counts['failed']} judgments failed"
                f" ({self.judge_errors:.3f}, more than {option('max_judge_errors')} {self.max_judge_errors:g}):"
                f" {_show_failed(self.evaluation)}"
            )
        return out

    def _first(self) -> str:
        """The first unit that failed and why, for a person who has not opened the store."""
        missing = self.metrics["missing"]
        if not (missing["sessions"] or missing["questions"]):
            return ""
        for units, outputs in _by_sample(self.run):
            for unit in units:
                output = outputs.get(unit)
                if output is not None and isinstance(output.outcome, Failed):
                    error = output.outcome.error
                    problem = next(iter(error.message.splitlines()), "")[:300]
                    return f" (first: {output.example} {unit}: {error.type}: {problem})"
        return ""

    @property
    def exit_code(self) -> int:
        """0, or 1 with failed units or too many judge errors."""
        return 1 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able values."""
        from karat.memory._report import conclusion, few_samples

        return {
            "baseline": self.baseline,
            "conclusion": conclusion(self),
            "few_samples": few_samples(self) or None,
            "run": self.run.id,
            "evaluation": self.evaluation.id,
            "aggregation": self.aggregation.id,
            "output_dir": str(self.output_dir),
            "files": [str(self.output_dir / name) for name in files.FIVE],
            "metrics": self.metrics,
            "efficiency": self.manifest.get("efficiency"),
            "others": self.others(),
            "estimates": [msgspec.to_builtins(each) for each in self.aggregation.estimates],
            "notices": self.notices,
            "problems": self.problems,
            "ok": not self.problems,
            "exit_code": self.exit_code,
        }

    def others(self) -> list[dict[str, Any]]:
        """The figures of other systems and controls with the same data, settings and judge, from the same store."""
        from karat.memory._report import other_rows

        if self._others is None:
            self._others = other_rows(self.run, self.evaluation)
        return self._others

    def controls(self) -> list[dict[str, Any]]:
        """Return the rows of the controls."""
        return [row for row in self.others() if row["control"]]

    def blocks(self) -> list[Block]:
        """The report as headings, paragraphs and tables."""
        from karat.memory._report import report_blocks

        return report_blocks(self)

    def report(self) -> str:
        """The figures for a terminal, with the conclusion first."""
        return as_text(self.blocks())

    def __repr__(self) -> str:
        return f"<MemoryEvaluation {self.baseline} {self.run.id}>"


System = str | type[MemorySystem] | Callable[..., MemorySystem]
"""What names a memory system: a name, `file.py:Class`, a class, or a function that makes one."""
Judge = str | Mapping[str, Any] | models.Model
"""A model, settings of a judge, or `deterministic`."""


def evaluate(
    dataset: str | Path | Iterable[Sample] | None,
    baseline: System | None = None,
    *,
    output_dir: str | Path,
    dataset_type: str | None = None,
    corrections: str | Path | None = None,
    judge: Judge | None = None,
    model: str | models.Model | None = None,
    top_k: int = 5,
    context_tokens: int | None = None,
    max_samples: int | None = None,
    eval_only: bool = False,
    concurrency: int | None = None,
    max_judge_errors: float = 0.05,
    snapshots: str = "all",
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    controls: bool = False,
    store: str | os.PathLike[str] | karat.Store | None = None,
    progress: bool | Callable[[Any], None] | None = None,
    **options: Unpack[MemoryOptions],
) -> MemoryEvaluation:
    """Evaluate a memory system and write the five files into `output_dir`.

    `dataset` is a file, a folder, `demo`, or samples; a file of label `corrections` may lie over it. `baseline` is the
    name of a memory system, `file.py:Class`, a class, or a function that makes one, with `params`. `judge` is a model,
    settings of a judge, or `deterministic`; `model` answers the questions, or is `extractive`. With `eval_only` the
    files of stage 1 in `output_dir` are judged again; the dataset and the memory system are not needed then.
    `controls` also runs the controls, with the same settings, into `.karat/controls`.
    """
    _check_numbers(top_k, context_tokens, max_samples, concurrency, max_judge_errors, snapshots)
    folder = Path(output_dir)
    chosen = choose_judge(judge)
    with _suggesting("judge", judge, DETERMINISTIC):
        evaluators = evaluators_for(chosen.model)  # report a wrong judge setting before stage 1
    common: dict[str, Any] = {"progress": progress, **options}
    opened = karat.open_store(store)
    if eval_only:
        stage = _from_files(folder, _name_of(baseline), opened, common)
        stage.notices += [
            f"{option(name)} is not needed with {option('eval_only', True)}"
            for name in _unused_notice(model, top_k)
        ]
    else:
        if dataset is None or baseline is None:
            raise RequestError(
                f"give a dataset and a baseline, or {option('eval_only', True)} with the files of an earlier run"
            )
        if not isinstance(dataset, (str, Path)):
            dataset = list(dataset)
        stage = _first_stage(
            dataset,
            system_spec(baseline, params, seed),
            folder,
            opened,
            Settings(top_k=top_k, context_tokens=context_tokens, snapshots=snapshots, seed=seed),
            model=model,
            dataset_type=dataset_type,
            corrections=corrections,
            max_samples=max_samples,
            concurrency=concurrency,
            common=common,
        )
        # After the system: until then the output directory has no files with gold.
        for control in CONTROLS if controls else ():
            evaluate(
                dataset,
                control,
                output_dir=folder / ".karat" / "controls" / control,
                dataset_type=dataset_type,
                corrections=corrections,
                judge=judge,
                model=model,
                top_k=top_k,
                context_tokens=context_tokens,
                max_samples=max_samples,
                concurrency=concurrency,
                snapshots=snapshots,
                seed=seed,
                store=opened,
                progress=progress,
                **options,
            )
    stage.notices.append(chosen.text)
    answered_by = (stage.manifest.get("models") or {}).get("answer") or {}
    if chosen.model is not None and answered_by.get("model") == chosen.spec:
        stage.notices.append(
            f"{chosen.spec} judges its own answers: name another {option('judge')} to rule out that it favours them"
        )
    judging = {name: value for name, value in common.items() if name not in ("new", "accept_code_change")}
    made = karat.evaluate(stage.run, evaluators, store=opened, **judging)
    aggregation = karat.aggregate(made, [MemoryDimensions()], store=opened)
    stage.notices += _audit_notices(aggregation)
    with files.writing(folder):
        metrics = _second_files(folder, stage, made, aggregation, chosen)
    return MemoryEvaluation(
        baseline=stage.baseline,
        run=stage.run,
        evaluation=made,
        aggregation=aggregation,
        output_dir=folder,
        metrics=metrics,
        manifest=stage.manifest,
        notices=stage.notices,
        max_judge_errors=max_judge_errors,
    )


def _audit_notices(aggregation: karat.Aggregation) -> list[str]:
    """Return the notes on the judge's error rates, without duplicates across dimensions."""
    notes = {
        str(each.metadata["note"]): each.metadata.get("audit")
        for each in aggregation.estimates
        if each.evaluator in BY_KEY and "audit" in each.metadata
    }
    measure = wording("karat judge audit", "an audit (docs/judges.md)")
    return [note + ("" if audit else f": {measure} measures it") for note, audit in notes.items()][:1]


async def evaluate_async(
    dataset: str | Path | Iterable[Sample] | None, baseline: System | None = None, **options: Any
) -> MemoryEvaluation:
    """As `evaluate`, for code on an event loop."""
    return await asyncio.to_thread(lambda: evaluate(dataset, baseline, **options))


def _name_of(baseline: System | None) -> str | None:
    """The name of a baseline, without making one; None for a function, or a class whose name is a parameter."""
    if isinstance(baseline, str):
        return baseline
    if isinstance(baseline, type) and "name" not in parameters_of(baseline):
        found = getattr(baseline, "name", None)
        return found if isinstance(found, str) else None
    return None


def _unused_notice(model: Any, top_k: int) -> list[str]:
    return [name for name, given in (("model", model is not None), ("top_k", top_k != 5)) if given]


def _check_numbers(
    top_k: int,
    context_tokens: int | None,
    max_samples: int | None,
    concurrency: int | None,
    max_judge_errors: float,
    snapshots: str,
) -> None:
    given = {
        "top_k": top_k,
        "context_tokens": context_tokens,
        "max_samples": max_samples,
        "concurrency": concurrency,
    }
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{name} is {value!r}: it must be a whole number of at least 1")
    if not 0 <= max_judge_errors <= 1:
        raise RequestError(f"max_judge_errors is {max_judge_errors!r}: it must be a share between 0 and 1")
    if snapshots not in ("all", "checkpoints"):
        raise RequestError(f"snapshots is {snapshots!r}: it must be 'all' or 'checkpoints'")


# ---------------------------------------------------------------- stage 1


class _Stage(msgspec.Struct):
    """The result of stage 1, for stage 2."""

    run: Any
    baseline: str
    manifest: dict[str, Any]
    notices: list[str]


def _first_stage(
    dataset: Any,
    system: SystemSpec,
    folder: Path,
    store: karat.Store,
    settings: Settings,
    *,
    model: Any,
    dataset_type: str | None,
    corrections: str | Path | None,
    max_samples: int | None,
    concurrency: int | None,
    common: Mapping[str, Any],
) -> _Stage:
    answering = choose_model(model)
    with _suggesting("model", model, EXTRACTIVE):
        answerer = answerer_of(answering.model)
    data, about = _dataset(dataset, dataset_type, corrections, max_samples)
    task = MemoryTask(system, settings, answerer, folder / files.STATE)
    described = task.configuration()
    identity = {
        "dataset": data.id,
        "baseline": system.name,
        "version": system.version,
        "system": system.configuration,
        "code": system.code,
        "settings": described["shared_settings"],
        "snapshots": settings.snapshots,
        "seed": settings.seed,
    }
    earlier = files.check_folder(folder, msgspec.to_builtins(identity), data.name, len(data))
    _check_same_run(folder, earlier, store)
    manifest: dict[str, Any] = {
        "format": files.FORMAT,
        "karat": karat.__version__,
        "baseline": system.name,
        "asked_for": system.asked_for,
        "version": system.version,
        "system": system.configuration,
        "capabilities": described["capabilities"],
        "control": system.control,
        "dataset": {**about, "id": data.id, "name": data.name, "samples": len(data)},
        "shared_settings": described["shared_settings"],
        "top_k": settings.top_k,
        "context_tokens": settings.context_tokens,
        "snapshots": settings.snapshots,
        "seed": settings.seed,
        "models": {"answer": answerer.identity()},
        "prompts": {"answer": prompt_identity(), "judge": prompt_hashes()},
        "identity": msgspec.to_builtins(identity),
        "run": (earlier or {}).get("run"),
        "pipeline": {},
    }
    if earlier is None:
        with files.writing(folder):
            files.write_document(folder / files.MANIFEST, manifest)
    parallel = concurrency or DEFAULT_CONCURRENCY
    made = karat.run(
        task,
        data,
        store=store,
        concurrency=parallel if system.capabilities.parallel else 1,
        metadata={"baseline": system.name, "dataset_type": about.get("type")},
        **common,
    )
    notices = [answering.text, *_dataset_notices(manifest)]
    if made.notice:
        notices.append(made.notice)
    if task.restarted:
        names = ", ".join(task.restarted[:5]) + (", …" if len(task.restarted) > 5 else "")
        notices.append(
            f"{system.name} was started again from the first session in {len(task.restarted)} interrupted"
            f" sample{'' if len(task.restarted) == 1 else 's'} ({names})"
            + ("" if system.capabilities.save else ": it cannot save its state")
        )
    if task.not_closed:
        samples = plural(len(task.not_closed), "sample")
        notices.append(f"{system.name} could not be closed after {samples} ({task.not_closed[0]})")
    if concurrency is not None and concurrency > 1 and not system.capabilities.parallel:
        notices.append(f"{system.name} cannot work on samples in parallel: {option('concurrency')} is 1")
    with files.writing(folder):
        manifest.update(_first_files(folder, made))
        manifest["run"] = made.id
        files.write_document(folder / files.MANIFEST, manifest)
    if made.counts.pending == 0:
        shutil.rmtree(folder / files.STATE, ignore_errors=True)
    return _Stage(made, system.name, manifest, notices)


def _dataset_notices(manifest: Mapping[str, Any]) -> list[str]:
    """Notices about results on the dataset."""
    notes = (manifest.get("dataset") or {}).get("notes", [])
    shown = [f"dataset: {note}" for note in notes[:MOST_NOTES]]
    more = len(notes) - MOST_NOTES
    return [*shown, f"dataset: {more} more notes are in {files.MANIFEST}"] if more > 0 else shown


def _check_same_run(folder: Path, earlier: Mapping[str, Any] | None, store: karat.Store) -> None:
    """Refuse files of a finished run that this store does not have: they would be mixed with those of another."""
    if earlier is None or not earlier.get("run"):
        return
    try:
        store.runs.get(earlier["run"])
    except KaratError:
        raise RequestError(
            f"{folder} belongs to run {earlier['run']}, which is not in {store.url}: name its store with"
            f" {option('store')}, give another {option('output_dir')}, or judge its files with"
            f" {option('eval_only', True)}"
        ) from None


def _dataset(
    given: Any, dataset_type: str | None, corrections: str | Path | None, max_samples: int | None
) -> tuple[karat.Dataset, dict[str, Any]]:
    """Return the samples as a dataset of examples, and the description of their source."""
    notes: dict[str, None] = {}

    def examples(samples: Iterable[Sample]) -> Iterator[Example]:
        for sample in samples:
            notes.update(dict.fromkeys(f"{sample.sample_id}: {note}" for note in sample.notes))
            yield as_example(sample)

    if isinstance(given, (str, Path)):
        from karat.memory.datasets import read_memory_dataset

        source = read_memory_dataset(given, dataset_type, corrections=corrections)
        about: dict[str, Any] = {"type": source.type, "hash": source.hash}
        name = "memory-demo" if str(given) == "demo" else Path(given).stem
        if not source.tested:
            about["tested_on_original_data"] = False
        data = karat.Dataset.from_examples(examples(source.samples(max_samples)), name=_name(name))
        first = [*source.notes]
        if source.corrections is not None:
            first.append(source.corrections.summary())
        notes = dict.fromkeys([*first, *notes])
    else:
        if corrections is not None:
            raise RequestError("label corrections apply to dataset files: edit the samples instead")
        listed = list(given)[:max_samples]
        if not listed:
            raise RequestError("the dataset has no samples")
        about, data = {"type": "samples"}, karat.Dataset.from_examples(examples(listed), name="samples")
    if notes:
        about["notes"] = list(notes)
    return data, about


def _name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text) or "memory"


def _first_files(folder: Path, run: karat.Run) -> dict[str, Any]:
    """Write the files of stage 1, and return their entries for the manifest."""
    spent = _Spent()
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        sessions = files.LineWriter(stack.enter_context(whole_file(folder / files.SESSIONS)))  # type: ignore[arg-type]
        questions = files.LineWriter(stack.enter_context(whole_file(folder / files.QUESTIONS)))  # type: ignore[arg-type]
        for units, outputs in _by_sample(run):
            for unit in units:
                is_session = unit.startswith("session/")
                kind = "sessions" if is_session else "questions"
                counts[f"of_{kind}"] += 1
                output = outputs.get(unit)
                if output is None or not isinstance(output.outcome, Ok):
                    counts[kind] += 1
                    continue
                (sessions if is_session else questions).write(output.value)
                spent.add(output, is_session)
    names = ("sessions", "questions", "of_sessions", "of_questions")
    return {
        "pipeline": {files.SESSIONS: sessions.digest, files.QUESTIONS: questions.digest},
        "missing": {name: counts[name] for name in names},
        "efficiency": spent.to_dict(),
    }


def _by_sample(run: karat.Run) -> Iterator[tuple[list[str], dict[str, Output]]]:
    """The units of each sample of a run in their order, and the outputs there are."""
    grouped = groupby(run.outputs(), attrgetter("example"))
    following = next(grouped, None)
    selected = run.selection(len(run.dataset))
    for place, example in enumerate(run.dataset):
        if place not in selected:
            continue
        found: dict[str, Output] = {}
        if following is not None and following[0] == example.id:
            found = {output.unit: output for output in following[1]}
            following = next(grouped, None)
        yield units_of(example), found


class _Spent:
    """Seconds and tokens of writing, reading and answering, from the traces of a run."""

    STEPS = ("write", "read", "answer")

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {step: [] for step in self.STEPS}
        self.tokens: dict[str, Counter[str]] = {step: Counter() for step in self.STEPS}
        self.cost: dict[str, float | None] = dict.fromkeys(self.STEPS, 0.0)

    def add(self, output: Output, is_session: bool) -> None:
        """Add a unit: model calls before the read belong to it, those after it to the answer."""
        step = "write" if is_session else "read"
        answering = 0.0
        for call in output.trace:
            if call.kind == "tool" and call.name in ("memory.write", "memory.read"):
                self.seconds[step].append(call.seconds)
                self._own(step, call)
                step = "write" if is_session else "answer"
            elif call.usage is not None:
                answering += call.seconds if step == "answer" else 0.0
                self.tokens[step].update(
                    {"input_tokens": call.usage.input_tokens, "output_tokens": call.usage.output_tokens}
                )
                self._add_cost(step, call.usage.cost)
        if not is_session and output.value is not None and output.value.get("generated_answer") is not None:
            self.seconds["answer"].append(answering)

    def _own(self, step: str, call: Call) -> None:
        """Count the usage of the system's own models, which it reports itself."""
        used = call.output if isinstance(call.output, Mapping) else {}
        for name in ("input_tokens", "output_tokens"):
            self.tokens[step][name] += int(used.get(name) or 0)
        if "cost" in used:
            self._add_cost(step, used["cost"])

    def _add_cost(self, step: str, cost: float | None) -> None:
        have = self.cost[step]
        self.cost[step] = None if have is None or cost is None else have + cost

    def to_dict(self) -> dict[str, Any]:
        """Per step: tokens, cost, and the median and 95th percentile of seconds."""
        return {
            step: {
                "input_tokens": self.tokens[step]["input_tokens"],
                "output_tokens": self.tokens[step]["output_tokens"],
                "cost": self.cost[step],
                "p50_seconds": _percentile(self.seconds[step], 50),
                "p95_seconds": _percentile(self.seconds[step], 95),
                "n": len(self.seconds[step]),
            }
            for step in self.STEPS
        }


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """A percentile by linear interpolation, as in the latency of other runs; None without values."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


# ---------------------------------------------------------------- from files


def _from_files(folder: Path, baseline: str | None, store: karat.Store, common: Mapping[str, Any]) -> _Stage:
    """The run of files: the stored one where the store has it, else one that is made of their lines."""
    if not folder.is_dir():
        raise RequestError(
            f"{folder} is not a directory: {option('eval_only', True)} needs the files of an earlier run"
        )
    manifest = files.read_manifest(folder)
    task = files.PipelineFiles(folder, manifest, baseline)
    notices = []
    if manifest is None:
        notices.append(
            f"{folder} has no {files.MANIFEST}: its files agree with each other and are judged as they are"
        )
    else:
        notices += [_answered_by(manifest), *_dataset_notices(manifest)]
    made = None
    if manifest is not None and manifest.get("run"):
        try:
            made = store.runs.get(manifest["run"])
        except KaratError:
            made = None
    lines = sum(task.counts.values())
    if (
        made is None or made.counts.pending or made.counts.ok != lines
    ):  # a stored run may have been retried since
        data = karat.Dataset.from_examples(task.examples(), name=_name(f"memory-{folder.name}"))
        made = karat.run(task, data, store=store, concurrency=1, metadata={"baseline": task.name}, **common)
    found = dict(manifest or {"format": files.FORMAT, "baseline": task.name})
    if "missing" not in found:
        found["missing"] = {
            "sessions": 0,
            "questions": 0,
            "of_sessions": task.counts[files.SESSIONS],
            "of_questions": task.counts[files.QUESTIONS],
        }
    return _Stage(made, task.name, found, notices)


def _answered_by(manifest: Mapping[str, Any]) -> str:
    """The model that gave the answers of an earlier run."""
    used = (manifest.get("models") or {}).get("answer")
    if not used:
        return f"answers: none, because no model was named for stage 1 ({files.MANIFEST})"
    return _answering(EXTRACTIVE if EXTRACTIVE in used else used.get("model"), str(files.MANIFEST)).text


# ---------------------------------------------------------------- stage 2


class _Agreement:
    """The verdicts of judge and matcher on the same items."""

    def __init__(self) -> None:
        self.pairs: dict[str, tuple[list[str], list[str], list[str]]] = {}

    def add(self, key: str, sample: str, judge: Sequence[str], matcher: Sequence[str]) -> None:
        """Add the labels of one record."""
        if len(judge) == len(matcher):
            a, b, clusters = self.pairs.setdefault(key, ([], [], []))
            a += judge
            b += matcher
            clusters += [sample] * len(judge)

    def to_dict(self) -> dict[str, Any]:
        """Per dimension: the share that agrees with its interval, and kappa."""
        out = {}
        for key, (a, b, clusters) in self.pairs.items():
            share = percent_agreement(a, b, clusters)
            kappa = cohen_kappa(a, b).value if len(a) <= MOST_COMPARED else None
            out[key] = {
                "agree": share.value,
                "low": share.low,
                "high": share.high,
                "kappa": kappa,
                "n": len(a),
            }
        return out


def _second_files(
    folder: Path,
    stage: _Stage,
    evaluation: karat.Evaluation,
    aggregation: karat.Aggregation,
    chosen: JudgeChoice,
) -> dict[str, Any]:
    """Write the files of stage 2 and return the metrics."""
    agreement, judgments = _Agreement(), Counter[str]()
    types: dict[str, dict[str, None]] = {}
    results = groupby(evaluation.results(), attrgetter("example"))
    following = next(results, None)
    with ExitStack() as stack:
        sessions = files.LineWriter(stack.enter_context(whole_file(folder / files.SESSION_RECORDS)))  # type: ignore[arg-type]
        questions = files.LineWriter(stack.enter_context(whole_file(folder / files.QA_RECORDS)))  # type: ignore[arg-type]
        for units, outputs in _by_sample(stage.run):
            sample = next(iter(outputs.values())).example if outputs else None
            found: dict[str, dict[str, ItemResult]] = {}
            if following is not None and following[0] == sample:
                for result in following[1]:
                    found.setdefault(result.unit, {})[result.key] = result
                following = next(results, None)
            for unit in units:
                output = outputs.get(unit)
                if output is None or not isinstance(output.outcome, Ok):
                    continue
                judged = found.get(unit, {})
                is_session = unit.startswith("session/")
                block = _eval_block(output.value, judged, is_session, judgments)
                if not is_session:
                    short = output.value.get("question_type_abbrev") or NO_TYPE
                    types.setdefault(short, {})[output.value.get("question_type") or "no type"] = None
                _compare_methods(agreement, str(sample), judged)
                (sessions if is_session else questions).write({**output.value, "eval": block})
    metrics = _metrics(stage, aggregation, chosen, agreement, judgments)
    metrics["question_types"] = {short: " or ".join(names) for short, names in sorted(types.items())}
    files.write_document(folder / files.METRICS, metrics)
    stage.manifest["judge"] = {
        "judge": chosen.spec,
        "named_by": chosen.named_by,
        "evaluation": evaluation.id,
        "evaluators": {each.key: each.fingerprint for each in evaluation.header.evaluators},
        "usage": msgspec.to_builtins(evaluation.header.usage),
    }
    stage.manifest.setdefault("efficiency", {})["judge"] = _judge_spent(evaluation)
    if (folder / files.MANIFEST).exists():
        files.write_document(folder / files.MANIFEST, stage.manifest)
    return metrics


def _judge_spent(evaluation: karat.Evaluation) -> dict[str, Any]:
    usage = list(evaluation.header.usage.values())
    costs = [each.cost for each in usage]
    judged = {key for key in BY_KEY if any(s.key == f"{MATCHED}{key}" for s in evaluation.header.evaluators)}
    seconds = [
        result.service_seconds
        for result in evaluation.results()
        if result.key in judged and any(call.kind == "model" for call in result.trace)
    ]
    return {
        "input_tokens": sum(each.input_tokens for each in usage),
        "output_tokens": sum(each.output_tokens for each in usage),
        "cost": None if None in costs else float(sum(cost or 0.0 for cost in costs)),
        "p50_seconds": _percentile(seconds, 50),
        "p95_seconds": _percentile(seconds, 95),
        "n": len(seconds),
    }


def _eval_block(
    record: Mapping[str, Any], judged: Mapping[str, ItemResult], is_session: bool, judgments: Counter[str]
) -> dict[str, Any]:
    """The `eval` of a record: the fields of its dimensions, and how each verdict was reached."""
    out: dict[str, Any] = {"session_id": record["session_id"]} if is_session else {}
    methods: dict[str, str] = {}
    errors: dict[str, str] = {}
    matched: dict[str, Any] = {}
    for dimension in DIMENSIONS:
        if dimension.of_sessions != is_session:
            continue
        result = judged.get(dimension.key)
        fields = dimension.fields(record, [], "")
        if result is not None and isinstance(result.outcome, Ok):
            fields = result.outcome.value.value
            methods[dimension.key] = result.outcome.value.metadata["method"]
            judgments["ok"] += 1
        elif result is not None and isinstance(result.outcome, Failed):
            error = result.outcome.error
            errors[dimension.key] = f"{error.type}: {error.message}"
            judgments["failed"] += 1
            fields = _with_reason(dimension, fields, errors[dimension.key])
        out.update(fields)
        beside = judged.get(f"{MATCHED}{dimension.key}")
        if beside is not None and isinstance(beside.outcome, Ok):
            matched[dimension.key] = beside.outcome.value.metadata["labels"]
    ranks = judged.get(RETRIEVAL)
    if not is_session:
        known = ranks.outcome.value.value if ranks is not None and isinstance(ranks.outcome, Ok) else {}
        out["retrieval"] = {name: known.get(name) for name in ("recall_at_k", "mrr", "ndcg")}
    out["methods"] = methods
    if matched:
        out["matcher_labels"] = matched
    if errors:
        out["judge_errors"] = errors
    return out


def _with_reason(dimension: Dimension, fields: dict[str, Any], error: str) -> dict[str, Any]:
    name = f"{dimension.key}_reasoning"
    return {**fields, name: error} if name in fields else fields


def _compare_methods(agreement: _Agreement, sample: str, judged: Mapping[str, ItemResult]) -> None:
    for key in BY_KEY:
        one, other = judged.get(key), judged.get(f"{MATCHED}{key}")
        if one is None or other is None:
            continue
        if isinstance(one.outcome, Ok) and isinstance(other.outcome, Ok):
            judge, matcher = one.outcome.value.metadata, other.outcome.value.metadata
            if judge["method"] != SETTLED:
                agreement.add(key, sample, judge["labels"], matcher["labels"])


def _metrics(
    stage: _Stage,
    aggregation: karat.Aggregation,
    chosen: JudgeChoice,
    agreement: _Agreement,
    judgments: Counter[str],
) -> dict[str, Any]:
    """The content of `aggregate_metrics.json`: the six blocks, and further figures after them."""
    failures = aggregation.header.failures
    if failures:
        raise RuntimeError(f"{failures[0].label}: {failures[0].error.message}")
    tables = {(table.evaluator, table.name): table.value for table in aggregation.tables}
    out: dict[str, Any] = {"baseline_id": stage.baseline}
    for dimension in DIMENSIONS:
        out[dimension.block] = tables[dimension.key, dimension.block]
    out["directions"] = {
        f"{dimension.block}.{mean.name}": "higher" if mean.higher_is_better else "lower"
        for dimension in DIMENSIONS
        for mean in dimension.means
    }
    estimates = aggregation.estimates
    out["intervals"] = {
        f"{dimension.block}.{mean.name}": _interval(estimates, dimension.key, mean.name, place == 0)
        for dimension in DIMENSIONS
        for place, mean in enumerate(dimension.means)
    }
    out["abstention"] = {
        **_numbers(
            _estimates_named(
                estimates,
                "answer",
                ("accuracy_answerable", "correct_refusal_rate", "false_refusal_rate"),
            )
        ),
        "num_unanswerable": (tables.get(("answer", "counts")) or {}).get("unanswerable", 0),
    }
    out["use_of_evidence"] = _numbers(
        _estimates_named(estimates, "answer", ("retrieved_but_not_used", "answered_without_evidence"))
    )
    counts = tables.get((CONTEXT, "counts")) or {}
    retrieval = {
        **_estimates_named(estimates, RETRIEVAL, ("recall_at_k", "mrr", "ndcg")),
        **_estimates_named(estimates, CONTEXT, ("context_tokens", "answer_tokens", "share_of_store")),
    }
    correct = out["question_answering"]
    tokens = retrieval["context_tokens"]
    per = correct["correct_ratio"] / tokens * 1000 if tokens and correct["applicable"] else None
    out["retrieval"] = {
        **_numbers({**retrieval, "accuracy_per_1000_context_tokens": per}),
        "retrieval_bypassed": counts.get("bypassed", 0),
        "questions": counts.get("questions", 0),
        "items_cut": counts.get("items_cut", 0),
        "tokens_cut": counts.get("tokens_cut", 0),
        "invented_citations": counts.get("invented_citations", 0),
    }
    leaking = (tables.get(("answer", "counts")) or {}).get("leaking_captions", 0)
    if leaking:
        value = _value(estimates, "answer", "accuracy_without_leaking_captions")
        out["captions"] = {"with_answer": leaking, **_numbers({"accuracy_of_the_others": value})}
    for name in ("question_type", "difficulty", "session_distance", "updates_since"):
        out[f"accuracy_by_{name}"] = {
            each.group[name]: {"correct": each.value, "low": each.low, "high": each.high, "n": each.n}
            for each in estimates
            if each.evaluator == "answer" and each.group and name in each.group
        }
    out["judge"] = {"judge": chosen.spec, "named_by": chosen.named_by}
    if chosen.model is None:
        out["judge"]["note"] = "no LLM: words, numbers and dates are compared"
    out["agreement_with_matcher"] = agreement.to_dict()
    out["judgments"] = {"ok": judgments["ok"], "failed": judgments["failed"]}
    out["missing"] = stage.manifest["missing"]
    return out


def _find(estimates: Iterable[Any], evaluator: str, name: str, main: bool = False) -> Any:
    for each in estimates:
        if each.evaluator == evaluator and each.group is None and each.name == ("" if main else name):
            return each
    return None


def _interval(estimates: Iterable[Any], evaluator: str, name: str, main: bool) -> dict[str, Any] | None:
    found = _find(estimates, evaluator, name, main)
    return (
        None
        if found is None
        else {"low": found.low, "high": found.high, "n": found.n, "method": found.method}
    )


def _value(estimates: Any, evaluator: str, name: str) -> float | None:
    found = _find(estimates, evaluator, name)
    return None if found is None else found.value


def _estimates_named(estimates: Any, evaluator: str, names: Sequence[str]) -> dict[str, Any]:
    return {name: _value(estimates, evaluator, name) for name in names}


def _numbers(rates: Mapping[str, float | None]) -> dict[str, Any]:
    """Rates for `aggregate_metrics.json`, where each is a number: 0.0 for one that is undefined, which is named."""
    undefined = [name for name, value in rates.items() if value is None]
    return {
        **{name: 0.0 if value is None else value for name, value in rates.items()},
        "undefined": undefined,
        "applicable": len(undefined) < len(rates),
    }
