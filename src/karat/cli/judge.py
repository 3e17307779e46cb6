"""Correct, measure and audit judges. Each subcommand has its own help.

EVAL is an evaluation id, a unique prefix of one, a label, or `latest`: the latest one that has a judge.

    karat judge sample eval-1a -n 50 -o sheet.csv
    karat judge import sheet.csv eval-1a --annotator ana
    karat judge alignment eval-1a
    karat judge correct eval-1a q17 --claim 2=false
    karat judge compare eval-1a --judge openai/NAME --judge local/smollm2-135m
    karat judge audit --judge openai/NAME
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from karat.cli.parser import Parser, UsageError, integer, share
from karat.cli.terminal import Terminal
from karat.records import AUDIT, HUMAN

if TYPE_CHECKING:
    from karat.records import Estimate
    from karat.store import Store
    from karat.store.handles import Evaluation

MOST_FLIPS = 20
"""Flips that are shown; the JSON document has all of them."""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of a subcommand."""
    command = parser.name.removeprefix("judge").strip()
    parser.set_defaults(command=command)
    if command:
        parser.description = inspect.getdoc(_subcommands()[command])
    if command in ("correct", "sample", "alignment", "compare"):
        parser.add_argument("evaluation", metavar="EVAL", help="the evaluation, or latest")
    if command == "correct":
        parser.add_argument("example", metavar="EXAMPLE", help="the id of the example")
        parser.option(
            "--claim",
            action="append",
            default=[],
            metavar="N=true|false",
            help="the verdict on claim N (groundedness); repeatable",
        )
        parser.option(
            "--requirement",
            action="append",
            default=[],
            metavar="N=true|false",
            help="the verdict on requirement N (agent judge); repeatable",
        )
        parser.option(
            "--node",
            action="append",
            default=[],
            metavar="NAME=CHOICE",
            help="the choice at a rubric node; repeatable",
        )
        parser.option("--verdict", choices=["pass", "fail"], help="the overall verdict")
        parser.option("--run", metavar="RUN", help="the run, if the evaluation has several")
        parser.option("--attempt", type=integer(1), metavar="N", help="the attempt, if there are several")
        parser.option("--unit", metavar="NAME", help="the unit, if there are several")
        parser.option("--note", default="", metavar="TEXT", help="a note to store with the verdict")
    if command == "sample":
        parser.option(
            "-n", "--number", type=integer(1), default=50, metavar="N", help="number of outputs (default: 50)"
        )
        parser.option("-o", "--output", metavar="FILE", required=True, help="the sheet, a CSV file")
        parser.option(
            "--by",
            metavar="FIELD",
            help="draw as many outputs of each value of this metadata field, or of each run",
        )
        parser.option("--seed", type=integer(0), default=0, metavar="N", help="random seed (default: 0)")
    if command == "import":
        parser.add_argument("file", metavar="FILE", help="JSONL or CSV")
        parser.add_argument(
            "evaluation", metavar="EVAL", help="the evaluation whose outputs were labelled, or latest"
        )
        parser.option(
            "--sampling",
            choices=["uniform", "selected"],
            default="selected",
            help="how the labelled outputs were chosen (default: selected)",
        )
        parser.option("--scale", metavar="LOW:HIGH", help="the range of scores in the file (default: 0:1)")
        parser.option(
            "--question", default="", metavar="TEXT", help="the question that the annotator answered"
        )
    if command in ("correct", "import"):
        parser.option("--annotator", metavar="NAME", help="the name of the annotator (default: person)")
    if command in ("correct", "sample", "import", "alignment", "compare"):
        parser.option("--evaluator", metavar="KEY", help="the judge, if the evaluation has several")
    if command in ("compare", "audit"):
        parser.option(
            "--judge",
            action="append",
            default=[],
            metavar="MODEL|JSON",
            help="the judge: a model, or JSON settings; give two for compare",
        )
        parser.option("--concurrency", type=integer(1), metavar="N", help="number of judge calls at a time")
    if command == "compare":
        parser.option(
            "--with",
            dest="other",
            metavar="KEY",
            help="compare with another evaluator of EVAL instead of two judges",
        )
    if command == "audit":
        parser.option("--limit", type=integer(1), metavar="N", help="use the first N questions only")
    if command in ("alignment", "compare", "audit"):
        parser.option(
            "--confidence",
            type=share,
            default=0.95,
            metavar="SHARE",
            help="confidence level of the intervals (default: 0.95)",
        )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Run a subcommand."""
    commands = _subcommands()
    if given.command not in commands:
        raise UsageError(f"karat judge needs a subcommand: {', '.join(commands)}; see karat judge --help")
    return commands[given.command](given, terminal)


def _subcommands() -> dict[str, Callable[[argparse.Namespace, Terminal], int]]:
    """The functions of the subcommands; their docstrings are the help."""
    return {
        "correct": _correct,
        "sample": _sample,
        "import": _import,
        "alignment": _alignment,
        "compare": _compare,
        "audit": _audit,
    }


def _latest_judged(store: Store) -> Evaluation | None:
    """The latest evaluation that has a judge, or None."""
    from karat.analysis.judges.parts import asks_judge

    found = [
        each
        for each in store.evaluations.list()
        if not each.header.metadata.get(AUDIT) and any(map(asks_judge, each.header.evaluators))
    ]
    return found[-1] if found else None


def _find_evaluation(store: Store, id: str, terminal: Terminal) -> Evaluation:
    """The evaluation that a command is about; says which one `latest` is."""
    evaluation = (_latest_judged(store) if id == "latest" else None) or _judged_evaluation(store, id)
    if id == "latest":
        from karat.cli.outcome import latest_notice

        terminal.notice(latest_notice(evaluation))
    return evaluation


def _judged_evaluation(store: Store, id: str) -> Evaluation:
    """An evaluation by evaluators; people's labels are refused with the evaluation that they are on."""
    evaluation = store.evaluations.get(id)
    if all(spec.name == HUMAN for spec in evaluation.header.evaluators):
        who = ", ".join(str(spec.params.get("annotator", "")) for spec in evaluation.header.evaluators)
        of = evaluation.header.metadata.get("labels_of") or "the evaluation that was labelled"
        raise UsageError(f"{evaluation.id} holds the labels of {who}: name the judged evaluation, {of}")
    return evaluation


