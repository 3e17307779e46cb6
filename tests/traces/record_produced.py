"""Record the documents of `tests/traces/produced/frameworks`, which agent frameworks write.

Each framework runs in a virtual environment (or npm folder) of its own, made in a temporary folder, because their pins
conflict and because they are not dependencies of the tests. The frameworks run a small agent against a scripted model:
no network and no account is needed after the installation.

    python tests/traces/record_produced.py                 # record all
    python tests/traces/record_produced.py pydantic_ai     # record one framework's documents
    python tests/traces/record_produced.py --envs FOLDER   # reuse environments: FOLDER/<framework>/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import types
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PRODUCED = HERE / "produced" / "frameworks"

PACKAGES = {
    "pydantic_ai": ["pydantic-ai-slim"],
    "smolagents": ["smolagents"],
    "inspect_ai": ["inspect-ai"],
    "openai_agents": ["openai-agents"],
    "claude_agent_sdk": ["claude-agent-sdk"],
    "autogen": ["autogen-agentchat", "autogen-ext"],
    "mcp": ["mcp<2"],
    "strands": ["strands-agents"],
    "crewai": ["crewai"],
    "google_adk": ["google-adk"],
    "langchain_classic": ["langchain-classic"],
}
NODE_PACKAGES = {"vercel_v4": ["ai@4", "zod@3"], "vercel_v5": ["ai@5", "zod@3"]}

SYSTEM = "Answer in one sentence."
QUESTION = "Find a quiet hotel in Oslo, and is it sunny?"
BETWEEN = "Two more checks."
ANSWER = "The Fjord is quiet and it is sunny."
SEARCH = {"city": "Oslo", "filter": {"price": {"max": 120.5}, "tags": ["quiet", "øst"]}}
TURNS: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    ("", [("search_hotels", SEARCH)]),
    (
        BETWEEN,
        [
            ("get_weather", {"city": "Oslo", "days": [1, 2]}),
            ("convert", {"amount": 120, "to": {"currency": "EUR"}}),
        ],
    ),
    ("", [("search_hotels", SEARCH)]),
    (ANSWER, []),
]
"""What the scripted model says: text, and calls."""
RESULTS = {
    "search_hotels": '{"hotels": [{"id": 7, "name": "Fjord"}]}',
    "get_weather": "sunny",
    "convert": '{"amount": 10.5}',
}


def search_hotels(city: str, filter: dict) -> str:
    """Search hotels.

    Args:
        city: The city.
        filter: What to look for.
    """
    return RESULTS["search_hotels"]


def get_weather(city: str, days: list[int]) -> str:
    """Get the weather.

    Args:
        city: The city.
        days: The days.
    """
    return RESULTS["get_weather"]


def convert(amount: float, to: dict) -> str:
    """Convert an amount.

    Args:
        amount: The amount.
        to: The currency.
    """
    return RESULTS["convert"]


TOOLS = [search_hotels, get_weather, convert]


def write(name: str, document: Any) -> None:
    """Store a document as JSON."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=str)
    (PRODUCED / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def call_ids() -> Any:
    """Yield call_1, call_2, …"""
    number = 0
    while True:
        number += 1
        yield f"call_{number}"


def pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    ids, turns = call_ids(), iter(TURNS)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text, calls = next(turns)
        parts: list[Any] = [TextPart(text)] if text else []
        # One call as text and one as values: providers differ.
        parts += [
            ToolCallPart(
                name, json.dumps(given) if name == "search_hotels" else given, tool_call_id=next(ids)
            )
            for name, given in calls
        ]
        return ModelResponse(parts)

    agent = Agent(FunctionModel(answer), system_prompt=SYSTEM, tools=TOOLS)
    result = agent.run_sync(QUESTION)
    write("pydantic_ai_messages", json.loads(result.all_messages_json()))


def smolagents() -> None:
    from smolagents import ToolCallingAgent, tool
    from smolagents.models import (
        ChatMessage,
        ChatMessageToolCall,
        ChatMessageToolCallFunction,
        MessageRole,
        Model,
    )

    ids, turns = call_ids(), iter(TURNS)

    class Scripted(Model):
        def generate(self, messages: Any, **options: Any) -> ChatMessage:
            text, calls = next(turns)
            given = [*calls] or [("final_answer", {"answer": text})]
            made = [
                ChatMessageToolCall(
                    id=next(ids),
                    type="function",
                    function=ChatMessageToolCallFunction(name=name, arguments=arguments),
                )
                for name, arguments in given
            ]
            return ChatMessage(role=MessageRole.ASSISTANT, content=text or None, tool_calls=made)

    agent = ToolCallingAgent(
        tools=[tool(each) for each in TOOLS], model=Scripted(model_id="scripted"), max_tool_threads=1
    )
    agent.run(QUESTION)
    messages = [each.dict() if hasattr(each, "dict") else each for each in agent.write_memory_to_messages()]
    write("smolagents_to_messages", [{k: v for k, v in each.items() if k != "raw"} for each in messages][1:])
    steps = agent.memory.get_full_steps()
    for each in steps:
        for key in ("model_input_messages", "model_output_message", "timing"):
            each.pop(key, None)
    write("smolagents_steps", steps)


def inspect_ai() -> None:
    import inspect_ai as framework
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, get_model
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import ToolCall, tool

    @tool(name="search_hotels")
    def hotels() -> Any:
        async def execute(city: str, filter: dict) -> str:
            """Search hotels.

            Args:
                city: The city.
                filter: What to look for.
            """
            return search_hotels(city, filter)

        return execute

    @tool(name="get_weather")
    def weather() -> Any:
        async def execute(city: str, days: list[int]) -> str:
            """Get the weather.

            Args:
                city: The city.
                days: The days.
            """
            return get_weather(city, days)

        return execute

    @tool(name="convert")
    def conversion() -> Any:
        async def execute(amount: float, to: dict) -> str:
            """Convert an amount.

            Args:
                amount: The amount.
                to: The currency.
            """
            return convert(amount, to)

        return execute

    import tiktoken

    # The mock model counts tokens with an encoding that is downloaded.
    tiktoken.get_encoding = lambda name: types.SimpleNamespace(encode=lambda text, **options: text.split())
    ids = call_ids()
    outputs = []
    for text, calls in TURNS:
        output = ModelOutput.from_content("mockllm/model", text)
        made = [ToolCall(id=next(ids), function=name, arguments=given) for name, given in calls]
        output.choices[0].message.tool_calls = made or None
        outputs.append(output)
    sample = Sample(
        input=[ChatMessageSystem(content=SYSTEM), ChatMessageUser(content=QUESTION)], target="The Fjord"
    )
    task = framework.Task(
        dataset=[sample], solver=[use_tools(hotels(), weather(), conversion()), generate(tool_calls="loop")]
    )
    with tempfile.TemporaryDirectory() as folder:
        framework.eval(
            task,
            model=get_model("mockllm/model", custom_outputs=outputs),
            log_dir=folder,
            log_format="json",
            display="none",
        )
        log = json.loads(next(Path(folder).glob("*.json")).read_text("utf-8"))
    log["eval"] = {key: log["eval"][key] for key in ("task", "model", "dataset")}
    for each in log["samples"]:
        each.pop("events", None)
        each.pop("events_data", None)
        each.pop("attachments", None)
    write("inspect_log", {key: log[key] for key in ("version", "status", "eval", "samples")})
    write("inspect_sample", log["samples"][0])


def openai_agents() -> None:
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.items import ModelResponse
    from agents.models.interface import Model
    from agents.usage import Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)
    ids, turns = call_ids(), iter(TURNS)

    class Scripted(Model):
        async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
            text, calls = next(turns)
            output: list[Any] = []
            if text:
                said = ResponseOutputText(text=text, type="output_text", annotations=[])
                output.append(
                    ResponseOutputMessage(
                        id="msg_1", content=[said], role="assistant", status="completed", type="message"
                    )
                )
            output += [
                ResponseFunctionToolCall(
                    id=f"fc_{number}",
                    call_id=next(ids),
                    name=name,
                    arguments=json.dumps(arguments),
                    type="function_call",
                )
                for number, (name, arguments) in enumerate(calls)
            ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *given: Any, **options: Any) -> Any:
            raise NotImplementedError

    tools = [function_tool(each, strict_mode=False) for each in TOOLS]
    agent = Agent(name="Assistant", instructions=SYSTEM, tools=tools, model=Scripted())
    result = Runner.run_sync(agent, QUESTION)
    write("openai_agents_input_list", result.to_input_list())
    items = []
    for item in result.new_items:
        raw = item.raw_item if isinstance(item.raw_item, dict) else item.raw_item.model_dump()
        fields = {"type": item.type, "agent": {"name": item.agent.name}, "raw_item": raw}
        items.append({**fields, "output": item.output} if hasattr(item, "output") else fields)
    write("openai_agents_new_items", [{"role": "user", "content": QUESTION}, *items])


