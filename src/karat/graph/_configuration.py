"""The whole of a graph task's file, read and checked before the first record: every mistake at once, with its line."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from karat import paths
from karat.datasets import (
    JOINER,
    Dataset,
    file_rows,
    kind_of_source,
    rows_dataset,
    source_file,
    source_problems,
    source_rows,
)
from karat.documents import Document, Place, read_document
from karat.errors import ConfigError, RequestError, did_you_mean, near_file, nearest, wording
from karat.graph._functions import Applied
from karat.graph._lookup import TaskPlace, find_task
from karat.graph._output import OutputMap, read_output
from karat.graph._plan import MOST_VISITS, Edges, GraphPlan, check_edges, read_edges
from karat.graph._postprocess import Processor, read_processors
from karat.graph._reading import Problems, Section
from karat.graph._schemas import read_schema_config
from karat.graph._state import START
from karat.graph.metrics._collator import idle_key
from karat.graph.metrics._unit import UnitMetrics
from karat.graph.nodes import KINDS, build_node
from karat.graph.nodes._base import Building, Node, named

# The data of a graph task: `data_config`, checked with its lines and made into a dataset.

ELSEWHERE = {"hf": "the Hugging Face hub", "servicenow": "ServiceNow"}
"""Sinks of SyGra that are no files."""
SINKS = ("json", "jsonl", "csv", "parquet", "disk")
SINK_KEYS = ("type", "file_path", "file_format", "file_type", "encoding", "alias")


class Sink:
    """A file that gets the output records too."""

    def __init__(self, path: Path, format: str) -> None:
        self.path = path
        self.format = format


def check_data(section: Section, place: TaskPlace) -> list[Sink]:
    """Report the errors of a `data_config` and return its sinks."""
    section.known(("source", "sink", "id_column", "examples", "resumable"))
    section.without_effect("resumable", instead="a repeated command resumes an unfinished run")
    section.text("id_column")
    source = _source(section.given)
    if source is not None:
        steps = ("source",) if "source" in section else ()
        for inside, sentence in source_problems(source, place.load):
            section.problem(sentence, *steps, *inside)
    sinks = section.given.get("sink")
    if sinks is None:
        return []
    entries = section.sections("sink") if isinstance(sinks, list) else [section.section("sink")]
    return [sink for entry in entries if (sink := _sink(entry)) is not None]


def _sink(section: Section) -> Sink | None:
    kind = section.text("type", "disk") or "disk"
    if kind in ELSEWHERE:
        section.problem(
            f"not supported: writing to {ELSEWHERE[kind]}; leave the sink out and upload the output file",
            "type",
        )
        return None
    section.known(SINK_KEYS)
    section.without_effect("alias", "encoding", instead="every sink gets all records, in UTF-8")
    if kind not in SINKS:
        section.problem(f"must be one of {', '.join(SINKS)}, not {kind!r}", "type")
        return None
    path = section.text("file_path", needed=True)
    if not path:
        if path is not None:
            section.problem("is empty: give the path of a file", "file_path")
        return None
    form = section.text("file_format") or section.text("file_type") or kind
    if form == "disk":
        form = Path(path).suffix.lstrip(".")
    if form not in SINKS[:-1]:
        section.problem(f"must be one of {', '.join(SINKS[:-1])}, not {form!r}", "file_path")
        return None
    return Sink(Path(path).expanduser(), form)


def _source(data: dict[str, Any]) -> Any:
    if data.get("source") is not None:
        return data["source"]
    return {"type": "examples", "examples": data["examples"]} if data.get("examples") is not None else None


def task_dataset(
    data: dict[str, Any], place: TaskPlace, golden: list[str], *, file: str | None, count: int | None
) -> Dataset:
    """The dataset of a task: from its source, from a file that replaces the source, or `count` empty records."""
    name = place.name
    id_column = data.get("id_column")
    if file is not None:
        path = Path(file)
        return rows_dataset(
            file_rows(path),
            name=path.stem,
            id_column=id_column,
            golden=golden,
            metadata={"source": path.name},
        )
    source = _source(data)
    if source is None:
        if count is None:
            raise RequestError(
                f"task {name} has no data source: set {wording('--num_records', 'num_records')},"
                f" or give {wording('a file with --data FILE', 'a dataset')}"
            )
        rows: Iterator[dict[str, Any]] = ({"id": str(number)} for number in range(1, count + 1))
        return rows_dataset(rows, name=name, id_column=None, golden=golden, metadata={})
    metadata: dict[str, Any] = {"data_config": data}
    pinned = _pin_revisions(source, metadata)
    rows = source_rows(pinned, place.folder, place.load)
    if isinstance(source, list) and id_column and JOINER not in id_column:
        primary = next((each["alias"] for each in source if each["join_type"] == "primary"), None)
        id_column = f"{primary}{JOINER}{id_column}" if primary else id_column
    # the ids of one source tell nothing of another's
    several = isinstance(source, list) and any(each["join_type"] in ("cross", "vstack") for each in source)
    return rows_dataset(
        rows, name=name, id_column=id_column, golden=golden, metadata=metadata, repeats=several
    )


def missing_files(data: dict[str, Any], place: TaskPlace) -> list[tuple[Place, str]]:
    """The files of a `data_config` that are not there: where they are named, and a sentence each."""
    source = _source(data)
    several = isinstance(source, list)
    found: list[tuple[Place, str]] = []
    for at, each in enumerate(source if several else [source]):
        if not isinstance(each, Mapping) or kind_of_source(each) != "disk":
            continue
        if not isinstance(each.get("file_path"), str) or not each["file_path"]:
            continue
        path = source_file(each["file_path"], place.folder)
        if not os.path.exists(path):
            near = near_file(path, _files_beside(path))
            steps: Place = ("data_config", "source", *([at] if several else []), "file_path")
            found.append((steps, f"{path} does not exist{near}"))
    return found


def _files_beside(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []


def local_rows(data: dict[str, Any], place: TaskPlace, file: str | None) -> Dataset | None:
    """The data of a task where it is at hand, to look at; None where it is elsewhere."""
    source = _source(data)
    sources = source if isinstance(source, list) else [source]
    if file is None and any(each is None or kind_of_source(each) == "hf" for each in sources):
        return None
    return task_dataset(data, place, [], file=file, count=None)


def _pin_revisions(source: Any, metadata: dict[str, Any]) -> Any:
    """The source with the revisions of hub datasets as they are now, which are kept with the dataset."""
    if isinstance(source, list):
        return [_pin_revisions(each, metadata) for each in source]
    if kind_of_source(source) != "hf":
        return source
    from karat.datasets import resolved_revision

    revision = resolved_revision(source)
    if revision is None:
        return source
    revisions = metadata.setdefault("revisions", {})
    name = source["repo_id"]
    if revisions.get(name, revision) != revision:  # another source has another revision of it
        name = f"{name}@{source.get('revision') or 'main'}"
    revisions[name] = revision
    return {**source, "revision": revision}


TOP = ("data_config", "graph_config", "output_config", "schema_config", "graph_post_process", "description")
WITHOUT_EFFECT = ("data_config", "graph_post_process", "description")
"""What the outputs do not depend on: the dataset has an identity of its own, and reports come after."""
PROPERTIES = (
    "chat_conversation", "chat_history_window_size", "retry_chat_injection", "max_iterations", "recursion_limit",
)  # fmt: skip


@dataclass
class Configuration:
    """A parsed task file. `problems` is set when it was parsed only to collect further errors."""

    place: TaskPlace
    document: Document
    problems: Problems
    plan: GraphPlan
    output: OutputMap
    processors: list[Processor]
    data: dict[str, Any]
    """`data_config`, as it stands."""
    sinks: list[Sink]
    nodes_at: Place
    """Where the nodes stand in the file."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """The parts of the file that the outputs depend on."""

    @property
    def node_names(self) -> list[str]:
        """Return the names of the nodes."""
        return list(self.plan.nodes)


Fields = Callable[[dict[str, Any]], list[str] | None]
"""The fields that records will have, from a `data_config` without mistakes or none; None where it is not known."""


def read_configuration(
    place: TaskPlace,
    *,
    model: str | None = None,
    unnamed: str | None = None,
    fields: Fields | None = None,
    own_data: bool = True,
) -> Configuration:
    """Read and check a task's file. `model` replaces every model that it names, `unnamed` is used where it names none.

    If the file has errors, the fields that its prompts and reports use are checked against `fields` as well, and so is
    the existence of its data file (unless other data are used), so that all errors are reported together.
    """
    document = read_document(place.file)
    return _read(document, Building(place, model=model, unnamed=unnamed), fields, own_data)


def _read(
    document: Document, building: Building, fields: Fields | None = None, own_data: bool = False
) -> Configuration:
    problems = Problems(document)
    value = jsonable(document.value)
    top = Section(value, (), problems)
    graph = _graph(top)
    place = building.place
    try:
        place.metrics()
    except RequestError as error:
        problems.caught((), error)
    building = replace(
        building,
        properties=_properties(graph),
        asked=_requested_fields(top),
        within=(*building.within, str(place.file)),
    )
    schema = read_schema_config(top.section("schema_config"), place)
    output = read_output(top.section("output_config"), value, place, schema)
    before = len(problems)
    sinks = check_data(top.section("data_config"), place)
    data = top.mapping("data_config") if len(problems) == before else {}
    missing = "graph_config" not in top and not isinstance(graph, _Loose)  # reported already
    plan = None if missing else _plan(graph, building)
    processors = read_processors(top, place)
    _check_fields(output, processors)
    if problems and own_data:
        for where, sentence in missing_files(top.mapping("data_config"), place):
            problems.add(where, sentence)
    if plan is not None:
        _check_keys(plan, output, processors)
    if plan is None:
        problems.raise_all()
    assert plan is not None, "a graph that cannot be built has reported its problems"
    outcome = {key: value for key, value in top.given.items() if key not in WITHOUT_EFFECT}
    at: Place = () if isinstance(graph, _Loose) else ("graph_config", "nodes")
    read = Configuration(place, document, problems, plan, output, processors, data, sinks, at, outcome)
    if output.is_whole_state:  # an output map has its fields in every record
        wanted = {name for processor in processors for _, name in processor.wants}
        wanted.update(_unit_metric_fields(read))
        output.owed = [key for key in plan.output_keys() if key in wanted]
    if problems and fields is not None and (known := fields(data)) is not None:
        _tell_unknown(read, known, problems)
    problems.raise_all()
    return read


class _Outline(Building):
    """Build a graph without importing the functions that its file names."""

    def function(self, section: Section, key: str, most: int) -> Applied | None:
        return None if named(section, key) is None else Applied(None, lambda state: None, most)


def read_outline(place: TaskPlace) -> GraphPlan:
    """The nodes and edges of a task's file, as they are drawn. No code of the task is imported, no model looked for."""
    document = read_document(place.file)
    problems = Problems(document)
    graph = _graph(Section(jsonable(document.value), (), problems))
    section = graph.section("nodes")
    nodes: dict[str, Node] = {}
    for name in section.given:
        nodes[name] = node = Node(name)
        entry = section.section(name)
        kind = entry.text("node_type", needed=True)
        if kind is not None and kind not in KINDS:
            entry.problem(f"unknown node type {kind!r}: {did_you_mean(kind, KINDS)}", "node_type")
        node.kind = "idle" if entry.text("node_state") == "idle" else kind or ""
    if not nodes and not problems:
        graph.problem("needs nodes")
    edges, understood = read_edges(graph, list(nodes), _Outline(place))
    if understood and nodes:
        check_edges(edges, _reachable_nodes(nodes, edges), graph)
    problems.raise_all()
    return GraphPlan(nodes, edges)


