"""Fingerprints, identities, reuse keys, and the table of cases of the design, row by row."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import importlib.machinery
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import keys
from karat.errors import CodeChanged, StoreBusy, UnsupportedType
from karat.keys import (
    Holder,
    Previous,
    Wanted,
    canonical,
    code_fingerprint,
    content_hash,
    decide,
    output_item,
    result_item,
    reuse_key,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# ------------------------------------------------------------------ content


@given(st.dictionaries(st.text(), json_values, max_size=6))
def test_order_of_keys_does_not_matter(value):
    assert content_hash(value) == content_hash(dict(reversed(value.items())))


@given(json_values, json_values)
def test_different_content_has_different_hashes(a, b):
    assert (content_hash(a) == content_hash(b)) == (canonical(a) == canonical(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (1, "1"),
        (None, "null"),
        ([1, 2], [2, 1]),
        ("é", "e\u0301"),
        ("", None),
        ([], {}),
    ],
)
def test_content_hashes_are_exact(a, b):
    assert content_hash({"value": a}) != content_hash({"value": b})


def test_hashes_are_stable_across_processes_and_versions():
    assert content_hash({"b": [1, 2.5, None], "a": "é"}) == "3276393bf8a5a8df0e5ddcb8f78302ef"
    program = "from karat.keys import content_hash; print(content_hash({'b': [1, 2.5, None], 'a': 'é'}))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == content_hash({"a": "é", "b": [1, 2.5, None]})


@pytest.mark.parametrize("value", [float("nan"), {"a": [1, float("inf")]}, object(), {"f": print}, "\ud800"])
def test_unsupported_values_are_refused(value):
    with pytest.raises(UnsupportedType):
        content_hash(value)


def test_written_records_can_be_read_again():
    import msgspec

    from karat.serialization import encode

    for depth in (*range(300, 1100, 5), 5_000, 20_000, 100_000):  # how deep is too deep depends on Python
        value = []
        for _ in range(depth):
            value = [value]
        try:
            data = encode({"outcome": value})
        except UnsupportedType:
            break
        msgspec.json.decode(data)
    else:
        pytest.fail("nothing was too deep")


def test_dataclasses_and_bytes_have_hashes():
    @dataclasses.dataclass
    class Point:
        x: int
        y: int

    assert content_hash(Point(1, 2)) == content_hash({"x": 1, "y": 2})
    assert content_hash(b"a") != content_hash(b"b")


# ------------------------------------------------------------------ identities and reuse keys


@given(st.integers(1, 99), st.text(), st.integers(1, 99), st.text())
def test_identities_of_outputs_do_not_collide(attempt, unit, other_attempt, other_unit):
    same = (attempt, unit) == (other_attempt, other_unit)
    assert (output_item(attempt, unit) == output_item(other_attempt, other_unit)) == same


def test_identities_of_results_tell_evaluator_pair_order_attempt_and_unit_apart():
    items = {
        result_item(evaluator, runs, attempt, unit)
        for evaluator in (0, 1)
        for runs in ((0,), (0, 1), (1, 0), (0, 1, 2))
        for attempt in (1, 2, 11)
        for unit in ("", "session/S01", "1", "0.1")
    }
    assert len(items) == 2 * 4 * 3 * 4


def test_reuse_key_depends_on_evaluator_example_outputs_and_their_order():
    keys = {
        reuse_key(e, x, o)
        for e in ("e1", "e2")
        for x in ("x1", "x2")
        for o in (["a"], ["b"], ["a", "b"], ["b", "a"])
    }
    assert len(keys) == 16


# ------------------------------------------------------------------ code


def write_module(folder, name, source):
    (folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def load(name):
        for loaded in set(sys.modules) - before:
            file = getattr(sys.modules[loaded], "__file__", "") or ""
            if file.startswith(str(tmp_path)):
                del sys.modules[loaded]
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        return importlib.import_module(name)

    yield tmp_path, load
    for loaded in set(sys.modules) - before:
        del sys.modules[loaded]


def test_code_covers_the_module_and_the_project_modules_it_imports(project):
    folder, load = project
    write_module(folder, "wording_k", "def clean(text):\n    return text.strip()\n")
    write_module(
        folder,
        "answering_k",
        "import json\nfrom wording_k import clean\ndef answer(q):\n    return clean(q)\n",
    )
    first = code_fingerprint(load("answering_k").answer)
    assert first == code_fingerprint(load("answering_k").answer)
    write_module(folder, "wording_k", "def clean(text):\n    return text.strip().lower()\n")
    assert code_fingerprint(load("answering_k").answer) != first


def test_comments_and_blank_lines_are_not_code_and_quoted_text_is(project):
    folder, load = project
    plain = 'END = "\x0c\u2028"\ndef answer(q):\n    return f"""{q}\n\n# one"""\n'
    write_module(folder, "remarks_k", plain)
    first = code_fingerprint(load("remarks_k").answer)
    write_module(folder, "remarks_k", "# a remark\n\n\n" + plain.replace("(q):", "(q):  # the question\n"))
    assert code_fingerprint(load("remarks_k").answer) == first
    for changed in (plain.replace("# one", "# two"), plain.replace("\n\n#", "\n#")):
        write_module(folder, "remarks_k", changed)
        assert code_fingerprint(load("remarks_k").answer) != first


