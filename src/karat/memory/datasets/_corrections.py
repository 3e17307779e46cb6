"""Label corrections: a file that lies over a dataset and corrects its gold answers and evidence.

One object per question, in JSON Lines or a JSON array: `sample_id` and `index` name the question (never its text, which
may occur twice), `answer`, `answers`, `evidence` and `answerable` replace its labels, `exclude` removes it, `reason`
is the explanation.
The public audit of LoCoMo is read in its own form (`question_id: locomo_0_qa1`, `correct_answer`, `correct_evidence`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from karat.datasets.readers.rows import short
from karat.errors import DataError
from karat.memory._dialogue import Question, Sample, Turn
from karat.memory.datasets._reading import REFUSAL, EvidenceSet, Located, rows, turn_evidence

_AUDIT = re.compile(r"locomo_(\d{1,6})_qa(\d{1,6})")


class Corrections:
    """The corrections of one file, and how many were applied."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_key: dict[tuple[str, int], Located] = {}
        for row in rows(path):
            key = _key(row)
            if key in self._by_key:
                raise row.error("this question is corrected twice: give one correction each")
            self._by_key[key] = row
        self._used: set[tuple[str, int]] = set()
        self.questions = self.changed = self.excluded = 0

    def restart(self) -> None:
        """Count from the start: the dataset is read again."""
        self._used.clear()
        self.questions = self.changed = self.excluded = 0

    def apply(self, sample: Sample, number: int, turn_id: Callable[[str], str]) -> Sample:
        """The sample with corrected labels. `number` is its place in the dataset, from 0."""
        turns = {turn.turn_id: turn for session in sample.sessions for turn in session.turns}
        changed = excluded = 0
        kept: list[Question] = []
        for question in sample.questions:
            self.questions += 1
            key = next(
                (
                    k
                    for k in ((sample.sample_id, question.index), (f"#{number}", question.index))
                    if k in self._by_key
                ),
                None,
            )
            if key is None:
                kept.append(_at(question, len(kept)))
                continue
            self._used.add(key)
            row = self._by_key[key]
            if row.has("exclude") and row["exclude"].flag():
                excluded += 1
                continue
            corrected = _corrected(question, row, turns, turn_id)
            if (corrected.answer, corrected.answerable) != (question.answer, question.answerable):
                changed += 1
            kept.append(_at(corrected, len(kept)))
        self.changed += changed
        self.excluded += excluded
        note = f"label corrections: {changed} of {len(sample.questions)} answers, {excluded} excluded"
        notes = (*sample.notes, note) if changed or excluded else sample.notes
        return msgspec.structs.replace(sample, questions=tuple(kept), notes=notes)

    def check_all_used(self) -> None:
        """Refuse corrections of questions that the dataset does not have."""
        for key, row in self._by_key.items():
            if key not in self._used:
                raise row.error("this correction names no question of the dataset: check sample_id and index")

    def summary(self) -> str:
        """How many labels are corrected, and what a perfect system would reach without the corrections."""
        wrong = self.changed + self.excluded
        ceiling = 1 - wrong / self.questions if self.questions else 0.0
        return (
            f"Label corrections of {self.path.name}: {self.changed:,} answers corrected and {self.excluded:,} questions"
            f" excluded of {self.questions:,}. With the original labels a perfect system scores at most"
            f" {ceiling:.1%}."
        )


def _at(question: Question, index: int) -> Question:
    """The question under another index, with its place in the file as its source."""
    if question.index == index:
        return question
    return msgspec.structs.replace(
        question, index=index, source_id=question.source_id or f"index {question.index}"
    )


def _key(row: Located) -> tuple[str, int]:
    audit = row.get("question_id")
    if audit is not None and not row.has("sample_id"):
        found = _AUDIT.fullmatch(audit.written())
        if found is None:
            raise audit.error("expected locomo_<sample>_qa<index>; otherwise give sample_id and index")
        return f"#{int(found[1])}", int(found[2])
    index = row["index"]
    if not isinstance(index.value, int) or isinstance(index.value, bool) or index.value < 0:
        raise index.error("expected the number of the question in its sample, from 0")
    return row["sample_id"].identifier(), index.value


def _corrected(
    question: Question, row: Located, turns: dict[str, Turn], turn_id: Callable[[str], str]
) -> Question:
    given = row.get("question")
    if given is not None and " ".join(given.text().split()) != " ".join(question.question.split()):
        raise given.error(
            f"question {question.index} of the dataset is {short(question.question)}: correct the index"
        )
    # In the audit of LoCoMo an answer with wrong evidence is right, and only worded anew.
    keys = ("answer",) if row.text_at("error_type") == "WRONG_CITATION" else ("answer", "correct_answer")
    answer, evidence = row.get(*keys), row.get("evidence", "correct_evidence")
    answerable = (
        row["answerable"].flag() if row.has("answerable") else question.answerable or answer is not None
    )
    found = question.evidence
    if evidence is not None:
        named = EvidenceSet()
        for one in evidence.texts():
            turn = turns.get(turn_id(one))
            if turn is None:
                raise evidence.error(f"{short(one, 40)} names no turn of the sample")
            named.add(one, msgspec.structs.replace(turn_evidence(turn), evidence_id=one))
        found = tuple(named.found.values())
    text = answer.written() if answer is not None else question.answer
    return msgspec.structs.replace(
        question,
        answer=text if answerable else (answer.written() if answer is not None else REFUSAL),
        answers=tuple(one.written() for one in row.list_at("answers")),
        answerable=answerable,
        evidence=found if answerable else (),
    )


def open_corrections(path: str | Path) -> Corrections:
    """Read a file of corrections."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} does not exist: give a JSON Lines file of label corrections")
    return Corrections(file)
