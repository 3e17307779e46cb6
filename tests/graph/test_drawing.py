"""Graphs drawn as Mermaid and SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from karat.graph import load_task
from karat.graph._drawing import mermaid, svg

GRAPH = """
graph_config:
  nodes:
    sample: {node_type: weighted_sampler, attributes: {a: {values: [1]}}}
    "ch<eck \\"it\\"": {node_type: lambda, lambda: code.check, output_keys: [b]}
  edges:
    - {from: START, to: sample}
    - {from: sample, to: "ch<eck \\"it\\""}
    - from: "ch<eck \\"it\\""
      condition: code.again
      path_map: {again: sample, END: END}
"""


def test_a_graph_is_drawn_with_its_conditions_and_its_ways_back(project):
    project.write("t/code.py", "def check(state):\n    return {}\ndef again(state):\n    return 'END'\n")
    project.write("t/graph_config.yaml", GRAPH)
    plan = load_task("t").plan
    assert mermaid(plan) == (
        "flowchart TD\n"
        '    n0(["START"])\n'
        '    n1["sample<br/>weighted_sampler"]\n'
        '    n2["ch&lt;eck &quot;it&quot;<br/>lambda"]\n'
        '    n3(["END"])\n'
        "    n0 --> n1\n"
        "    n1 --> n2\n"
        '    n2 -.->|"again"| n1\n'
        '    n2 -.->|"END"| n3\n'
    )
    picture = ElementTree.fromstring(svg(plan))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert 'ch<eck "it"' in texts
    assert {"START", "END", "sample", "again"} <= set(texts)
    assert len([e for e in picture.iter("{http://www.w3.org/2000/svg}path") if e.get("marker-end")]) == 4
