"""Where a store is: URLs, plain paths, the environment."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest

from karat.datasets import Dataset
from karat.errors import RequestError
from karat.store import Store, check_store, open_existing, open_store, safe_url, store_file
from tests.store.conftest import add_header


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KARAT_STORE", raising=False)


def test_without_a_url_it_is_a_file_in_the_working_folder(tmp_path: Path) -> None:
    with open_store() as store:
        assert store.url == "sqlite:///karat.db"
    assert (tmp_path / "karat.db").is_file()


def test_the_environment_names_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KARAT_STORE", f"sqlite:///{tmp_path}/other.db")
    open_store().close()
    assert (tmp_path / "other.db").is_file()


@pytest.mark.parametrize(
    "name", ["plain.db", "with space.db", "100%.db", "a?b#c.db", "ünï.db", "a%20b.db", "x;y&z=1"]
)
def test_any_path_and_the_url_of_what_it_opened(name: str, tmp_path: Path) -> None:
    for given in (name, tmp_path / name, str(tmp_path / name)):
        with open_store(given) as store:
            url = store.url
    assert {each.name for each in tmp_path.iterdir()} == {name}
    with open_store(url) as again:
        assert again.url == url
    assert {each.name for each in tmp_path.iterdir()} == {name}


def test_relative_and_absolute_urls(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    open_store("sqlite:///folder/relative.db").close()
    open_store(f"sqlite:///{tmp_path}/folder/absolute.db").close()
    open_store("sqlite://two-slashes.db").close()
    assert {each.name for each in tmp_path.rglob("*.db")} == {"relative.db", "absolute.db", "two-slashes.db"}


def test_a_path_that_begins_with_two_slashes(tmp_path: Path) -> None:
    with open_store(f"/{tmp_path}/karat.db") as store:
        number = add_header(store)
        store.backend.ensure_readable(number)
    with open_store(f"/{tmp_path}/karat.db", read_only=True) as store:
        assert store.backend.header(number) is not None


@pytest.mark.parametrize("name", [":memory:", "sqlite:///:memory:"])
def test_the_name_that_sqlite_has_for_memory_is_refused(name: str, refuses) -> None:
    with refuses(RequestError):
        open_store(name)


@pytest.mark.parametrize("path", ["a #x/k.db", "#x.db", "a;b/k.db"])
def test_a_number_sign_in_a_url_is_a_part_of_the_path(path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    with open_store(f"sqlite:///{path}") as store:
        url = store.url
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.db")] == [path]
    assert store_file(f"sqlite:///{path}") == Path(path), "the commands that only read look for the same file"
    open_existing(f"sqlite:///{path}").close()
    with open_store(url) as again:
        assert again.url == url


def test_how_much_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    for option, value in (
        ("", 1),
        ("?synchronous=normal", 1),
        ("?synchronous=full", 2),
        ("?synchronous=extra", 3),
    ):
        with open_store(f"sqlite:///karat.db{option}") as store:
            assert store.backend._read("PRAGMA synchronous") == [(value,)]  # type: ignore[attr-defined]  # of SQLite
            assert store.backend._read("PRAGMA journal_mode") == [("wal",)]  # type: ignore[attr-defined]  # of SQLite


def test_each_memory_store_is_its_own() -> None:
    with open_store("memory://") as one, open_store("memory://") as other:
        assert one.backend is not other.backend
        assert one.url == "memory://"
        assert not one.backend.shared


def test_a_store_is_closed_with_its_last_handle(tmp_path: Path) -> None:
    """Without the warning about a connection that ends open, which sqlite3 gives from Python 3.13 on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = open_store(tmp_path / "karat.db").datasets.put(Dataset.from_examples([(1,)]))
        assert [example.input for example in dataset] == [1]
        assert (tmp_path / "karat.db-wal").exists()
        del dataset
        gc.collect()
    assert [each.message for each in caught if "database" in str(each.message)] == []
    assert [each.name for each in tmp_path.iterdir()] == ["karat.db"]


def test_a_store_is_given_back_as_it_is() -> None:
    with open_store("memory://") as store:
        assert open_store(store) is store
        assert isinstance(store, Store)
        assert repr(store) == "<store memory://>"


