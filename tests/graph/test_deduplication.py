"""Deduplication of output records."""

from __future__ import annotations

import json

import pytest

from karat.errors import ConfigError, RequestError
from karat.graph import SemanticDedupPostProcessor, load_task

SAME = "The printer in the hall does not print any more"
ROWS = [
    {"id": "a", "answer": SAME},
    {"id": "b", "answer": "Mail to customers is not delivered since this morning"},
    {"id": "c", "answer": f"{SAME}."},
    {"id": "d", "answer": ""},
    {"id": "e", "answer": None},
    {"id": "f", "answer": [SAME, None]},
]
TASK = """
data_config: {source: {type: disk, file_path: rows.jsonl}}
graph_config:
  nodes:
    pass_on: {node_type: weighted_sampler, attributes: {color: {values: [red]}}}
output_config: {output_map: {id: {from: id}, answer: {from: answer}}}
graph_post_process:
  - processor: sygra.core.graph.graph_postprocessor.SemanticDedupPostProcessor
    params:
      field: answer
      similarity_threshold: 0.92
      dedup_mode: all_pairs
      id_field: id
      embedding_backend: sentence_transformers
      embedding_model: all-MiniLM-L6-v2
      keep: KEEP
      max_pairs_in_report: 1
"""


@pytest.mark.parametrize(("keep", "kept", "place"), [("first", "abde", "a"), ("last", "bdef", "f")])
def test_a_task_written_for_sygra_leaves_duplicates_out_and_says_which(project, keep, kept, place):
    project.write("t/graph_config.yaml", TASK.replace("KEEP", keep))
    project.rows("t/rows.jsonl", ROWS)
    outcome = project.run("t")
    assert len(outcome.records) == len(ROWS)
    records = json.loads(outcome.written.reports["SemanticDedupPostProcessor"].read_text())
    assert "".join(record["id"] for record in records) == kept
    beside = outcome.written.output.name.replace("output", "semantic_dedup_report")
    report = json.loads((outcome.written.output.parent / beside).read_text())
    assert (report["input_count"], report["output_count"], report["dropped_count"]) == (6, 4, 2)
    assert (report["without_text_count"], report["pairs_reported"]) == (2, 1)
    assert report["duplicates"][0]["kept_id"] == place
    assert report["duplicates"][0]["similarity"] >= 0.92
    # what was embedded with is said, as it is not what was asked for
    assert report["embedding_model"] == "local/wordllama"
    assert report["embedding_model_asked_for"] == "sentence_transformers/all-MiniLM-L6-v2"


def test_blocks_make_no_difference(monkeypatch):
    rows = [
        {"text": text} for text in ("one cat", "two dogs bark", "one cat", "a red house", "two dogs bark")
    ]
    whole = SemanticDedupPostProcessor(similarity_threshold=0.99).process(rows)
    assert [row["text"] for row in whole] == ["one cat", "two dogs bark", "a red house"]
    monkeypatch.setattr("karat.graph._postprocess.BLOCK", 2)
    assert SemanticDedupPostProcessor(similarity_threshold=0.99).process(rows) == whole
    assert SemanticDedupPostProcessor().process([]) == []


@pytest.mark.parametrize(
    "params",
    [
        {"keep": "frist"},
        {"dedup_mode": "all_pears"},
        {"similarity_threshold": 90},
        {"embedding_backend": "word2vec"},
    ],
)
def test_wrong_parameters_are_reported(params, refuses):
    with refuses(RequestError):
        SemanticDedupPostProcessor(**params)


def test_wrong_parameters_are_reported_before_the_run_with_their_line(project, refuses):
    project.write("t/graph_config.yaml", TASK.replace("KEEP", "frist"))
    with refuses(ConfigError):
        load_task("t")
