"""evaluators, models and doctor: what there is, and what works here."""

from karat.evaluators import evaluators
from karat.models.providers._presets import PRESETS


def test_evaluators_are_listed(karat):
    listed = karat("evaluators", "--json").json["evaluators"]
    names = [each["name"] for each in listed]
    assert set(evaluators.list()) <= set(names)
    assert "unit:exact_match" in names
    assert all(each["description"] for each in listed)
    assert "contains" in karat("evaluators").out


def test_one_evaluator_is_explained(karat, says):
    said = karat("evaluators", "contains")
    assert "substring" in said.out
    assert "case_sensitive  false" in said.out
    assert "example" in said.out
    assert karat("evaluators", "contains", "--json").json["params"]["mode"]["default"] == "all"
    assert "unit:fuzzy_match" in karat("evaluators", "unit:fuzzy_match").out
    wrong = karat("evaluators", "containz")
    assert wrong.code == 2
    says(wrong.err)


def test_every_evaluator_can_be_explained(karat):
    for name in evaluators.list():
        assert karat("evaluators", name).code == 0


def test_models_are_listed_with_what_they_need(karat):
    said = karat("models")
    assert said.code == 0
    assert "OPENAI_API_KEY" in said.out
    listed = karat("models", "--json").json
    specs = {each["spec"] for each in listed["models"]}
    assert "local/smollm2-135m" in specs
    for preset in PRESETS:
        assert f"{preset.name}/" in said.out
        assert any(spec.startswith(f"{preset.name}/") for spec in specs)


def test_a_model_that_does_not_answer_is_reported(karat):
    said = karat("models", "--check", "nobody@http://127.0.0.1:9/v1", "--json", "--quiet")
    assert said.code == 1
    assert said.json["checks"][0]["ok"] is False
    assert said.json["checks"][0]["error"]


def test_the_cache_is_reported_and_cleared(karat):
    assert karat("models", "cache", "stats", "--json").json["entries"] == 0
    assert "0 replies" in karat("models", "cache", "stats").out
    assert karat("models", "cache", "clear", "--older-than", 1, "--json").json == {"cleared": 0}


def test_pull_of_an_unknown_model(karat, says):
    said = karat("models", "pull", "smollm2")
    assert said.code == 2
    says(said.err)


def test_doctor(karat, project, says):
    said = karat("doctor")
    assert said.code == 0
    lines = [" ".join(line.split()) for line in said.out.splitlines()]  # widths depend on what is installed
    says(*[line for line in lines if "karat.db" in line])
    for extra in ("parquet", "dataframes", "agentevals", "mem0", "langmem", "graphiti"):
        assert any(f" extra {extra} " in line for line in lines)
    karat("run", "experiment.yaml")
    document = karat("doctor", "--json").json
    assert document["ok"] is True
    assert "1 run," in next(check["found"] for check in document["checks"] if check["what"] == "store")


def test_doctor_finds_a_broken_store_and_shows_no_secret(karat, folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1234567890")
    (folder / "karat.db").write_bytes(b"not a database" * 20)
    said = karat("doctor", "--json")
    assert said.code == 1
    assert said.json["ok"] is False
    assert said.json["variables"] == {"KARAT_CACHE": "set", "OPENAI_API_KEY": "set"}
    assert "canary" not in said.out


def test_doctor_changes_nothing_in_a_database(karat, postgres_url):
    import psycopg

    assert karat("doctor", "--store", postgres_url).code == 0
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regclass('karat_schema')").fetchone() == (None,)


def test_a_check_of_what_names_no_model_asks_nothing(karat):
    for spec in ("nope", "opnai/x", "local/nope"):
        said = karat("models", "--check", spec)
        assert (said.code, said.out) == (2, "")
    for spec in ("x@http://user:canary-key@127.0.0.1:1/v1", "x@http://127.0.0.1:1/v1?key=canary-key"):
        said = karat("models", "--check", spec)
        assert said.code == 2
        assert "canary-key" not in said.out + said.err