def jsonable(value: object) -> Any:
    """Return a YAML value with the keys of mappings as text, as they are written."""
    if isinstance(value, Mapping):
        return {
            str(key).lower() if isinstance(key, bool) else str(key): jsonable(item)
            for key, item in value.items()
        }
    return [jsonable(item) for item in value] if isinstance(value, list) else value


def _graph(top: Section) -> Section:
    """`graph_config`; in a file without one, the entries of the top with a `node_type` are its nodes."""
    nodes = {k: v for k, v in top.given.items() if isinstance(v, Mapping) and "node_type" in v}
    if "graph_config" in top or not nodes:
        top.known(TOP)
        if "graph_config" not in top:
            top.problem("needs graph_config: with its nodes and edges")
        return top.section("graph_config")
    top.known((*TOP, *nodes, "edges", "graph_properties"))
    return _Loose(top, nodes)


class _Loose(Section):
    """A graph whose nodes are at the top level of the file."""

    def __init__(self, top: Section, nodes: dict[str, Any]) -> None:
        super().__init__(None, (), top.problems)
        more = {k: v for k, v in top.given.items() if k in ("edges", "graph_properties")}
        self.given = {"nodes": nodes, **more}

    def section(self, key: str) -> Section:
        if key != "nodes":
            return super().section(key)
        return Section(self.given["nodes"], (), self.problems)

    def problem(self, sentence: str, *steps: str | int) -> None:
        self.problems.add(tuple(step for step in steps if step != "nodes"), sentence)