def test_code_covers_modules_of_which_only_constants_are_used(project):
    folder, load = project
    write_module(folder, "prompts_k", "PROMPT = 'Answer in one word.'\n")
    write_module(
        folder,
        "asking_k",
        """
        try:
            from prompts_k import PROMPT
        except ImportError:
            PROMPT = ""
        def ask(q):
            import lazily_k
            return PROMPT + q
        """,
    )
    write_module(folder, "lazily_k", "")
    first = code_fingerprint(load("asking_k").ask)
    asking = load("asking_k")
    asking.ask("?")
    assert code_fingerprint(asking.ask) == first, "what a call imports does not change what it is"
    write_module(folder, "prompts_k", "PROMPT = 'Answer in two words.'\n")
    assert code_fingerprint(load("asking_k").ask) != first


def test_code_covers_what_functions_import_when_they_are_called(project):
    folder, load = project
    package = folder / "lazy_package_k"
    package.mkdir()
    (package / "__init__.py").write_text("")
    write_module(package, "wording", "def clean(q):\n    from . import words\n    return words.WORD\n")
    write_module(
        folder, "calls_k", "def ask(q):\n    from lazy_package_k.wording import clean\n    return clean(q)\n"
    )
    seen = set()
    for word in ("'a'", "'b'"):
        write_module(package, "words", f"WORD = {word}\n")
        calls = load("calls_k")
        before = code_fingerprint(calls.ask)
        calls.ask("?")
        assert code_fingerprint(calls.ask) == before, "a call does not change what it is"
        seen.add(before)
    assert len(seen) == 2


def test_a_relative_import_outside_a_package_is_not_a_project_module(project):
    folder, load = project
    write_module(
        folder,
        "alone_k",
        "def ask(q):\n    from . import words\n    from .words import WORD\n    return WORD\n",
    )
    assert code_fingerprint(load("alone_k").ask)


def test_code_covers_later_imports_from_folders_without_an_init_file(project):
    folder, load = project
    inner = folder / "outer_k" / "middle_k" / "inner_k"
    inner.mkdir(parents=True)
    write_module(
        folder, "nested_k", "def ask(q):\n    from outer_k.middle_k.inner_k import words\n    return words\n"
    )
    seen = set()
    for word in ("'a'", "'b'"):
        write_module(inner, "words", f"WORD = {word}\n")
        seen.add(code_fingerprint(load("nested_k").ask))
    assert len(seen) == 2


@pytest.mark.parametrize("folder_name", ["site-packages", "dist-packages"])
def test_installed_packages_are_not_project_code_in_any_folder(project, monkeypatch, folder_name):
    """Those of the user or of the system do not lie where the interpreter installs packages."""
    folder, load = project
    elsewhere = folder / "lib" / folder_name
    elsewhere.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(elsewhere))
    write_module(
        folder,
        "uses_k",
        "import installed_now_k\ndef ask(q):\n    import installed_later_k\n    return q\n",
    )
    seen = set()
    for number in (1, 2):
        for name in ("installed_now_k", "installed_later_k"):
            write_module(elsewhere, name, f"NUMBER = {number}\n")
        seen.add(code_fingerprint(load("uses_k").ask))
    assert len(seen) == 1