@pytest.mark.parametrize(
    "url",
    [
        "sqlit:///karat.db",
        "mysql://user:secret@host/db",
        "mysql://host/db?password=secret",
        "sqlite://",
        "sqlite:///karat.db?mode=ro",
        "sqlite:///karat.db?synchronous=off",
    ],
)
def test_a_wrong_url_is_refused_with_the_right_form(url: str, refuses, tmp_path: Path) -> None:
    with refuses(RequestError) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [
        "host=db.example dbname=results password=s3cret",
        "password='s3 cr\\'et' host=db.example user=me",
        "HOST = db.example  PASSWORD = s3cret",
        "dbname=results sslpassword=s3cret passfile=/home/me/s3cret",
        "user=me password=s3\\ cret",
        "connect_timeout=10 host=db.example password=s3cret",
        "application_name=karat sslpassword=s3cret",
    ],
)
def test_connection_options_are_refused_without_their_secrets(given: str, tmp_path: Path) -> None:
    shown = safe_url(given)
    assert "s3" not in shown
    assert "cret" not in shown.replace("scram", "")
    with pytest.raises(RequestError) as caught:
        open_store(given)
    assert "postgresql://" in str(caught.value)
    assert "s3" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_an_equals_sign_is_a_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "a=b.db") as store:
        assert store.runs.list() == []
    assert (tmp_path / "a=b.db").exists()
    assert safe_url("sqlite:///a=b.db") == "sqlite:///a=b.db"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x",
        "sqlite:///",
        "nowhere/x.db",
        ".",
        "sqlite:///x.db?mode=ro",
        "notes.txt",
        "unwritable/x.db",
    ],
)
def test_a_store_that_cannot_be_used_is_found_without_making_it(url: str, tmp_path: Path, refuses) -> None:  # type: ignore[no-untyped-def]  # a fixture
    (tmp_path / "notes.txt").write_text(
        "no store, and longer than the shortest file that could be one\n" * 10
    )
    (tmp_path / "unwritable").mkdir(0o500)
    before = sorted(tmp_path.rglob("*"))
    if os.access(tmp_path / "unwritable", os.W_OK) and url.startswith("unwritable"):
        pytest.skip("this user may write everywhere")
    with refuses(RequestError):
        check_store(url)
    assert sorted(tmp_path.rglob("*")) == before


def test_checking_a_store_leaves_no_trace(tmp_path: Path, postgres_url: str, refuses) -> None:
    check_store("new.db")
    check_store("memory://")
    check_store(postgres_url)
    assert list(tmp_path.iterdir()) == []
    open_store("made.db").close()
    check_store("made.db")
    assert [each.name for each in tmp_path.iterdir()] == ["made.db"]
    with refuses(RequestError):
        open_store(postgres_url, read_only=True)


@pytest.mark.parametrize(
    "url",
    [
        "host=h port=1 password=canary",
        "user=u password='canary x' host=h",
        "dbname=postgresql://u:canary@h:1/db",
        "postgresql:/u:canary@h:1/db",
        "postgresql:u:canary@h:1/db",
        "postgresql//u:canary@h/db",
        "Postgres/u:canary@h/db",
    ],
)
def test_what_means_a_server_is_not_taken_for_a_path_and_shown(url: str, refuses) -> None:  # type: ignore[no-untyped-def]  # a fixture
    for use in (open_store, open_existing, store_file, check_store):
        with refuses(RequestError) as refused:
            use(url)
        assert "canary" not in str(refused.value)
    assert "canary" not in safe_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:k.db",
        "sqlite:/k.db",
        "file:k.db",
        "file:/tmp/k.db",
        "memory:",
        "postgresql:db",
        "sqlite:////",
        "sqlite:///k%00.db",
        "a\0b.db",
        "postgresql://host/a%00b",
    ],
)
def test_what_is_nearly_a_url_is_no_name_of_a_file(url: str, tmp_path: Path, refuses) -> None:
    for open in (open_store, check_store, open_existing):
        with refuses(RequestError):
            open(url)
    assert list(tmp_path.iterdir()) == []


def test_a_percent_sign_and_zeros_in_a_path_are_just_that(tmp_path: Path) -> None:
    open_store("k%00.db").close()
    open_store("./sqlite:k.db").close()
    assert {each.name for each in tmp_path.iterdir()} == {"k%00.db", "sqlite:k.db"}