def _properties(graph: Section) -> dict[str, Any]:
    section = graph.section("graph_properties")
    own = section.others(PROPERTIES)
    section.without_effect(*own, instead="only the task's own code may read it, with get_graph_property")
    section.without_effect("retry_chat_injection", instead="but the task's own code may ask for it")
    window = section.integer("chat_history_window_size", 5, 0)
    kind = section.text("chat_conversation", "multiturn")
    if kind not in ("multiturn", "singleturn"):
        section.problem(f"must be singleturn or multiturn, not {kind!r}", "chat_conversation")
    bound = section.integer("max_iterations", section.integer("recursion_limit", MOST_VISITS, 1), 1)
    return {"chat_conversation": kind, "chat_history_window_size": window, "max_iterations": bound}


def _requested_fields(top: Section) -> frozenset[str]:
    """The fields that the output and the post-processors name."""
    fields = top.section("output_config").section("output_map").given.values()
    names = {str(entry["from"]) for entry in fields if isinstance(entry, Mapping) and "from" in entry}
    entries = top.given.get("graph_post_process")
    for entry in entries if isinstance(entries, list) else ():
        params = entry.get("params") if isinstance(entry, Mapping) else None
        wanted = params.get("aggregator_metrics_map") if isinstance(params, Mapping) else None
        for each in wanted if isinstance(wanted, list) else ():
            results = each.get("unit_metrics_results", []) if isinstance(each, Mapping) else []
            given = [results] if isinstance(results, str) else results
            names |= {str(result) for result in given} if isinstance(given, list) else set()
    return frozenset(names)


