"""The JSON Schema of `graph_config.yaml`, with which editors complete it and mark mistakes.

The keys are those that the readers know. What only a reading can tell (names of nodes, fields, functions) is left to
`karat run TASK --check`.
"""

from __future__ import annotations

from typing import Any

from karat.graph._configuration import PROPERTIES, SINK_KEYS, TOP
from karat.graph._output import FIELD_KEYS
from karat.graph._plan import EDGE_KEYS
from karat.graph._postprocess import ENTRY_KEYS
from karat.graph._schemas import RULES
from karat.graph.metrics._collator import ENTRY_KEYS as METRIC_KEYS
from karat.graph.nodes import KINDS
from karat.graph.nodes._base import COMMON, MODEL_KEYS
from karat.graph.nodes._models import ELSEWHERE, OTHERS, OWN

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": ["boolean", "string"]}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NAMES: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
ANYTHING: Schema = {}

DESCRIBED = {
    "node_type": "What the node does.",
    "node_state": "`idle` switches a node off: records pass through it unchanged.",
    "output_keys": "The variables of the state that the node sets.",
    "prompt": "Roles with their contents; `{name}` is a variable of the state.",
    "model": "The model to call: a name, or `{name, parameters, structured_output}`.",
    "models": "Labels with the models to call at the same time.",
    "pre_process": "A function or class that prepares the state for this node's prompt.",
    "post_process": "A function or class that returns what the reply adds to the state.",
    "multi_llm_post_process": "A function that returns what the replies of all models add to the state.",
    "chat_history": "Whether the node's turns are kept in `__chat_history__` and sent again.",
    "tools": "Functions, modules or classes whose functions the model may call.",
    "lambda": "The function or class that the node calls.",
    "blocking": "Whether the function blocks, and so runs in a thread.",
    "attributes": "Variables with the values to draw from.",
    "subgraph": "The task whose graph is run as this node.",
    "node_config_map": "Changes to the nodes of the subgraph.",
    "max_steps": "Maximum number of model calls of an agent.",
    "condition": "A function that returns a key of `path_map`.",
    "path_map": "Values that the condition returns, and the nodes they lead to.",
    "from": "Where the value or edge comes from.",
    "to": "The nodes that come next.",
    "output_map": "The fields of an output record.",
    "unit_metrics_results": "The output fields that hold results of unit metrics.",
    "max_iterations": "Maximum number of visits of a record to a node.",
}


def _object(keys: dict[str, Schema], *, required: tuple[str, ...] = (), closed: bool = True) -> Schema:
    properties = {
        key: {**schema, "description": DESCRIBED[key]} if key in DESCRIBED else schema
        for key, schema in keys.items()
    }
    out: Schema = {"type": "object", "properties": properties}
    if required:
        out["required"] = list(required)
    return {**out, "additionalProperties": False} if closed else out


def _keys(names: tuple[str, ...], **known: Schema) -> dict[str, Schema]:
    """An object schema from property names and the schemas of their values."""
    return {name: known.get(name, ANYTHING) for name in names}


STRUCTURED = _object(
    {
        "enabled": FLAG,
        "schema": {"anyOf": [TEXT, {"type": "object"}]},
        "fallback_strategy": TEXT,
        "retry_on_parse_error": FLAG,
        "max_parse_retries": WHOLE,
    }
)
MODEL: Schema = {
    "anyOf": [
        TEXT,
        _object(
            _keys(
                ("name", "api", "parameters", "structured_output", *OWN, *OTHERS, *ELSEWHERE),
                name=TEXT,
                api={"enum": ["chat", "responses", "anthropic"]},
                parameters={"type": "object"},
                structured_output=STRUCTURED,
            )
        ),
    ]
}