def claude_agent_sdk() -> None:
    import dataclasses

    import claude_agent_sdk as sdk

    # The SDK runs Claude Code, which needs an account: the messages are built with its own types and parser.
    try:
        from claude_agent_sdk._internal.message_parser import parse_message
    except ImportError:
        parse_message = None
    ids = call_ids()
    lines: list[dict[str, Any]] = [
        {
            "type": "system",
            "subtype": "init",
            "session_id": "s1",
            "tools": ["search_hotels"],
            "model": "scripted",
        },
        {
            "type": "user",
            "message": {"role": "user", "content": QUESTION},
            "session_id": "s1",
            "parent_tool_use_id": None,
        },
    ]
    for text, calls in TURNS:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        made = [(next(ids), name, given) for name, given in calls]
        blocks += [{"type": "tool_use", "id": i, "name": name, "input": given} for i, name, given in made]
        message = {
            "role": "assistant",
            "model": "scripted",
            "content": blocks,
            "id": f"msg_{len(lines)}",
            "type": "message",
        }
        lines.append(
            {"type": "assistant", "message": message, "session_id": "s1", "parent_tool_use_id": None}
        )
        for i, name, _ in made:
            block = {"type": "tool_result", "tool_use_id": i, "content": RESULTS[name]}
            message = {"role": "user", "content": [block]}
            lines.append({"type": "user", "message": message, "session_id": "s1", "parent_tool_use_id": None})
    lines.append(
        {
            "type": "result",
            "subtype": "success",
            "duration_ms": 5,
            "duration_api_ms": 4,
            "is_error": False,
            "num_turns": 4,
            "session_id": "s1",
            "total_cost_usd": 0.01,
            "result": ANSWER,
        }
    )
    write("claude_stream_json", lines)
    assert parse_message is not None, "the SDK has no message parser under this name"
    write("claude_agent_sdk_messages", [_with_class(parse_message(line)) for line in lines])
    assert dataclasses.is_dataclass(sdk.AssistantMessage)
    parent = None
    history: list[dict[str, Any]] = [{"type": "summary", "summary": "A hotel in Oslo", "leafUuid": "u9"}]
    for number, line in enumerate(lines[1:-1]):
        entry = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/project",
            "sessionId": "s1",
            "version": "2.0.0",
            "type": line["type"],
            "message": line["message"],
            "uuid": f"u{number}",
            "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
        }
        content = line["message"]["content"]
        if line["type"] == "user" and isinstance(content, list):
            entry["toolUseResult"] = {"stdout": content[0]["content"], "stderr": "", "interrupted": False}
        history.append(entry)
        parent = entry["uuid"]
    write("claude_code_jsonl", history)