def _plan(graph: Section, building: Building) -> GraphPlan | None:
    graph.known(("nodes", "edges", "graph_properties", "graph_state"))
    graph.without_effect(
        "graph_state", instead="the state of a record has the keys that its data and its nodes set"
    )
    section = graph.section("nodes")
    if not section.given:
        graph.problem("needs nodes")
        return None
    names = list(section.given)
    for name in names:
        if name in ("START", "END"):
            section.problem("is reserved: rename the node", name)
    nodes = {name: _node(name, section.section(name), building) for name in names}
    edges, understood = read_edges(graph, names, building)
    if not understood:  # the target of an invalid edge would be reported as unreachable
        return None
    before = len(graph.problems)
    check_edges(edges, _reachable_nodes(nodes, edges), graph)
    if len(graph.problems) > before:  # nor is it known then what is set before what
        return None
    return GraphPlan(nodes, edges, int(building.properties["max_iterations"]))


def _reachable_nodes(nodes: dict[str, Node], edges: Edges) -> dict[str, Node]:
    """The nodes without those that are switched off and that no edge leads to."""
    return {
        name: node for name, node in nodes.items() if node.kind != "idle" or edges.comes_after(name, START)
    }


def _node(name: str, section: Section, building: Building) -> Node:
    """The node of a section; of one with mistakes it is not known what it sets."""
    before = len(section.problems)
    node = build_node(name, section, building) or Node(name)
    if len(section.problems) > before:
        node.declared = False
    return node


