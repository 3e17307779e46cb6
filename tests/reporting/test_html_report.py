"""The HTML report: complete, self-contained, small, and safe for hostile texts."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from zlib import crc32

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.ranking import rank
from karat.analysis.summary import summarise
from karat.cli import main
from karat.reporting.html_report import LONGEST_NAME, html_report, short_names
from karat.tasks import FunctionTask
from tests.hostile import HOSTILE
from tests.sample_store import sample_store


class Page(HTMLParser):
    """The tags, attributes and text of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._style = False
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_endtag(self, tag):
        self._style = False

    def handle_data(self, data):
        if not self._style:
            self.text += data + "\n"


def check_safe(document: str) -> Page:
    """Assert that a document runs nothing and asks for nothing."""
    page = Page(document)
    names = (
        "html head meta title style body header main footer nav section div p h1 h2 h3 h4 ul li a span strong code",
        "table thead tbody tr th td figure figcaption details summary dl dt dd del ins",
        "svg desc line path rect circle text",
    )
    allowed = {name for line in names for name in line.split()}
    assert {tag for tag, _ in page.tags} <= allowed
    for tag, attributes in page.tags:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "style", "srcset")
        ]
        if "href" in attributes:
            assert tag == "a"
            assert str(attributes["href"]).startswith("#")
    assert not re.search(r"url\(|@import", document)
    style = document.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    return page


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    with sample_store(tmp_path_factory.mktemp("sample"), 80) as made:
        yield made


def test_a_report_on_several_runs_has_every_section(sample):
    before = len(sample.store.aggregations.list())
    page = check_safe(html_report(sample.store, summarise(sample.store, [run.id for run in sample.runs])))
    headings = [page.text.index(f"\n{name}\n") for name in (
        "Conclusion", "Runs", "Estimates", "Paired differences", "Changed examples", "Slices", "Confusion",
        "Cost, time and quality", "Judges against people", "Failures", "Made with",
    )]  # fmt: skip
    assert headings == sorted(headings)
    assert "small" in page.text[headings[0] : headings[1]]
    assert page.text.count("JSONDecodeError") >= 2
    kinds = {tag for tag, _ in page.tags}
    assert {"del", "ins"} <= kinds
    assert "judge's score" in page.text
    assert len(sample.store.aggregations.list()) == before, "a report writes nothing to the store"


def test_the_sections_have_their_plots_tables_and_settings(sample):
    document = html_report(sample.store, summarise(sample.store, [run.id for run in sample.runs]))
    parts = re.split(r"<section[^>]*>\s*<h2[^>]*>", document)[1:]
    sections = {part.partition("</h2>")[0]: part for part in parts}
    for name in ("Estimates", "Paired differences", "Slices", "Confusion", "Cost, time and quality",
                 "Judges against people", "Failures"):  # fmt: skip
        assert "<svg" in sections[name], name
    text = {name: Page(part).text for name, part in sections.items()}
    assert re.search(r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]", text["Estimates"]), "with intervals"
    assert re.search(r"[+-]0\.\d{3} \[", text["Paired differences"])
    assert {"language=de", "language=en", "language=fr"} <= set(text["Slices"].split())
    assert "refund" in text["Confusion"]
    scatter = sections["Cost, time and quality"].partition("<svg")[2].partition("</svg>")[0]
    assert scatter.count("<circle") >= 3, "a point for each run"
    assert re.search(r"\[0\.\d{3}, [01]\.\d{3}\]", scatter), "with its interval"
    assert "JSONDecodeError" in text["Failures"]
    assert "ticket-" in text["Changed examples"]
    assert all(run.id in text["Made with"] for run in sample.runs)
    assert "openai/medium" in text["Made with"]


def test_a_report_on_one_run_has_only_its_own_results(sample):
    first, second = sample.runs[:2]
    page = check_safe(html_report(sample.store, summarise(sample.store, [first.id])))
    assert "Paired differences" not in page.text
    assert "medium" not in page.text.partition("Made with")[0].replace("openai/medium", "")
    assert second.id not in page.text
    assert page.text.count("predicted →") == 1


def test_a_report_on_a_comparison_and_on_a_ranking(sample, says):
    runs = [run.id for run in sample.runs]
    made = compare(runs[1:], metrics="intent", store=sample.store, fail_if_worse="accuracy:0.01")
    page = check_safe(html_report(sample.store, summarise(sample.store, [made.id])))
    assert "The gate" in page.text.partition("Runs")[0]
    assert "intent accuracy" in page.text
    ranked = rank(runs, metric="intent", store=sample.store)
    document = html_report(sample.store, summarise(sample.store, [ranked.id]))
    check_safe(document)
    assert document.count("<svg") >= 2, "ratings, and probabilities of winning"
    says(*re.findall(r"<h2[^>]*>([^<]*)", document))


