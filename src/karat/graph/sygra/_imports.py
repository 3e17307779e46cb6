"""An import hook for the Python files of graph tasks, active once a graph task is loaded.

It does two things. It makes `tasks` a package over all folders of that name: in the task's tree, the working folder,
the import path and karat's shipped tasks. And it builds the modules in `TABLE` that are not installed
from karat's own parts. A file in the task's own tree with one of these names adds its own objects to them.
The modules of a tree are in a private package (see `_task_modules`), so that two trees share none.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from karat.registry import PRIVATE, load_file

# One table: names that tasks written for SyGra use, and the parts of karat they mean.

_METRICS = "karat.graph.metrics"
_UNIT_METRICS = "karat.graph.metrics._unit_metrics"
_AGGREGATOR_METRICS = "karat.graph.metrics._aggregator_metrics"
_FOR_SYGRA = "karat.graph.sygra._functions"
_FUNCTIONS = "karat.graph._functions"
_STATE = "karat.graph._state"
_TRANSFORM = "karat.datasets.transformations"
_UNIT_THEIRS = "sygra.core.eval.metrics.unit_metrics"
_AGGREGATOR_THEIRS = "sygra.core.eval.metrics.aggregator_metrics"
METRICS_THEIRS = (_UNIT_THEIRS, _AGGREGATOR_THEIRS)
"""Where tasks written for SyGra put metrics of their own, beside those of the table."""


def own_package(theirs: str) -> str:
    """The same package with karat's name in the place of SyGra's."""
    return "karat" + theirs.removeprefix("sygra")


def _metrics(package: str, ours: str, *modules: str) -> dict[str, dict[str, str]]:
    """A metric in a module of its name, and beside it the class of its configuration."""
    classes = {module: f"{module.title().replace('_', '')}Metric" for module in modules}
    return {f"{package}.{m}": {name: ours, f"{name}Config": _FOR_SYGRA} for m, name in classes.items()}


TABLE: dict[str, dict[str, str]] = {
    "tasks.eval.utils": {
        "UnitMetrics": "karat.graph.metrics._unit",
        "MetricCollatorPostProcessor": "karat.graph.metrics._collator",
        "parse_response_as_json": _FOR_SYGRA,
    },
    f"{_UNIT_THEIRS}.base_unit_metric": {"BaseUnitMetric": _METRICS},
    f"{_UNIT_THEIRS}.unit_metric_registry": {"UnitMetricRegistry": _METRICS, "unit_metric": _METRICS},
    f"{_UNIT_THEIRS}.unit_metric_result": {"UnitMetricResult": _METRICS},
    "sygra.core.eval.metrics.base_metric_metadata": {"BaseMetricMetadata=MetricMetadata": _METRICS},
    f"{_AGGREGATOR_THEIRS}.base_aggregator_metric": {"BaseAggregatorMetric": _METRICS},
    f"{_AGGREGATOR_THEIRS}.aggregator_metric_registry": {
        "AggregatorMetricRegistry": _METRICS,
        "aggregator_metric": _METRICS,
    },
    **_metrics(
        _UNIT_THEIRS,
        _UNIT_METRICS,
        "exact_match",
        "fuzzy_match",
        "action_within_bbox",
        "typed_value_match",
        "scroll_direction",
        "scroll_amount",
    ),
    **_metrics(
        _AGGREGATOR_THEIRS,
        _AGGREGATOR_METRICS,
        "precision",
        "recall",
        "f1_score",
        "pass_at_k",
        "step_efficiency",
    ),
    f"{_AGGREGATOR_THEIRS}.accuracy": {"AccuracyMetric": _AGGREGATOR_METRICS},
    f"{_AGGREGATOR_THEIRS}.pass_power_k": {"PassPowerKMetric=PassHatKMetric": _AGGREGATOR_METRICS},
    "sygra.core.base_task_executor": {
        "BaseTaskExecutor": _FOR_SYGRA,
        "DefaultTaskExecutor=BaseTaskExecutor": _FOR_SYGRA,
    },
    "sygra.core.models.structured_output.schemas_factory": {"SimpleResponse": "karat.graph.sygra._functions"},
    "sygra.core.graph.graph_postprocessor": {
        "GraphPostProcessor": "karat.graph._postprocess",
        "SemanticDedupPostProcessor": "karat.graph._postprocess",
    },
    "sygra.core.state": {"SygraState": _STATE},
    "sygra.core.graph.sygra_state": {"SygraState": _STATE},
    "sygra.core.graph.sygra_message": {"SygraMessage": _STATE},
    "sygra.core.graph.functions.lambda_function": {
        "LambdaFunction": _FUNCTIONS,
        "AsyncLambdaFunction": _FUNCTIONS,
    },
    "sygra.core.graph.functions.node_processor": {
        "NodePreProcessor": _FUNCTIONS,
        "NodePostProcessor": _FUNCTIONS,
        "NodePostProcessorWithState": _FUNCTIONS,
    },
    "sygra.core.graph.functions.edge_condition": {"EdgeCondition": _FUNCTIONS},
    "sygra.processors.output_record_generator": {"BaseOutputGenerator": "karat.graph._output"},
    "sygra.processors.data_transform": {
        "DataTransform": _TRANSFORM,
        "RenameFieldsTransform": _TRANSFORM,
        "AddNewFieldTransform": _TRANSFORM,
        "AddRetryFieldsTransform": _TRANSFORM,
        "SkipFieldsTransform": _TRANSFORM,
        "SkipRecords": _TRANSFORM,
        "CombineRecords": _TRANSFORM,
        "CreateImageUrlTransform": "karat.datasets.transformations",
        "CreateAudioUrlTransform": "karat.datasets.transformations",
    },
    "sygra.logger.logger_config": {"logger": _FOR_SYGRA},
    "sygra.utils.constants": {
        "SYGRA_START": _FOR_SYGRA,
        "SYGRA_END": _FOR_SYGRA,
        "START": _STATE,
        "END": _STATE,
        "VAR_CHAT_HISTORY=CHAT_HISTORY": _STATE,
    },
    "sygra.utils.utils": {
        "get_func_from_str": _FOR_SYGRA,
        "load_json_file": _FOR_SYGRA,
        "load_jsonl_file": _FOR_SYGRA,
        "load_yaml_file": _FOR_SYGRA,
        "extract_and_load_json": _FOR_SYGRA,
        "convert_messages_from_langchain_to_chat_format": _FOR_SYGRA,
        "convert_messages_from_chat_format_to_langchain": _FOR_SYGRA,
        "current_task=CURRENT_TASK": _FOR_SYGRA,
        "get_graph_properties": _FOR_SYGRA,
        "get_graph_property": _FOR_SYGRA,
        "get_file_in_task_dir": _FOR_SYGRA,
    },
    "langgraph.graph": {
        "START=SYGRA_START": _FOR_SYGRA,
        "END=SYGRA_END": _FOR_SYGRA,
    },
    "langchain_core.messages": {
        "BaseMessage=Message": _STATE,
        "AIMessage": _FOR_SYGRA,
        "HumanMessage": _FOR_SYGRA,
        "SystemMessage": _FOR_SYGRA,
    },
    "langchain_core.tools": {"tool": _FOR_SYGRA},
}
"""Module → its names → karat's module. `theirs=ours` where the name differs too."""