def _with_class(message: Any) -> Any:
    """Return the fields of a dataclass, as `dataclasses.asdict` does."""
    import dataclasses

    return dataclasses.asdict(message)


def autogen() -> None:
    import asyncio

    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult, ModelInfo, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    ids = call_ids()
    replies: list[Any] = []
    for text, calls in TURNS:
        content: Any = [
            FunctionCall(id=next(ids), name=name, arguments=json.dumps(given)) for name, given in calls
        ]
        replies.append(
            CreateResult(
                finish_reason="function_calls" if calls else "stop",
                content=content or text,
                usage=RequestUsage(prompt_tokens=1, completion_tokens=1),
                cached=False,
                thought=text if calls and text else None,
            )
        )
    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
    )
    client = ReplayChatCompletionClient(replies, model_info=info)
    agent = AssistantAgent("assistant", client, tools=TOOLS, system_message=SYSTEM, max_tool_iterations=10)
    result = asyncio.run(agent.run(task=QUESTION))
    write("autogen_task_result", json.loads(result.model_dump_json()))


def mcp() -> None:
    import asyncio

    import anyio
    from mcp import ClientSession
    from mcp.server.fastmcp import FastMCP
    from mcp.shared.message import SessionMessage

    server = FastMCP("hotels")
    for each in TOOLS:
        server.add_tool(each, structured_output=False)
    seen: list[Any] = []

    async def relay(source: Any, target: Any) -> None:
        async with source, target:
            async for message in source:
                if isinstance(message, SessionMessage):
                    seen.append(json.loads(message.message.model_dump_json(by_alias=True, exclude_none=True)))
                await target.send(message)

    async def main() -> None:
        to_server, server_in = anyio.create_memory_object_stream(10)
        relay_out, server_read = anyio.create_memory_object_stream(10)
        from_server, client_in = anyio.create_memory_object_stream(10)
        relay_in, client_read = anyio.create_memory_object_stream(10)
        async with anyio.create_task_group() as group:
            group.start_soon(relay, server_in, relay_out)
            group.start_soon(relay, client_in, relay_in)
            low = server._mcp_server
            group.start_soon(lambda: low.run(server_read, from_server, low.create_initialization_options()))
            async with ClientSession(client_read, to_server) as session:
                await session.initialize()
                await session.list_tools()
                for _, calls in TURNS:
                    for name, given in calls:
                        await session.call_tool(name, given)
            group.cancel_scope.cancel()

    asyncio.run(main())
    write("mcp_messages", seen)