def _correct(given: argparse.Namespace, terminal: Terminal) -> int:
    """Correct or confirm one decision of a judge, and compute the score that follows from it.

    The verdict is stored beside the judge's, as a label of the annotator. Claims and requirements are numbered from 1,
    as karat show EVAL --example EXAMPLE lists them. A verdict equal to the judge's is a confirmation.

        karat judge correct eval-1a q17 --claim 2=false
        karat judge correct eval-1a q17 --requirement 1=true --requirement 3=false
        karat judge correct eval-1a q17 --evaluator answer_quality --node grounded=no
        karat judge correct eval-1a q17 --verdict fail --note "the date is wrong" --annotator ana
    """
    import msgspec

    from karat.analysis.judges.labels import ANNOTATOR, correct
    from karat.formatting import Details, Paragraph
    from karat.store import open_existing

    with open_existing(given.store) as store:
        evaluation = _find_evaluation(store, given.evaluation, terminal)
        compared = store.command("judge", "alignment", evaluation.id)
        made = correct(
            evaluation,
            given.example,
            evaluator=given.evaluator,
            claims=dict(_read_integer("--claim", text) for text in given.claim),
            requirements=dict(_read_integer("--requirement", text) for text in given.requirement),
            nodes=dict(_read_name(text) for text in given.node),
            verdict=None if given.verdict is None else given.verdict == "pass",
            run=given.run,
            attempt=given.attempt,
            unit=given.unit,
            annotator=given.annotator or ANNOTATOR,
            note=given.note,
        )
    fields = [
        (
            each.kind,
            [
                f"{each.part or 'verdict'} {_verdict_text(each.judged)} → {_verdict_text(each.corrected)}"
                if each.kind == "correction"
                else f"{each.part or 'verdict'} {_verdict_text(each.corrected)}"
            ],
        )
        for each in made
    ]
    last = made[-1]
    fields.append(("score", [f"{_number(last.score_before)} → {_number(last.score)}"]))
    terminal.show(
        {"corrections": [msgspec.to_builtins(each) for each in made]},
        [
            Details(f"example {given.example}", fields),
            Paragraph(
                f"Stored beside the judge's score, in {last.evaluation}. Judge and people compared: {compared}"
            ),
        ],
    )
    return 0