def is_installed(package: str) -> bool:
    """Whether a package of this name is installed; it is then left alone, and so are its names.

    A folder of that name in the working folder, such as that of a clone of SyGra, is not installed, nor is one
    elsewhere on the import path that has no `__init__.py`.
    """
    return _is_installed(package, os.getcwd())


@functools.cache
def _is_installed(package: str, folder: str) -> bool:
    here = os.path.realpath(folder)
    places = [entry for entry in sys.path if entry and os.path.realpath(entry) != here]
    try:
        spec = PathFinder.find_spec(package, places)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def stands_in(module: str) -> bool:
    """Whether the table's word counts for a module: `tasks.eval.utils` is part of sygra's own tree."""
    package = module.partition(".")[0]
    return not is_installed("sygra" if package == "tasks" else package)


def own_name(dotted: str) -> str | None:
    """karat's own dotted name for one of theirs; None where the table has none or theirs is installed."""
    module, _, name = dotted.rpartition(".")
    if module not in TABLE or not stands_in(module):
        return None
    for entry, ours in TABLE.get(module, {}).items():
        theirs, _, other = entry.partition("=")
        if theirs == name:
            return f"{ours}.{other or name}"
    return None


PACKAGES = {name.partition(".")[0] for name in TABLE}
SHIPPED = Path(__file__).resolve().parents[2] / "shipped"