def strands() -> None:
    from strands import Agent, tool
    from strands.models.model import Model

    ids, turns = call_ids(), iter(TURNS)

    class Scripted(Model):
        def update_config(self, **options: Any) -> None: ...

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *given: Any, **options: Any) -> Any:
            raise NotImplementedError

        async def stream(self, *given: Any, **options: Any) -> Any:
            text, calls = next(turns)
            yield {"messageStart": {"role": "assistant"}}
            if text:
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": text}}}
                yield {"contentBlockStop": {}}
            for name, arguments in calls:
                yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": next(ids), "name": name}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}

    agent = Agent(
        model=Scripted(), tools=[tool(each) for each in TOOLS], system_prompt=SYSTEM, callback_handler=None
    )
    agent(QUESTION)
    write("bedrock_converse_strands", agent.messages)


def crewai() -> None:
    import os

    os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool

    turns = iter(TURNS)
    sent: list[Any] = []

    class Scripted(BaseLLM):
        def call(self, messages: Any, *given: Any, **options: Any) -> str:
            sent[:] = [dict(each) for each in messages] if isinstance(messages, list) else [messages]
            text, calls = next(pieces)
            if not calls:
                said = f"Thought: I now know the final answer\nFinal Answer: {text}"
            else:
                ((name, arguments),) = calls
                said = f"Thought: {text or 'I should look.'}\nAction: {name}\nAction Input: {json.dumps(arguments)}\n"
            last[:] = [{"role": "assistant", "content": said}]
            return said

        def supports_function_calling(self) -> bool:
            return False

        def supports_stop_words(self) -> bool:
            return True

        def get_context_window_size(self) -> int:
            return 100_000

    last: list[Any] = []
    # ReAct has one action in a turn.
    pieces = iter(
        [
            (text if not number else "", [call] if call else [])
            for text, calls in turns
            for number, call in enumerate(calls or [None])
        ]
    )
    tools = []
    for each in TOOLS:
        each.__doc__ = (each.__doc__ or "").partition("\n")[0]
        made = tool(each.__name__)(each)
        made.cache_function = lambda *_: False
        tools.append(made)
    agent = Agent(
        role="Guide",
        goal="Help",
        backstory="A guide.",
        llm=Scripted(model="scripted"),
        tools=tools,
        cache=False,
    )
    task = Task(description=QUESTION, expected_output="One sentence", agent=agent)
    Crew(agents=[agent], tasks=[task], verbose=False, cache=False).kickoff()
    write("crewai_react_messages", [*sent, *last])


