"""The batch APIs of a fake provider: files and batches as OpenAI has them, message batches as Anthropic has them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""`(status, body)` for a request at a path."""


class FakeBatches:
    """Takes batches, and answers their requests when it was asked often enough whether they have ended."""

    def __init__(self, answer: Answer, polls: int) -> None:
        self._answer = answer
        self.polls = polls
        """The number of polls that report a batch as in progress before it has ended."""
        self.requests: Counter[str] = Counter()
        """How often each custom id was submitted."""
        self.lose_next: bool = False
        """Whether the next batch is created and the connection dropped before its id is sent."""
        self.status = "completed"
        """How batches of OpenAI end: completed, failed, expired or cancelled."""
        self.alter_results: Callable[[bytes], bytes] | None = None
        """Changes a file of results before it is sent."""
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, dict[str, Any]] = {}
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._left: dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many batches were made."""
        return len(self._batches)

    def handle(self, request: web.BaseRequest, content: bytes) -> web.Response | None:
        """The answer to a request that is about files or batches; None where it is not."""
        path = re.sub(r"^/v1", "", request.path)
        if path == "/files" and request.method == "POST":
            name = f"file-{len(self._files) + 1}"
            self._files[name] = _uploaded(content)
            return web.json_response({"id": name, "object": "file", "purpose": "batch"})
        if match := re.fullmatch(r"/files/([\w-]+)/content", path):
            return self._sent(self._files[match[1]])
        if path == "/batches":
            if request.method == "GET":
                return self._page(request, "after")
            return self._create(request, json.loads(content))
        if match := re.fullmatch(r"/batches/([\w-]+)", path):
            return web.json_response(self._state(match[1]))
        if path == "/messages/batches":
            if request.method == "GET":
                return self._page(request, "after_id")
            return self._create_messages(request, json.loads(content))
        if match := re.fullmatch(r"/messages/batches/([\w-]+)/results", path):
            lines = "\n".join(json.dumps(row) for row in self._results[match[1]])
            return self._sent(lines.encode())
        if match := re.fullmatch(r"/messages/batches/([\w-]+)", path):
            return web.json_response(self._state(match[1]))
        return None

    def _sent(self, results: bytes) -> web.Response:
        return web.Response(body=results if self.alter_results is None else self.alter_results(results))

    def _page(self, request: web.BaseRequest, after: str) -> web.Response:
        """A page of the list of batches, the newest first."""
        names = list(self._batches)[::-1]
        start = names.index(request.query[after]) + 1 if after in request.query else 0
        limit = int(request.query.get("limit", "20"))
        data = [self._batches[name] for name in names[start : start + limit]]
        return web.json_response({"data": data, "has_more": start + limit < len(names)})

    def _create(self, request: web.BaseRequest, body: dict[str, Any]) -> web.Response:
        rows = [json.loads(line) for line in self._files[body["input_file_id"]].splitlines() if line.strip()]
        problem = _wrong_ids([row["custom_id"] for row in rows])
        if problem is not None:
            return web.json_response({"error": {"message": problem, "code": "invalid_request"}}, status=400)
        name = f"batch_{len(self._batches) + 1}"
        self._batches[name] = {
            "id": name,
            "object": "batch",
            "endpoint": body["endpoint"],
            "status": "in_progress",
            "metadata": body.get("metadata"),
            "created_at": int(time.time()),
            "request_counts": {"total": len(rows), "completed": 0, "failed": 0},
        }
        self._take(name, [(row["custom_id"], row["url"], row["body"]) for row in rows])
        return self._made(request, name)

    def _create_messages(self, request: web.BaseRequest, body: dict[str, Any]) -> web.Response:
        rows = body["requests"]
        problem = _wrong_ids([row["custom_id"] for row in rows])
        if problem is not None:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
            return web.json_response(error, status=400)
        name = f"msgbatch_{len(self._batches) + 1}"
        self._batches[name] = {
            "id": name,
            "type": "message_batch",
            "processing_status": "in_progress",
            "created_at": datetime.now(UTC).isoformat(),
            "request_counts": {
                "processing": len(rows),
                "succeeded": 0,
                "errored": 0,
                "canceled": 0,
                "expired": 0,
            },
        }
        self._take(name, [(row["custom_id"], "/v1/messages", row["params"]) for row in rows])
        return self._made(request, name)

    def _made(self, request: web.BaseRequest, name: str) -> web.Response:
        if self.lose_next:
            self.lose_next = False
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(self._batches[name])

    def _take(self, name: str, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        self.requests.update(custom_id for custom_id, _, _ in rows)
        self._left[name] = self.polls
        anthropic = name.startswith("msg")
        results: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for custom_id, path, body in reversed(rows):  # in any order but theirs
            status, answer = self._answer(path, body)
            if anthropic:
                kind = "succeeded" if status < 300 else "errored"
                result = {"type": kind, "message" if status < 300 else "error": answer}
                results.append({"custom_id": custom_id, "result": result})
            else:
                row = {
                    "custom_id": custom_id,
                    "response": {"status_code": status, "body": answer},
                    "error": None,
                }
                (results if status < 300 else errors).append(row)
        self._results[name] = results
        if not anthropic:
            for kind, lines in (("output", results), ("error", errors)):
                if lines:
                    self._files[f"{kind}-{name}"] = "\n".join(map(json.dumps, lines)).encode()
                    self._batches[name][f"_{kind}_file_id"] = f"{kind}-{name}"

    def _state(self, name: str) -> dict[str, Any]:
        batch = self._batches[name]
        self._left[name] -= 1
        if self._left[name] < 0:
            if name.startswith("msg"):
                batch["processing_status"] = "ended"
            else:
                batch["status"] = self.status
                if self.status == "failed":
                    batch["errors"] = {
                        "data": [{"code": "token_limit_exceeded", "message": "too many tokens"}]
                    }
                else:
                    for kind in ("output", "error"):
                        batch[f"{kind}_file_id"] = batch.get(f"_{kind}_file_id")
        return {key: value for key, value in batch.items() if not key.startswith("_")}


def _uploaded(content: bytes) -> bytes:
    """The file in a multipart form."""
    boundary = content.partition(b"\r\n")[0]
    for part in content.split(boundary):
        head, blank, body = part.partition(b"\r\n\r\n")
        if blank and b'name="file"' in head:
            return body.removesuffix(b"\r\n")
    raise ValueError("no file in the form")


def _wrong_ids(ids: list[str]) -> str | None:
    for each in ids:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each):
            return f"custom_id {each!r} should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
    return "custom_id has to be unique" if len(set(ids)) != len(ids) else None