def test_a_later_import_is_found_as_an_import_would_find_it(project, monkeypatch):
    """A finder may answer for a package whose files lie in the project too, as karat does inside a clone of SyGra."""
    folder, load = project
    write_module(folder, "stands_in_k", "")
    write_module(folder, "uses_later_k", "def ask(q):\n    import stands_in_k\n    return q\n")
    task = load("uses_later_k").ask
    seen = [code_fingerprint(task)]

    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            return (
                importlib.machinery.ModuleSpec(name, None, origin="here") if name == "stands_in_k" else None
            )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    seen.append(code_fingerprint(task))
    write_module(folder, "stands_in_k", "X = 1\n")
    seen.append(code_fingerprint(task))
    assert seen[0] != seen[1] == seen[2]


def test_code_covers_functions_among_arguments_and_attributes(project):
    folder, load = project
    write_module(folder, "holding_k", "class Holder:\n    def __init__(self, f):\n        self.f = f\n")
    seen = set()
    for number in (1, 2):
        write_module(folder, "given_k", f"def given(x):\n    return {number}\n")
        given, holder = load("given_k").given, load("holding_k").Holder
        seen |= {code_fingerprint(functools.partial(holder, given)), code_fingerprint(holder(given))}
        seen.add(code_fingerprint(functools.partial(holder, f=functools.partial(given, x=1))))
    assert len(seen) == 6


def test_lambdas_of_one_line_are_different_code():
    first, second, again = (lambda x: x + 1, lambda x: x + 2, lambda x: x + 1)
    assert len({code_fingerprint(each) for each in (first, second, again)}) == 3
    assert code_fingerprint(first) == code_fingerprint(first)


def test_code_covers_relative_imports(project):
    folder, load = project
    package = folder / "package_k"
    package.mkdir()
    (package / "__init__.py").write_text("")
    write_module(package, "prompts", "PROMPT = 1\n")
    write_module(package, "asking", "from .prompts import PROMPT\ndef ask(q):\n    return PROMPT\n")
    first = code_fingerprint(load("package_k.asking").ask)
    write_module(package, "prompts", "PROMPT = 2\n")
    assert code_fingerprint(load("package_k.asking").ask) != first


def test_code_covers_json_closure_cells_defaults_and_partial_arguments():
    def make(factor):
        def scale(x):
            return x * factor

        return scale

    assert code_fingerprint(make(2)) == code_fingerprint(make(2))
    assert code_fingerprint(make(2)) != code_fingerprint(make(3))
    assert code_fingerprint(functools.partial(make, 2)) != code_fingerprint(functools.partial(make, 3))


def test_code_of_callable_objects_covers_their_attributes():
    class Prefix:
        def __init__(self, prefix):
            self.prefix = prefix

        def __call__(self, text):
            return self.prefix + text

    assert code_fingerprint(Prefix("a")) == code_fingerprint(Prefix("a"))
    assert code_fingerprint(Prefix("a")) != code_fingerprint(Prefix("b"))


def test_source_that_cannot_be_known_is_none_unless_a_version_is_declared():
    from_shell = eval("lambda text: text")
    assert code_fingerprint(from_shell) is None
    assert code_fingerprint(len) is None
    from_shell.version = "1"
    declared = code_fingerprint(from_shell)
    assert declared is not None
    from_shell.version = "2"
    assert code_fingerprint(from_shell) not in (None, declared)


# ------------------------------------------------------------------ the table of cases (docs/keys.md)

WANTED = Wanted(configuration="c", code="code 1")
UNFINISHED = Previous(id="run-1", code="code 1", replicate=1, finished=False)
FINISHED = Previous(id="run-1", code="code 1", replicate=1, finished=True)


def wanted(**changes):
    return Wanted(**{"configuration": "c", "code": "code 1", **changes})


def test_case_nothing_before():
    assert decide(WANTED, []).action == "create"


def test_case_unfinished_and_nothing_changed_continues():
    decision = decide(WANTED, [UNFINISHED])
    assert (decision.action, decision.id) == ("continue", "run-1")


def test_case_finished_is_returned_with_a_notice():
    decision = decide(WANTED, [FINISHED])
    assert (decision.action, decision.id) == ("return", "run-1")
    assert "already finished" in decision.why


def test_case_finished_with_failures_names_the_remedy(says):
    decision = decide(WANTED, [Previous("run-1", "code 1", 1, True, failed=3, total=4)])
    assert decision.action == "return"
    says(decision.why)


def test_case_new_makes_the_next_replicate():
    decision = decide(wanted(new=True), [FINISHED, Previous("run-2", "code 1", 2, True)])
    assert (decision.action, decision.replicate) == ("create", 3)