def google_adk() -> None:
    import asyncio

    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types as genai

    turns = iter(TURNS)

    class Scripted(BaseLlm):
        async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
            text, calls = next(turns)
            parts = [genai.Part(text=text)] if text else []
            parts += [
                genai.Part(function_call=genai.FunctionCall(name=name, args=given)) for name, given in calls
            ]
            yield LlmResponse(content=genai.Content(role="model", parts=parts))

    async def main() -> list[Any]:
        agent = LlmAgent(name="guide", model=Scripted(model="scripted"), instruction=SYSTEM, tools=TOOLS)
        runner = InMemoryRunner(agent, app_name="hotels")
        session = await runner.session_service.create_session(app_name="hotels", user_id="u")
        message = genai.Content(role="user", parts=[genai.Part(text=QUESTION)])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
        stored = await runner.session_service.get_session(
            app_name="hotels", user_id="u", session_id=session.id
        )
        return [
            json.loads(event.model_dump_json(by_alias=True, exclude_none=True)) for event in stored.events
        ]

    write("adk_events", asyncio.run(main()))


def langchain_classic() -> None:
    from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.load import dumpd
    from langchain_core.messages import AIMessage
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.tools import tool

    ids = call_ids()
    replies = [
        AIMessage(text, tool_calls=[{"id": next(ids), "name": name, "args": given} for name, given in calls])
        for text, calls in TURNS
    ]

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _stream(self, *given: Any, **options: Any) -> Any:
            raise NotImplementedError

    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("human", "{input}"), ("placeholder", "{agent_scratchpad}")]
    )
    tools = [tool(each) for each in TOOLS]
    agent = create_tool_calling_agent(Scripted(messages=iter(replies)), tools, prompt)
    executor = AgentExecutor(agent=agent, tools=tools, return_intermediate_steps=True, stream_runnable=False)
    result = executor.invoke({"input": QUESTION})
    write(
        "langchain_intermediate_steps",
        {**result, "intermediate_steps": [[_dumped(a), o] for a, o in result["intermediate_steps"]]},
    )
    write(
        "langchain_intermediate_steps_dumpd",
        {**result, "intermediate_steps": dumpd(result["intermediate_steps"])},
    )


def _dumped(action: Any) -> Any:
    fields = action.model_dump()
    fields.pop("message_log", None)
    return fields


def record(name: str, folder: Path) -> None:
    """Install a framework unless the folder has it, and let it write its documents."""
    place = folder / name
    if name in NODE_PACKAGES:
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "node_modules").exists():
            subprocess.run(["npm", "init", "-y"], cwd=place, check=True, capture_output=True)
            subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", *NODE_PACKAGES[name]], cwd=place, check=True
            )
        script = place / "record.mjs"
        script.write_text((HERE / "record_vercel.mjs").read_text("utf-8"), encoding="utf-8")
        subprocess.run(["node", script.name, name, str(PRODUCED)], cwd=place, check=True)
        return
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
    subprocess.run([python, __file__, "--produce", name], check=True)


def main(argv: list[str] | None = None) -> int:
    """Record the documents of the frameworks named, or of all; 1 where one could not be recorded."""
    parser = argparse.ArgumentParser(description="Record documents of agent frameworks.")
    parser.add_argument("frameworks", nargs="*", help=", ".join([*PACKAGES, *NODE_PACKAGES]))
    parser.add_argument("--envs", type=Path, help="folder of environments to use or to make")
    parser.add_argument("--produce", choices=[*PACKAGES], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.produce:
        # A framework may have this module's folder in its path, and `mcp` must be the package.
        sys.path = [each for each in sys.path if Path(each or ".").resolve() != HERE]
        globals()[options.produce]()
        return 0
    folder = options.envs or Path(tempfile.mkdtemp(prefix="karat-record-"))
    failed = []
    for name in options.frameworks or [*PACKAGES, *NODE_PACKAGES]:
        try:
            record(name, folder)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error}")
    print("\n".join(failed) or "recorded", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
