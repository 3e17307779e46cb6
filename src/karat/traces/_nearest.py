"""Name the format that an unreadable value resembles most, and what to convert it to."""

from __future__ import annotations

_FORMATS = tuple(
    (name, frozenset(keys.split()), fix)
    for name, keys, fix in (
        (
            "OpenAI messages",
            "role content tool_calls tool_call_id choices message",
            "give [{'role', 'content', 'tool_calls'}]",
        ),
        (
            "a list of calls",
            "name tool function action arguments args kwargs command",
            "give [{'name', 'arguments'}, …]",
        ),
        (
            "OpenAI Responses",
            "call_id arguments output status response object",
            "give the items of response.output",
        ),
        (
            "the OpenAI Agents SDK",
            "raw_item agent new_items last_agent final_output",
            "give result.to_input_list()",
        ),
        (
            "Anthropic messages",
            "type id input tool_use_id stop_reason",
            "give [{'role', 'content': [blocks]}]",
        ),
        ("Gemini", "parts contents candidates functionCall", "give contents with a role and parts"),
        (
            "Bedrock Converse",
            "toolUse toolResult toolUseId stopReason output",
            "give messages with content blocks",
        ),
        ("Pydantic AI", "parts part_kind tool_name kind", "give result.all_messages_json()"),
        (
            "the Vercel AI SDK",
            "toolCallId toolName toolInvocations toolInvocation parts steps",
            "give UIMessages or response.messages",
        ),
        (
            "LangChain",
            "type content additional_kwargs response_metadata tool_call_chunks kwargs lc",
            "give whole messages, not chunks",
        ),
        (
            "LangChain agents",
            "intermediate_steps tool tool_input log observation",
            "give {'input', 'intermediate_steps', 'output'}",
        ),
        (
            "LangGraph",
            "values next config checkpoint created_at thread_id",
            "give state['messages'] or get_state_history()",
        ),
        (
            "LangSmith",
            "run_type inputs outputs child_runs dotted_order trace_id",
            "give runs with 'run_type', 'inputs' and 'outputs'",
        ),
        (
            "Langfuse",
            "observations traceId startTime statusMessage level",
            "give a trace with its observations",
        ),
        (
            "OpenTelemetry spans",
            "resourceSpans attributes span_id spanId events scopeSpans",
            "give spans with their attributes",
        ),
        ("Potato", "speaker text conversation", "give turns with 'speaker' and 'text'"),
        ("AutoGen", "source models_usage type content", "give TaskResult.model_dump()"),
        (
            "smolagents",
            "step_number tool_calls observations model_output task",
            "give agent.memory.get_full_steps()",
        ),
        ("Inspect", "samples eval epoch target messages plan", "give a sample, or a log with one sample"),
        (
            "the Claude Agent SDK",
            "session_id sessionId uuid parentUuid parent_tool_use_id message subtype",
            "give its messages, or a session file",
        ),
        ("ADK", "author invocationId invocation_id actions content events", "give session.events"),
        ("MCP", "jsonrpc method params result id", "give the JSON-RPC messages in order"),
        (
            "tau-bench",
            "traj task_id reward simulations reward_info trial",
            "give one result or one simulation",
        ),
        ("BFCL", "id result ground_truth inference_log", "give one line of a result file"),
    )
)


def nearest_format(value: object) -> str:
    """Return "the nearest format is …: give …" for a dict, or for the first dict of a list."""
    if isinstance(value, (list, tuple)):
        value = next((each for each in value if isinstance(each, dict)), None)
    keys = {str(key) for key in value} if isinstance(value, dict) else set()
    name, _, fix = max(_FORMATS, key=lambda each: (len(each[1] & keys), len(each[1] & keys) / len(each[1])))
    return f"the nearest known format is {name}: {fix}"