def _check_fields(output: OutputMap, processors: list[Processor]) -> None:
    """Fields that aggregators want or take metadata from, or a filter looks at: the output map has to have them."""
    if output.fields is None:
        return
    columns = list(output.fields)
    for processor in processors:
        for place, name in processor.wants:
            if name not in columns:
                near = f"{did_you_mean(name, columns)} " if nearest(name, columns) else ""
                processor.problems.add(
                    place,
                    f"unit_metrics_results field {name!r} not found in output columns: {near}"
                    f"available columns: {', '.join(columns)} (add it to output_config.output_map)",
                )
        for place, name in processor.looks_at:
            if name not in columns and paths.parse(name).steps[0] not in columns:
                processor.problems.add(place, f"no output record has it: {did_you_mean(name, columns)}")


def _check_keys(plan: GraphPlan, output: OutputMap, processors: list[Processor]) -> None:
    """The `key` of an aggregator metric, which has no effect: it has to be the one that its unit metric compares."""
    compared: dict[str, str] = {}
    for node in plan.nodes.values():
        if isinstance(call := getattr(node, "call", None), UnitMetrics):
            compared |= call.keys
    for processor in processors:
        entries: list[Any] = processor.params.get("aggregator_metrics_map") or []
        for place, name in processor.wants if entries else ():
            key = idle_key(entries[int(place[-3])])
            source = (output.fields or {}).get(name, name)
            if key is not None and compared.get(source, key) != key:
                processor.problems.add(
                    (*place[:-2], "params", "key"),
                    f"is {key!r:.60}, but {name!r} compares {compared[source]!r}: give that, or leave it out",
                )


def check_data_fields(configuration: Configuration, known: list[str]) -> None:
    """Refuse prompts, unit metrics and reports that ask for a field that neither the data nor a node sets.

    What code of the user's may set without saying so cannot be known, and is left to the records to tell.
    """
    problems = Problems(configuration.document)
    _tell_unknown(configuration, known, problems)
    problems.raise_all()


def _tell_unknown(configuration: Configuration, known: list[str], problems: Problems) -> None:
    plan = configuration.plan
    given = set(known)
    have = {*given, *plan.output_keys()}
    for name, variables in plan.wanted().items():
        for variable in variables:
            if not _sources_given(variable, given):
                instead = _instead(variable, name, plan, known)
                problems.add(
                    (*configuration.nodes_at, name, "prompt"),
                    f"the prompt asks for {{{variable}}}, which neither the data nor an earlier node sets: {instead}"
                    f" ({{{{{variable}}}}} for the braces themselves)",
                )
    if plan.declared:
        _check_sources(configuration, have, problems)


def _instead(variable: str, name: str, plan: GraphPlan, known: list[str]) -> str:
    later = [other for other, node in plan.nodes.items() if variable in node.sets]
    if later:
        return f"node {later[0]!r} sets it, but no edge leads from there to {name!r}"
    before = [n for other, n in plan.nodes.items() if plan.edges.comes_after(name, other)]
    return did_you_mean(variable, {*known, *(key for node in before for key in node.sets)})