def test_metadata_with_few_values_becomes_slices_without_being_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))
    rows = [
        {"id": f"e{n}", "input": "a", "expected": "a" if n % 3 else "b",
         "metadata": {"half": n % 2, "topic": f"topic {n % 5}", "number": n}}
        for n in range(30)
    ]  # fmt: skip
    with karat.open_store(tmp_path / "k.db") as store:
        run = karat.run(lambda text: text, rows, store=store, progress=False)
        karat.evaluate(run, ["exact_match"], progress=False)
        page = check_safe(html_report(store, summarise(store, [run.id])))
    slices = page.text.partition("\nSlices\n")[2]
    assert "by topic" in slices
    assert "topic 4" in slices
    assert "by half" in slices
    assert "by number" not in slices


def test_a_run_without_an_evaluation_names_the_next_command(tmp_path):
    with karat.open_store(tmp_path / "k.db") as store:
        run = karat.run(lambda text: text, [{"input": "a"}], store=store, progress=False)
        page = check_safe(html_report(store, summarise(store, [run.id])))
        assert "call karat.evaluate" in page.text


def ten_runs_with_twenty_metrics(store, keys, labels, losses=False):
    """A report on ten runs by twenty metrics, by slices too; with `losses` outputs and scores are missing."""
    data = karat.Dataset.from_examples(
        [{"id": f"example-{n}", "input": f"A question of usual length, number {n}?", "expected": "An answer. " * 8,
          "metadata": {"topic": f"topic {n % 5}"}} for n in range(60)], name="questions")  # fmt: skip

    def graded(key):
        def grade(outputs, expected):
            drawn = crc32((outputs + key).encode())
            if losses and drawn % 17 == 0:
                raise ValueError("no score")
            return karat.Result(key, drawn % 97 / 96)

        grade.__name__ = key
        return grade

    def answer(text, skill, prompt):
        if losses and crc32(f"{text} {skill}".encode()) % 11 == 0:
            raise RuntimeError(f"no answer to {text}")
        return f"{text} An answer in a few sentences, as models give it, and no less than that. " * (
            skill % 3 + 1
        )

    runs = []
    for skill, label in enumerate(labels):
        task = FunctionTask(answer, name="answer", parameters={"skill": skill, "prompt": "You are … " * 40})
        runs.append(karat.run(task, data, store=store, progress=False, labels=[label]))
    evaluation = karat.evaluate(runs, [graded(key) for key in keys], store=store, progress=False)
    karat.aggregate(evaluation, ["mean", {"name": "mean", "key": "by_topic", "params": {"by": "topic"}}])
    return html_report(store, summarise(store, [run.id for run in runs]))


@pytest.mark.parametrize("losses", [False, True], ids=["complete", "losses"])
@pytest.mark.parametrize("length", [16, 60])
def test_ten_runs_with_twenty_metrics_take_at_most_300_kb(tmp_path, length, losses):
    keys = [f"metric_number_{n}_".ljust(length, "x") for n in range(20)]
    labels = [f"run number {n} ".ljust(length, "y") for n in range(10)]
    with karat.open_store(tmp_path / "k.db") as store:
        document = ten_runs_with_twenty_metrics(store, keys, labels, losses)
    check_safe(document)
    assert len(document.encode()) <= 300_000
    assert all(key in document for key in keys)
    assert all(label.strip() in document for label in labels)


def test_long_labels_of_many_runs_are_cut_and_stay_distinct():
    alike = {f"run-{n}": f"a label whose end alone is different: {n}" for n in range(3)}
    other = {"run-3": "short", "run-4": "another label that is longer than a plot has room for"}
    names = short_names(alike | other)
    assert len(set(names.values())) == 5
    assert max(map(len, names.values())) == LONGEST_NAME
    assert names["run-1"].startswith("2. a label whose end")
    assert names["run-3"] == "short"
    assert names["run-4"].startswith("another label")
    assert short_names(alike) == alike


def test_a_table_names_a_metric_once_for_all_its_runs(sample):
    summary = summarise(sample.store, [run.id for run in sample.runs])
    page = Page(html_report(sample.store, summary))
    spans = [int(a["rowspan"] or 0) for tag, a in page.tags if tag == "th" and a.get("scope") == "rowgroup"]
    assert spans
    assert max(spans) == len(sample.runs)