def unless_installed(name: str) -> str | None:
    """The name, if a module of the table or a package that such modules are in may have it."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    return name if name == "tasks" or stands_in(name) else None


def without_karat(name: str) -> str | None:
    """The table's name for a module under `karat.core`."""
    return f"sygra{name.removeprefix('karat')}" if name.startswith("karat.core.") else None


class TableFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the table, and the packages they are in.

    `theirs` gives the name that the table has for a module, or None for a module that is not this finder's. `root` is
    the folder whose files are looked at first, and `load` imports a file that has the name of a module of the table.
    """

    def __init__(
        self,
        theirs: Callable[[str], str | None] = unless_installed,
        root: Path | None = None,
        load: Callable[[Path], ModuleType] = load_file,
    ) -> None:
        self._theirs, self._root, self._load = theirs, root, load

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        theirs = self._theirs(fullname)
        if theirs is None:
            return None
        # the folders inside of `tasks` are found as usual; of the other packages only what the table lacks is
        inside = theirs == "tasks" or (
            not theirs.startswith("tasks.") and any(name.startswith(f"{theirs}.") for name in TABLE)
        )
        if not inside and theirs not in TABLE:
            return None
        origin = None if inside else "karat"  # as of a package that is a mere folder
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=origin, is_package=inside)
        if inside:  # what the table lacks may be in a clone of SyGra, or beside the task
            spec.submodule_search_locations = _Folders(fullname, self._root)  # type: ignore[assignment]  # is iterated only
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Names of karat's own parts, under the names that tasks written for SyGra import."
        asked_anew: dict[str, tuple[ModuleType, str]] = {}
        for entry, ours in TABLE.get(self._theirs(module.__name__) or "", {}).items():
            theirs, _, other = entry.partition("=")
            part = importlib.import_module(ours)
            if (name := other or theirs) in vars(part):
                setattr(module, theirs, getattr(part, name))
            else:  # the part decides when it is asked
                asked_anew[theirs] = (part, name)
        file = _file_of(module.__name__)
        if file is not None or asked_anew:
            module.__getattr__ = functools.partial(self._dynamic_member, asked_anew, file)  # type: ignore[method-assign]  # PEP 562

    def _dynamic_member(
        self, asked_anew: dict[str, tuple[ModuleType, str]], file: Path | None, name: str
    ) -> Any:
        """What changes from one asking to the next, and what the file has beside the names that are karat's."""
        if name in asked_anew:
            part, ours = asked_anew[name]
            return getattr(part, ours)
        if file is None or name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._load(file), name)
        except AttributeError:
            raise AttributeError(f"{file} has no {name!r}") from None


class _Folders:
    """The folders with a package's name, as they are now: beside the task, where karat runs, on the import path."""

    def __init__(self, name: str, root: Path | None) -> None:
        self._steps = name.split(".")
        if name.startswith(PRIVATE):
            del self._steps[0]
        self._root = root

    def __iter__(self) -> Iterator[str]:
        roots = [self._root or Path.cwd(), Path.cwd(), *(Path(entry or ".") for entry in sys.path), SHIPPED]
        folders = [root.resolve().joinpath(*self._steps) for root in roots]
        return iter([str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()])


def _file_of(name: str) -> Path | None:
    """The file that the task's own tree has under a name of the table."""
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else ()
    return next((file for folder in folders if (file := Path(folder) / f"{last}.py").is_file()), None)


_table = TableFinder()


def task_imports() -> None:
    """Make the names of the table importable."""
    if _table not in sys.meta_path:
        sys.meta_path.insert(0, _table)  # before a clone of SyGra in the working folder is found
    importlib.invalidate_caches()