def _check_sources(configuration: Configuration, have: set[str], problems: Problems) -> None:
    """Report keys and output fields that no node sets, if all nodes declare what they set."""
    for name, node in configuration.plan.nodes.items():
        call = getattr(node, "call", None)
        for key in ("golden_key", "predicted_key") if isinstance(call, UnitMetrics) else ():
            if getattr(call, key) not in have:
                problems.add(
                    (*configuration.nodes_at, name, key),
                    f"neither the data nor a node has {getattr(call, key)!r}: {did_you_mean(getattr(call, key), have)}",
                )
    output = configuration.output
    unset = [
        name for name, source in (output.fields or {}).items() if source and not _sources_given(source, have)
    ]
    for processor in configuration.processors:
        for place, name in processor.wants:
            if (name in unset or output.is_whole_state) and name not in have:
                problems.add(
                    place,
                    f"unit_metrics_results field {name!r} not found: {did_you_mean(name, have)};"
                    f" available: {', '.join(_unit_metric_fields(configuration)) or 'none'}"
                    " (add it to a node's output_keys)",
                )
    for name in unset:
        source = (output.fields or {})[name]
        problems.add(
            ("output_config", "output_map", name, "from"),
            f"field {source!r} not found: neither the data nor a node's output_keys have it;"
            f" {did_you_mean(source, have)}",
        )


def _sources_given(source: str, have: set[str]) -> bool:
    return source in have or paths.parse(source).steps[0] in have


def _unit_metric_fields(configuration: Configuration) -> list[str]:
    """The fields that its unit-metrics nodes set."""
    nodes = configuration.plan.nodes.values()
    judging = [node for node in nodes if isinstance(getattr(node, "call", None), UnitMetrics)]
    return list(dict.fromkeys(key for node in judging for key in node.output_keys))


def read_subgraph(name: str, building: Building, changes: Mapping[str, Any]) -> Configuration:
    """The graph of another task, with the keys of some of its nodes changed."""
    place = _subgraph_place(name, building.place.folder)
    if str(place.file) in building.within:
        raise ConfigError([f"{name} contains itself"])
    document = read_document(place.file)
    value = copy.deepcopy(document.value)
    whole = value.get("graph_config") if isinstance(value, dict) else None
    nodes = (
        whole.get("nodes") if isinstance(whole, dict) else value
    )  # which may be at the top level of the file
    for node, keys in changes.items():
        if isinstance(nodes, dict) and isinstance(nodes.get(node), dict) and isinstance(keys, Mapping):
            nodes[node] = _with_overrides(nodes[node], dict(keys))
    if isinstance(value, dict):  # a part of a graph: its data, output and reports are those of the whole
        value = {"graph_config": value["graph_config"]} if "graph_config" in value else value
    return _read(document.holding(value), replace(building, place=place))


def _subgraph_place(name: str, folder: Path) -> TaskPlace:
    beside = folder / name
    if os.path.isfile(beside / "graph_config.yaml") or os.path.isfile(beside):
        return find_task(str(beside))
    try:
        return find_task(name)
    except RequestError as error:
        raise ConfigError([str(error)]) from None


def _with_overrides(node: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """A node with some keys replaced; mappings are merged, and placeholders of the prompt renamed."""
    renamed = keys.pop("prompt_placeholder_map", None)
    out = dict(node)
    for key, value in keys.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = _with_overrides(out[key], dict(value)) if both else value
    if isinstance(renamed, Mapping):
        out["prompt"] = _rename_placeholders(out.get("prompt"), renamed)
    return out


def _rename_placeholders(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace("{" + str(old) + "}", "{" + str(new) + "}")
        return value
    if isinstance(value, Mapping):
        return {key: _rename_placeholders(item, names) for key, item in value.items()}
    return [_rename_placeholders(item, names) for item in value] if isinstance(value, list) else value