def test_hostile_strings_in_every_field_stay_text(tmp_path):
    examples = [
        {
            "id": f"{n} {text}",
            "input": text,
            "expected": text,
            "metadata": {"topic": text, text[:50] or "k": text},
        }
        for n, text in enumerate(HOSTILE)
    ]
    worst = HOSTILE[2]

    def grade(outputs, expected):
        same = outputs == expected
        return karat.Result(
            worst, float(same), outputs, comment=worst, metadata={"golden": expected, "predicted": outputs}
        )

    def answer(text, fail, prompt):
        if fail and text == HOSTILE[1]:
            raise ValueError(text)
        return text if len(text) % 2 else text + worst

    def better(text, fail, prompt):
        if text == HOSTILE[0]:
            raise ValueError(text)
        return text + worst if len(text) % 3 else text

    with karat.open_store(tmp_path / "k.db") as store:
        data = karat.Dataset.from_examples(examples, name=HOSTILE[0])
        runs = [
            karat.run(
                FunctionTask(function, name=HOSTILE[3], parameters={"fail": True, "prompt": text}),
                data, store=store, progress=False, labels=[worst], description=worst, metadata={worst: worst},
            )
            for function, text in ((answer, HOSTILE[2]), (better, HOSTILE[12]))
        ]  # fmt: skip
        evaluation = karat.evaluate(runs, [grade], store=store, progress=False)
        karat.aggregate(
            evaluation, ["mean", {"name": "mean", "key": worst, "params": {"by": "topic"}}, "f1_score"]
        )
        document = html_report(store, summarise(store, [run.id for run in runs]))
    page = check_safe(document)
    assert "<script" not in document
    assert worst in page.text
    assert not [c for c in document if c in "\x00\x1b\x7f\x9b\u202e\u2066\u200b\ufeff\u2028\u2029"]
    assert "⟨U+202E⟩" in page.text
    assert len(document) < 300_000


def test_the_command_writes_the_file(sample, tmp_path, capsys):
    url = f"sqlite:///{sample.store.backend.path}"
    target = tmp_path / "report.html"
    runs = [run.id for run in sample.runs]
    assert main(["report", *runs, "-o", str(target), "--store", url]) == 0
    check_safe(target.read_text(encoding="utf-8"))
    assert main(["report", runs[0], "--format", "html", "--store", url]) == 0
    assert "<!doctype html>" in capsys.readouterr().out


def test_the_conclusion_names_the_values_that_the_tables_have(sample, says):
    summary = summarise(sample.store, [run.id for run in sample.runs])
    page = Page(html_report(sample.store, summary))
    conclusion = page.text.partition("Conclusion")[2].partition("\nRuns\n")[0]
    best = max(
        (m.estimate for m in summary.metrics if m.estimate.label == "intent accuracy"),
        key=lambda e: e.value or 0.0,
    )
    assert f" {best.value:.3f} [{best.low:.3f}, {best.high:.3f}]" in conclusion
    says(*conclusion.strip().splitlines())


def test_a_found_difference_is_not_among_the_metrics_left_out(tmp_path, says):
    store = tmp_path / "k.db"
    data = karat.Dataset.from_examples([{"id": f"e{n}", "input": n} for n in range(40)])

    def good(number: int) -> int:
        return 1

    def bad(number: int) -> int:
        return 0

    def last(outputs: int) -> float:
        return float(outputs)

    runs = [karat.run(task, data, store=store) for task in (good, bad)]
    karat.evaluate(runs, [*({"name": "json_valid", "key": f"same{n}"} for n in range(6)), last], store=store)
    compared = karat.compare(runs, store=store)
    says(compared.conclusions[-1])
    page = tmp_path / "x.html"
    assert main(["report", *(run.id for run in runs), "--store", str(store), "-o", str(page)]) == 0
    assert compared.conclusions[-1] in page.read_text(encoding="utf-8").partition("more metrics")[0]


def test_runs_that_are_all_alike_are_not_listed_as_alternatives_to_a_best_one(tmp_path, says):
    data = karat.Dataset.from_examples([{"input": n, "expected": str(n % 3)} for n in range(9)], name="few")

    def answer(number, shift):
        return str((number + (number == shift)) % 3)

    with karat.open_store(tmp_path / "k.db") as store:
        runs = [
            karat.run(
                FunctionTask(answer, name="answer", parameters={"shift": shift}),
                data,
                store=store,
                progress=False,
            )
            for shift in range(4)
        ]
        karat.aggregate(karat.evaluate(runs, ["exact_match"], store=store, progress=False), ["mean"])
        text = Page(html_report(store, summarise(store, [run.id for run in runs]))).text
    says(*text.partition("Conclusion")[2].partition("\nRuns\n")[0].strip().splitlines())


def test_the_table_of_runs_shows_the_metric_that_the_conclusion_is_about(tmp_path):
    """With accuracy and mean of a graded score, runs are compared by its mean."""
    store = karat.open_store(tmp_path / "k.db")
    data = karat.Dataset.from_examples([(f"word {n}", f"word {n + 1}") for n in range(6)], name="words")
    runs = [karat.run(task, data, store=store) for task in (str.upper, str.lower)]
    karat.aggregate(karat.evaluate(runs, ["edit_distance"], store=store), ["accuracy", "mean"], store=store)
    page = html_report(store, summarise(store, runs))
    heads = page[page.index("<thead") : page.index("</thead>")]
    assert "edit_distance mean" in heads
    assert "edit_distance accuracy" not in heads