def test_case_code_changed_and_unfinished_is_refused():
    with pytest.raises(CodeChanged, match="accept_code_change=True"):
        decide(wanted(code="code 2"), [UNFINISHED])


def test_case_code_changed_unfinished_and_accepted_continues():
    assert decide(wanted(code="code 2", accept_code_change=True), [UNFINISHED]).action == "continue"


def test_case_code_that_was_accepted_continues_and_returns_the_run():
    accepted = msgspec.structs.replace(UNFINISHED, accepted=["code 2"])
    assert decide(wanted(code="code 2"), [accepted]).action == "continue"
    finished = msgspec.structs.replace(accepted, finished=True)
    for code in ("code 1", "code 2"):
        decision = decide(wanted(code=code), [finished])
        assert (decision.action, decision.id) == ("return", "run-1")
        assert "other code" not in decision.why
    with pytest.raises(CodeChanged):
        decide(wanted(code="code 3"), [accepted])
    assert decide(wanted(code="code 3"), [finished]).action == "create"


def test_case_code_changed_unfinished_and_new_creates():
    assert decide(wanted(code="code 2", new=True), [UNFINISHED]).replicate == 2


def test_case_code_changed_after_a_finished_run_is_another_run():
    decision = decide(wanted(code="code 2"), [FINISHED])
    assert (decision.action, decision.replicate) == ("create", 1), "its calls are not made again"
    latest = Previous("run-2", "code 2", 1, True, created=1.0)
    for previous in ([FINISHED, latest], [latest, FINISHED]):
        assert decide(wanted(code="code 2"), previous).id == "run-2"


def test_case_code_that_was_changed_back_returns_its_own_run():
    other = Previous("run-2", "code 2", 1, True, created=1.0)
    decision = decide(WANTED, [FINISHED, other])
    assert (decision.action, decision.id) == ("return", "run-1")
    unfinished = msgspec.structs.replace(
        other, finished=False, holder=Holder("process 17 on box", "12:00:01")
    )
    assert decide(WANTED, [FINISHED, unfinished]).id == "run-1", (
        "what other code left unfinished is not touched"
    )
    assert decide(wanted(new=True), [FINISHED, msgspec.structs.replace(other, replicate=2)]).replicate == 3


def test_case_accepted_code_change_of_a_finished_run_says_so(says):
    decision = decide(wanted(code="code 2", accept_code_change=True), [FINISHED])
    assert (decision.action, decision.id) == ("return", "run-1")
    says(decision.why)


@pytest.mark.parametrize("previous", [UNFINISHED, FINISHED])
def test_case_unknown_source_is_never_continued(previous):
    decision = decide(wanted(code=None), [previous])
    assert (decision.action, decision.replicate) == ("create", 2)
    assert "version=" in decision.why


def test_case_retry_failed_retries_only_when_something_failed():
    failed = Previous("run-1", "code 1", 1, True, failed=3)
    assert decide(wanted(retry_failed=True), [failed]).action == "retry"
    assert decide(wanted(retry_failed=True), [FINISHED]).action == "return"
    with pytest.raises(CodeChanged):
        decide(wanted(retry_failed=True, code="code 2"), [failed])
    assert (
        decide(wanted(retry_failed=True, code="code 2", accept_code_change=True), [failed]).action == "retry"
    )


def test_case_held_by_another_live_process_names_the_holder_and_the_time(refuses):
    held = Previous("run-1", "code 1", 1, False, holder=Holder("process 17 on box", "12:00:01"))
    with refuses(StoreBusy) as caught:
        decide(WANTED, [held])
    assert "process 17 on box since 12:00:01" in str(caught.value)
    assert decide(wanted(new=True), [held]).action == "create"


def test_case_only_the_latest_replicate_counts():
    decision = decide(WANTED, [Previous("run-1", "code 1", 1, False), Previous("run-2", "code 1", 2, True)])
    assert (decision.action, decision.id) == ("return", "run-2")


class Yields:
    """An object in a cycle whose finaliser lets another thread run."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def test_sources_are_parsed_in_many_threads_at_once(monkeypatch):
    monkeypatch.setattr(keys, "PARSE_ATTEMPTS", 1)
    source = "def f(x):\n    return [x + 1, {'a': (x, [y for y in range(3)])}]\n" * 40

    def parse(at: int) -> bool:
        Yields()
        return keys._parse(source) is not None

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(10)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(parse, range(60)))
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