def _node(kind: str) -> Schema:
    """The schema of one kind of node; a lambda node may have additional keys for its function."""
    known: dict[str, Schema] = {
        "node_type": {"const": kind},
        "node_state": {"enum": ["active", "idle"]},
        "node_name": TEXT,
        "description": TEXT,
        "output_keys": NAMES,
        "output_vars": NAMES,
        "output_key": NAMES,
        "prompt": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "model": MODEL,
        "pre_process": TEXT,
        "post_process": TEXT,
        "input_key": TEXT,
        "output_role": {"enum": ["user", "assistant", "system", "tool"]},
        "chat_history": FLAG,
        "structured_output": STRUCTURED,
        "tools": NAMES,
        "tool_choice": TEXT,
    }
    model = {key: known[key] for key in (*COMMON, *MODEL_KEYS)}
    common = {key: known[key] for key in COMMON}
    if kind == "llm":
        return _object(model, required=("node_type", "prompt"))
    if kind == "agent":
        injected: Schema = {"type": ["array", "object"]}
        more = {"max_steps": {"type": "integer", "minimum": 1}, "inject_system_messages": injected}
        return _object({**model, **more}, required=("node_type", "prompt"))
    if kind == "multi_llm":
        models: Schema = {"type": "object", "minProperties": 1, "additionalProperties": MODEL}
        more = {"models": models, "multi_llm_post_process": TEXT}
        return _object({**model, **more}, required=("node_type", "prompt", "models"))
    if kind == "weighted_sampler":
        values: Schema = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object"}]}
        weights: Schema = {"type": "array", "items": {"type": "number", "minimum": 0}}
        one = _object({"values": values, "weights": weights}, required=("values",))
        attributes: Schema = {"type": "object", "minProperties": 1, "additionalProperties": one}
        return _object(
            {**common, "attributes": attributes, "seed": ANYTHING}, required=("node_type", "attributes")
        )
    if kind == "subgraph":
        more = {"subgraph": TEXT, "node_config_map": {"type": "object"}}
        return _object({**common, **more}, required=("node_type", "subgraph"))
    more = {"lambda": TEXT, "blocking": FLAG}
    return _object({**common, **more}, required=("node_type", "lambda"), closed=False)


def graph_schema() -> Schema:
    """The JSON Schema of a graph task's file."""
    source = {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}
    sink = _object(_keys(SINK_KEYS, type=TEXT, file_path=TEXT))
    field = _object(dict.fromkeys(FIELD_KEYS, ANYTHING))
    rule = _object(_keys(("name", "type", "description", *RULES), name=TEXT, type=TEXT), required=("name",))
    metric = _object(
        _keys(METRIC_KEYS, name=TEXT, params={"type": "object"}, unit_metrics_results=NAMES),
        required=("name", "unit_metrics_results"),
    )
    processor = _object(
        {
            **_keys(ENTRY_KEYS, processor=TEXT, use_previous_output=FLAG, description=TEXT),
            "params": _object({"aggregator_metrics_map": {"type": "array", "items": metric}}, closed=False),
        },
        required=("processor",),
    )
    parts: dict[str, Schema] = {
        "description": TEXT,
        "data_config": _object(
            {
                "source": source,
                "sink": {"anyOf": [sink, {"type": "array", "items": sink}]},
                "id_column": TEXT,
                "resumable": FLAG,
                "examples": {"type": "array"},
            }
        ),
        "graph_config": _object(
            {
                "nodes": {"$ref": "#/$defs/nodes"},
                "edges": {"$ref": "#/$defs/edges"},
                "graph_properties": {"$ref": "#/$defs/graph_properties"},
                "graph_state": ANYTHING,
            },
            required=("nodes",),
        ),
        "output_config": _object(
            {
                "output_map": {"type": "object", "additionalProperties": field},
                "generator": TEXT,
                "oasst_mapper": {"type": "object"},
                "data_quality": {"type": "object"},
            }
        ),
        "schema_config": _object({"schema": TEXT, "fields": {"type": "array", "items": rule}}),
        "graph_post_process": {"type": "array", "items": {"anyOf": [TEXT, processor]}},
    }
    edge = _object(
        _keys(EDGE_KEYS, **{"from": NAMES, "to": NAMES, "condition": TEXT, "path_map": {"type": "object"}}),
        required=("from",),
    )
    properties = _keys(
        PROPERTIES,
        chat_conversation={"enum": ["multiturn", "singleturn"]},
        chat_history_window_size=WHOLE,
        max_iterations=WHOLE,
        recursion_limit=WHOLE,
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A graph task of karat",
        "type": "object",
        "properties": {
            **{key: parts[key] for key in TOP},
            "edges": {"$ref": "#/$defs/edges"},
            "graph_properties": {"$ref": "#/$defs/graph_properties"},
        },
        "additionalProperties": {"$ref": "#/$defs/node"},
        "$defs": {
            "nodes": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/node"}},
            "node": {
                "type": "object",
                "required": ["node_type"],
                "properties": {"node_type": {"enum": list(KINDS), "description": DESCRIBED["node_type"]}},
                "allOf": [
                    {
                        "if": {"properties": {"node_type": {"const": kind}}, "required": ["node_type"]},
                        "then": {"$ref": f"#/$defs/{kind}"},
                    }
                    for kind in KINDS
                ],
            },
            "edges": {"type": "array", "items": edge},
            "graph_properties": _object(properties, closed=False),
            **{kind: _node(kind) for kind in KINDS},
        },
    }