def _verdict_text(value: Any) -> str:
    return (
        {True: "true", False: "false", None: "undecided"}.get(value, str(value))
        if not isinstance(value, str)
        else value
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _read_integer(option: str, text: str) -> tuple[int, bool]:
    number, equals, value = text.partition("=")
    words = {"true": True, "yes": True, "false": False, "no": False}
    if not equals or not number.strip().isdigit() or value.strip().lower() not in words:
        raise UsageError(f"{option} {text!r}: write the number and the verdict, as in {option} 2=false")
    return int(number), words[value.strip().lower()]


def _read_name(text: str) -> tuple[str, str]:
    name, equals, choice = text.partition("=")
    if not equals or not name.strip() or not choice.strip():
        raise UsageError(f"--node {text!r}: write the node and the choice, as in --node grounded=no")
    return name.strip(), choice.strip()


def _import(given: argparse.Namespace, terminal: Terminal) -> int:
    """Store human labels from a CSV or JSONL file.

    The file has a column example (or id) and a column label: pass, fail or cannot tell; or a column score, from 0 to 1
    or with --scale. Where they are needed: run, attempt, unit, evaluator, part (claims/3, requirements/1,
    nodes/grounded, criteria/NAME), annotator, probability, note. Other columns are not read, and a notice lists them.
    A file with one wrong row stores nothing. Only labels of a random sample correct estimates: --sampling uniform, or
    the column probability, which karat judge sample writes.

        karat judge import sheet.csv eval-1a --annotator ana
        karat judge import labels.jsonl eval-1a --sampling uniform --scale 1:5
    """
    from karat.analysis.judges.labels import import_labels
    from karat.formatting import Table
    from karat.store import open_existing

    with open_existing(given.store) as store:
        made = import_labels(
            given.file,
            _find_evaluation(store, given.evaluation, terminal),
            annotator=given.annotator,
            sampling=given.sampling,
            evaluator=given.evaluator,
            scale=_scale(given.scale),
            question=given.question,
            notify=terminal.notice,
        )
        document = {"evaluations": [each.to_dict() for each in made]}
        rows = [
            [
                each.id,
                str(each.header.evaluators[0].params["annotator"]),
                str(each.header.evaluators[0].params["labels"]),
                str(each.counts.ok),
                str(each.counts.skipped),
                "probabilities" if _has_probabilities(each) else given.sampling,
            ]
            for each in made
        ]
    head = ["evaluation", "annotator", "evaluator", "labels", "cannot tell", "sampling"]
    terminal.show(document, [Table(head, rows, [3, 4])])
    return 0


def _has_probabilities(labels: Evaluation) -> bool:
    results = (each.result for each in labels.results())
    return any(result is not None and "probability" in result.metadata for result in results)


def _sample(given: argparse.Namespace, terminal: Terminal) -> int:
    """Write a random sample of judged outputs as a sheet for a person to label.

    The sheet has the input, the output, the expected output and an empty column label, in random order and without
    the judge's verdicts. Write pass, fail, a score from 0 to 1, or cannot tell into every row; karat judge import reads
    the sheet as it is. The column probability makes the labels a random sample, which corrects estimates. The same
    seed draws the same outputs.

        karat judge sample eval-1a -n 50 -o sheet.csv
        karat judge sample latest -n 200 --by topic --evaluator llm_judge -o sheet.csv
    """
    from pathlib import Path

    from karat.analysis.judges.labels import SAMPLE_COLUMNS, sample_sheet
    from karat.datasets.writers import check_writable, record_file
    from karat.errors import plural
    from karat.formatting import Details, Paragraph, clean
    from karat.store import open_existing

    path = Path(given.output)
    if path.suffix.lower() != ".csv":
        raise UsageError(f"-o {given.output}: a sheet is a CSV file, such as sheet.csv")
    if path.exists():
        raise UsageError(f"-o {given.output}: the file exists and may have labels: name another file")
    check_writable(path)
    with open_existing(given.store) as store:
        evaluation = _find_evaluation(store, given.evaluation, terminal)
        rows, judged = sample_sheet(
            evaluation, n=given.number, evaluator=given.evaluator, by=given.by, seed=given.seed
        )
        with record_file(path, "csv") as file:
            for row in rows:
                file.add(row)
        then = store.command("judge", "import", given.output, evaluation.id, "--annotator", "NAME")
        document = {
            "file": given.output,
            "evaluation": evaluation.id,
            "rows": len(rows),
            "judged": judged,
            "columns": SAMPLE_COLUMNS,
        }
        terminal.show(
            document,
            [
                Paragraph(
                    f"wrote {len(rows):,} of {plural(judged, 'judged output')} to {clean(given.output)}:"
                    " fill in the column label with pass, fail, a score from 0 to 1, or cannot tell"
                ),
                Details("", [("then", [then])]),
            ],
        )
    return 0


def _scale(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = (0.0, 0.0)
    if not colon or not limits[0] < limits[1]:
        raise UsageError(f"--scale {text!r}: write the lowest and the highest score, as in --scale 1:5")
    return limits


def _alignment(given: argparse.Namespace, terminal: Terminal) -> int:
    """Measure how well a judge agrees with human labels.

    Prints Cohen's kappa, agreement, sensitivity, specificity and bias with intervals, overall and for each part, and
    stores them beside the scores of the judge. Random samples and selected labels (corrections) are kept apart.

        karat judge alignment eval-1a
        karat judge alignment latest --evaluator tone
    """
    import msgspec

    from karat.analysis.judges.agreement import alignment
    from karat.formatting import Block, Paragraph, Table
    from karat.store import open_existing

    with open_existing(given.store) as store:
        found = alignment(
            _find_evaluation(store, given.evaluation, terminal),
            evaluator=given.evaluator,
            confidence=given.confidence,
        )
    head = [
        "judge",
        "part",
        "labels",
        "n",
        "base rate",
        "judge rate",
        "agreement",
        "kappa",
        "sensitivity",
        "specificity",
        "bias",
    ]
    rows = [
        [
            each.evaluator,
            each.part,
            each.labels,
            str(each.n),
            _estimate(each.base_rate),
            _estimate(each.judge_rate),
            _estimate(each.agreement),
            _estimate(each.kappa),
            _estimate(each.sensitivity),
            _estimate(each.specificity),
            _estimate(each.bias),
        ]
        for each in found
    ]
    served = sorted({model for each in found for model in each.served_models})
    blocks: list[Block] = [Table(head, rows, split=True)]
    if served:
        blocks.append(Paragraph(f"served: {', '.join(served)}"))
    stale = sorted({each.evaluator for each in found if each.stale})
    if stale:
        text = (
            f"stale: {', '.join(stale)}: the provider serves another model now; label results of that model"
        )
        blocks.append(Paragraph(text))
    if any(each.labels == "selected" for each in found):
        blocks.append(
            Paragraph(
                "selected labels (corrections and confirmations) are not a random sample and correct no estimate"
            )
        )
    terminal.show({"alignment": [msgspec.to_builtins(each) for each in found]}, blocks)
    return 0


def _estimate(estimate: Estimate | None) -> str:
    from karat.records import interval_text

    if estimate is None or estimate.value is None:
        return "none"
    return f"{estimate.value:.2f} {interval_text(estimate, 2)}".strip()


def _judges(given: Sequence[str]) -> list[Any]:
    out: list[Any] = []
    for text in given:
        if not text.lstrip().startswith("{"):
            out.append(text)
            continue
        try:
            out.append(json.loads(text))
        except ValueError as error:
            raise UsageError(f"--judge {text!r} is not JSON: {error}") from None
    return out


def _options(given: argparse.Namespace, terminal: Terminal) -> dict[str, Any]:
    options: dict[str, Any] = {"progress": terminal.listener}
    if given.concurrency is not None:
        options["concurrency"] = given.concurrency
    return options


def _compare(given: argparse.Namespace, terminal: Terminal) -> int:
    """Evaluate the same outputs with two judges, or compare a judge with another evaluator of EVAL.

    Prints the share of passes, the agreement, kappa, and the outputs on which the verdicts differ. Verdicts that are
    stored already are not asked for again.

        karat judge compare eval-1a --judge openai/NAME --judge local/smollm2-135m
        karat judge compare eval-1a --evaluator llm_judge --with exact_match
    """
    import msgspec

    from karat.analysis.judges.agreement import compare_evaluators, compare_judges
    from karat.errors import plural
    from karat.formatting import Block, Details, Paragraph, Table
    from karat.store import open_existing

    judges = _judges(given.judge)
    if (len(judges) != 2) == (given.other is None) or (judges and given.other is not None):
        raise UsageError("karat judge compare needs --judge twice, or --with KEY")
    with open_existing(given.store) as store:
        evaluation = _find_evaluation(store, given.evaluation, terminal)
        if given.other is not None:
            found = compare_evaluators(evaluation, given.evaluator, given.other, confidence=given.confidence)
        else:
            found = compare_judges(
                evaluation,
                judges,
                evaluator=given.evaluator,
                confidence=given.confidence,
                **_options(given, terminal),
            )
    first, second = found.judges if max(map(len, found.judges)) <= 30 else ("first", "second")
    what = "" if found.evaluator in found.judges else f"{found.evaluator}: "
    title = (
        f"{what}{found.judges[0]} compared with {found.judges[1]}, {found.n} of {plural(found.of, 'output')}"
    )
    fields = [
        ("passes", [f"{found.passes[0]} and {found.passes[1]} of {found.n}"]),
        ("flips", [str(len(found.flips))]),
        ("agreement", [_estimate(found.agreement)]),
        ("kappa", [_estimate(found.kappa)]),
        ("difference", [_estimate(found.difference)]),
    ]
    blocks: list[Block] = [Details(title, fields)]
    several = len({each["run"] for each in found.flips}) > 1
    rows = [
        [
            each["example"],
            f"{each['first']:.2f}",
            f"{each['second']:.2f}",
            *([each["run"]] if several else []),
        ]
        for each in found.flips[:MOST_FLIPS]
    ]
    blocks.append(Table(["example", first, second, *(["run"] if several else [])], rows, [1, 2]))
    if len(found.flips) > MOST_FLIPS:
        blocks.append(Paragraph(f"and {len(found.flips) - MOST_FLIPS} more: --json has all of them"))
    terminal.show(msgspec.to_builtins(found), blocks)
    return 0


def _audit(given: argparse.Namespace, terminal: Terminal) -> int:
    """Measure the error rates of a judge and its resistance to attacks.

    The judge decides on shipped answers of known quality (right, wrong, vague, empty, lengthened), and on wrong answers
    with and without an attack. Prints false accepts and rejects, attack success, self-consistency, length bias and
    position bias with intervals; the verdict is sound, misled, useless or undecided.

        karat judge audit --judge openai/NAME
        karat judge audit --judge '{"model": "openai/NAME", "samples": 3}' --limit 8
    """
    import msgspec

    from karat.analysis.judges.audit import audit, audit_evaluator
    from karat.formatting import Block, Details, Paragraph, Table
    from karat.store import open_store

    judges = _judges(given.judge)
    if len(judges) > 1:
        raise UsageError("karat judge audit takes one --judge; write a jury as JSON: '{\"models\": […]}'")
    judge = judges[0] if judges else None
    audit_evaluator(judge)  # a mistake leaves no store behind
    with open_store(given.store) as store:
        found = audit(
            judge,
            store=store,
            limit=given.limit,
            confidence=given.confidence,
            **_options(given, terminal),
        )
    fields = [
        ("served", [", ".join(found.served_models) or "unknown"]),
        ("false accepts", [_estimate(found.false_accept)]),
        ("false rejects", [_estimate(found.false_reject)]),
        (
            "attack success",
            [f"{_estimate(found.attack_success)} of {found.attack_success.n} that fail without an attack"],
        ),
        ("self-consistency", [_estimate(found.self_consistency)]),
        (
            "length bias",
            [f"{_estimate(found.length_bias)} (pass rate of longer answers minus that of shorter ones)"],
        ),
        (
            "position bias",
            [f"{_estimate(found.position_bias)} (share of pairs in which the first wins; 0.5 is none)"],
        ),
    ]
    blocks: list[Block] = [Details(f"audit {found.id} of {', '.join(found.judge)}: {found.verdict}", fields)]
    worst = [(name, each) for name, each in found.by_attack.items() if each.value]
    rows = [
        [name, f"{each.value:.3f}", str(each.n)]
        for name, each in sorted(worst, key=lambda x: -(x[1].value or 0))
    ]
    blocks.append(Table(["attack", "success", "of"], rows, [1, 2]))
    if found.failed:
        calls = "judge call" if found.failed == 1 else "judge calls"
        blocks.append(Paragraph(f"{found.failed} {calls} failed; the rates exclude them"))
    terminal.show(msgspec.to_builtins(found), blocks)
    return 0
