"""Replies for SyGra's examples, by the kind of request and its turn, and the examples with data of our own.

`python scripted.py CLONE` prints the digests that `test_examples.py` compares with. Run it once, by a Python that has
SyGra's packages, with a copy of a clone: it edits the copy as the test does.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

EXAMPLES = (
    "glaive_code_assistant",
    "agent_simulation",
    "structured_output_with_multi_llm.dpo_samples",
    "custom_subgraphs",
)
MODELS = ("gpt4", "gpt-4o", "gpt-4o-mini")


class Script:
    """An OpenAI-compatible server on loopback."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.requests = 0
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                message = {"role": "assistant", "content": script.reply(body)}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                kind = "chat.completion"
                answer = {"id": "x", "object": kind, "created": 1, "model": body["model"]}
                sent = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def start(self) -> None:
        """Begin another example."""
        self.turns.clear()
        self.requests = 0

    def _turn(self, kind: str) -> int:
        self.turns[kind] = self.turns.get(kind, 0) + 1
        return self.turns[kind]

    def reply(self, body: dict[str, Any]) -> str:
        """The reply to a request: what it is about decides, and how often that was asked."""
        self.requests += 1
        text, model = json.dumps([each["content"] for each in body["messages"]]), body["model"]
        if body.get("response_format") or body.get("guided_json"):
            return json.dumps({"message": f"m {model}", "success": True, "status": "ok"})
        if "realistic roleplay" in text and "agent_1_role" in text:
            roles = {"agent_1_role": "Ann Lee", "agent_2_role": "Bob"}
            return json.dumps({**roles, "agent_1_prompt": "You are Ann.", "agent_2_prompt": "You are Bob."})
        if "impartial judge" in text:
            turn = self._turn("judge")
            ratings = zip(MODELS, (3 + turn, 2 + turn, 6 - turn), strict=True)
            rows = [{"assistant": name, "rating": n, "explanation": f"{name} {turn}"} for name, n in ratings]
            return f"Here: {json.dumps(rows)}"
        if "teacher grading" in text:
            turn = self._turn("critique")
            return "NO MORE FEEDBACK" if turn >= 3 else f"  fix step {turn}\n"
        if re.search("You are (Ann|Bob)", str(body["messages"][0]["content"])):
            turn = self._turn("agents")
            return "FINAL ANSWER" if turn >= 7 else f" say-{turn} "
        return f" reply {model} {self._turn(model)} \n"


def prepare(clone: Path, url: str) -> None:
    """Give the examples one record each, models that the script answers for, and nothing that is drawn."""
    examples = clone / "tasks/examples"
    rows = {
        "glaive_code_assistant": {"task_id": 1, "question": "How?", "answer": "So."},
        "custom_subgraphs": {"task_id": 1, "prompt": "Write.", "code": "x", "test_list": ["assert f(1)"]},
    }
    for name, row in rows.items():
        (examples / name / "rows.json").write_text(json.dumps([row]))
        config = examples / name / "graph_config.yaml"
        source = f'type: disk\n    file_path: "tasks/examples/{name}/rows.json"\n    file_format: json\n'
        config.write_text(
            re.sub(r'type: "hf".*?split: [^\n]*\n', source, config.read_text(), flags=re.DOTALL)
        )
    drawn = examples / "custom_subgraphs/generate_question_subgraph/graph_config.yaml"
    drawn.write_text(re.sub(r"values: \[([^,\]]+),[^\]]*\]", r"values: [\1]", drawn.read_text()))
    code = examples / "agent_simulation/task_executor.py"
    text = code.read_text().replace("random.choice([0, 1])", "0")
    code.write_text(
        text.replace("random.choice(start_conversation_prompts)", "start_conversation_prompts[0]")
    )
    served = "model_type: vllm, parameters: {max_tokens: 500, temperature: 1.0}"
    models = [f"{name}: {{model: {name}, model_serving_name: {name}, {served}}}\n" for name in MODELS]
    (clone / "sygra/config/models.yaml").write_text("".join(models))
    for name in MODELS:
        os.environ[f"SYGRA_{name.upper()}_URL"] = url
        os.environ[f"SYGRA_{name.upper()}_TOKEN"] = "x"


def digest(record: dict[str, Any]) -> str:
    """A digest of a record without its id, which is drawn where the data have none."""
    kept = {key: value for key, value in record.items() if key != "id"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def main(clone: Path) -> None:
    """Run the examples by SyGra itself."""
    os.chdir(clone)
    sys.path.insert(0, str(clone))
    script = Script()
    prepare(clone, script.url)
    import importlib

    executors: Any = importlib.import_module("sygra.core.base_task_executor")
    utils: Any = importlib.import_module("sygra.utils.utils")
    for name in EXAMPLES:
        script.start()
        utils.current_task = f"tasks.examples.{name}"
        folder = clone / "out" / name
        options = {"start_index": 0, "num_records": 1, "batch_size": 1, "checkpoint_interval": 1}
        flags = dict.fromkeys(("debug", "clear_logs", "output_with_ts", "oasst", "quality"), False)
        given = {"run_name": "", "run_args": {}, "resume": None, "disable_metadata": True, "num_pages": 0}
        arguments = Namespace(task=utils.current_task, output_dir=str(folder), **options, **flags, **given)
        executors.DefaultTaskExecutor(arguments).execute()
        [record] = json.loads((folder / "output.json").read_text())
        print(f'    "{name}": ("{digest(record)}", {script.requests}),')
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
