"""Plausible last answers of agents: they quote code, configuration, documentation of APIs and calls, and call nothing.

None of them names a tool of the traces in tests/traces/test_answers.py.
"""

# ruff: noqa: E501 - a text is easier to read on one line

from __future__ import annotations


def fence(text: str, language: str = "json") -> str:
    return f"```{language}\n{text}\n```"


def shown(before: str, text: str, after: str = "", language: str = "json") -> str:
    """A fence between sentences."""
    return f"{before}\n\n{fence(text, language)}" + (f"\n\n{after}" if after else "")


CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
OPENAI = '{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}'
TOOL = '{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
REACT = "Thought: I need the weather.\nAction: get_weather\nAction Input: Oslo\nObservation: sunny"

CONFIGURATION: dict[str, str] = {
    "package.json": shown(
        "I added the script:",
        '{"name": "shop", "version": "1.0.0", "scripts": {"test": "vitest"}}',
        "Run `npm test`.",
    ),
    "tsconfig": shown("Set this:", '{"compilerOptions": {"strict": true, "target": "ES2022"}}'),
    "launch.json": shown(
        "Add to `.vscode/launch.json`:",
        '{"name": "Python: file", "type": "debugpy", "request": "launch", "args": ["-v"]}',
        "Then press F5.",
    ),
    "launch.json at the end": shown(
        "Add this:", '{"version": "0.2.0", "configurations": [{"name": "Debug", "args": ["--port", "80"]}]}'
    ),
    "tasks.json": shown(
        "This task builds it:", '{"label": "build", "type": "shell", "command": "make", "args": ["all"]}'
    ),
    "an MCP server": shown(
        "Add the server:",
        '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "server-files", "/data"]}}}',
        "Restart the app.",
    ),
    "a list of MCP servers": shown(
        "Your servers:", '[{"name": "files", "command": "npx", "args": ["-y", "server-files"]}]'
    ),
    "a container": shown(
        "Use this:",
        '{"name": "app", "image": "nginx", "args": ["-g", "daemon off;"]}',
        "It keeps it in front.",
    ),
    "Kubernetes in JSON": shown(
        "The pod:", '{"kind": "Pod", "spec": {"containers": [{"name": "app", "args": ["serve"], "env": []}]}}'
    ),
    "Kubernetes": shown(
        "The manifest:",
        "containers:\n  - name: app\n    image: nginx\n    command: [nginx]\n    args: ['-g']",
        language="yaml",
    ),
    "Compose": shown(
        "I changed `compose.yaml`:",
        "services:\n  db:\n    image: postgres:16\n    command: postgres -c log_statement=all",
        language="yaml",
    ),
    "a model": shown(
        "The best model is:",
        '{"name": "xgboost", "parameters": {"max_depth": 3, "eta": 0.1}}',
        "It scores 0.91.",
    ),
    "a model at the end": shown("The best model is:", '{"name": "xgboost", "params": {"max_depth": 3}}'),
    "a pipeline": shown(
        "The steps:",
        '{"steps": [{"name": "scale", "kwargs": {"with_mean": true}}, {"name": "svm", "kwargs": {"C": 1}}]}',
        "They run in order.",
    ),
    "an optimizer": shown(
        "I use", '{"optimizer": {"name": "adam", "args": {"lr": 0.001}}}', "as in the paper."
    ),
    "an intent": 'Your sentence maps to {"action": "book", "parameters": {"city": "Oslo"}}.',
    "a slot": 'The intent is {"name": "book_flight", "confidence": 0.97} with the entity {"name": "city", "value": "Oslo"}.',
    "a workflow": shown(
        "The workflow:",
        "on: push\njobs:\n  test:\n    steps:\n      - uses: actions/checkout@v4\n      - run: make test",
        language="yaml",
    ),
    "Terraform": shown(
        "Apply this:", 'resource "aws_s3_bucket" "logs" {\n  bucket = "logs"\n}', language="hcl"
    ),
    "Airflow": shown(
        "The operator:",
        '{"task_id": "load", "operator": "BashOperator", "params": {"table": "orders"}}',
        "It runs daily.",
    ),
    "a state machine": shown(
        "The state:",
        '{"Type": "Task", "Resource": "arn:aws:lambda:eu:1:function:pay", "Parameters": {"amount.$": "$.amount"}}',
    ),
    "a Lambda event": shown(
        "Test it with:", '{"httpMethod": "GET", "path": "/users", "queryStringParameters": {"id": "7"}}'
    ),
    "a webhook": shown(
        "GitHub sends:",
        '{"action": "opened", "number": 7, "pull_request": {"title": "Fix"}}',
        "Verify its signature.",
    ),
    "a webhook with an input": shown(
        "The workflow receives", '{"action": "deploy", "inputs": {"env": "prod"}}'
    ),
    "an event": shown("Segment gets:", '{"type": "track", "event": "Order", "properties": {"total": 7}}'),
    "ESLint": shown("In `.eslintrc`:", '{"extends": ["eslint:recommended"], "rules": {"no-eval": "error"}}'),
    "a key binding": shown(
        "Add:", '{"key": "ctrl+t", "command": "workbench.action.terminal.new", "args": {"cwd": "~"}}'
    ),
    "TOML": shown(
        "In `pyproject.toml`:",
        "[tool.ruff]\nline-length = 100\n\n[tool.mypy]\nstrict = true",
        language="toml",
    ),
    "an environment": shown("Create `.env`:", "API_KEY=...\nDEBUG=1", language="bash"),
    "nginx": shown("Use:", "location /api {\n  proxy_pass http://127.0.0.1:8000;\n}", language="nginx"),
    "Grafana": shown("The panel:", '{"title": "Latency", "targets": [{"expr": "rate(http_seconds[5m])"}]}'),
}
CODE: dict[str, str] = {
    "Python": shown(
        "I rewrote the function:", "def add(a, b):\n    return a + b", "All tests pass.", "python"
    ),
    "Python at the end": shown(
        "Use this:", 'import json\nprint(json.dumps({"name": "x", "args": [1]}))', language="python"
    ),
    "a dict in Python": shown(
        "The payload:",
        'payload = {"name": "get_weather", "arguments": {"city": "Oslo"}}\nrequests.post(url, json=payload)',
        "It returns 200.",
        "python",
    ),
    "code that calls a model": shown(
        "Call it like this:",
        'client.chat.completions.create(model="m", tools=[' + TOOL + "])",
        "Then read `tool_calls`.",
        "python",
    ),
    "code that reads calls": shown(
        "Then:",
        "for call in message.tool_calls:\n    run(call.function.name, json.loads(call.function.arguments))",
        language="python",
    ),
    "a decorator": shown(
        "Define it:",
        '@tool\ndef get_weather(city: str) -> str:\n    """Get it."""\n    return "sunny"',
        language="python",
    ),
    "a REPL": shown("It works:", ">>> add(1, 2)\n3\n>>> add('a', 'b')\n'ab'", language="pycon"),
    "a REPL without a fence": "It works:\n\n>>> add(1, 2)\n3\n",
    "TypeScript": shown(
        "I changed the hook:",
        "const call = { name: 'save', args: [id] };\ndispatch(call);",
        "The list updates now.",
        "ts",
    ),
    "TypeScript with types at the end": shown(
        "The type:",
        "function calls(m: Message): Array<ToolCall> {\n  return m.calls ?? [];\n}",
        language="ts",
    ),
    "types in a sentence": "It returns a Promise<FunctionCall> { id, args }, as before.",
    "Redux": shown("Dispatch", "{ type: 'cart/add', payload: { id: 7 } }", language="js"),
    "React": shown("The component:", "<Button onClick={() => save(id)}>Save</Button>", language="jsx"),
    "HTML": "Use <p>Text</p> and <code>rm</code> in it:\n\n"
    + fence('<form action="/search"><input name="q"></form>', "html"),
    "HTML that ends with code": "The page:\n<pre>\n<code>\nx = 1\n</code>",
    "XML": shown("Your pom:", "<dependency>\n  <groupId>org.x</groupId>\n</dependency>", language="xml"),
    "XML with functions": shown(
        "The schema:",
        '<function name="area"><param name="r">double</param></function>',
        "It is in `geo.xml`.",
        "xml",
    ),
    "SQL": shown(
        "The query:", "SELECT name, args FROM jobs WHERE action = 'deploy';", "It takes 3 ms.", "sql"
    ),
    "shell": shown("Run:", "git fetch && git rebase origin/main", language="bash"),
    "shell between sentences": shown("Run:", "pip install -e .\npytest -q", "All 12 pass.", "sh"),
    "curl": shown(
        "Try:",
        'curl -X POST https://api.example.com/run -d \'{"name": "job", "parameters": {"n": 3}}\'',
        "You get 202.",
        "bash",
    ),
    "curl at the end": shown(
        "Try:",
        'curl https://api.example.com/v1/chat -d \'{"tool_choice": "auto", "messages": []}\'',
        language="bash",
    ),
    "a diff": shown("The change:", "-    return x\n+    return x + 1", language="diff"),
    "Rust": shown("Here:", 'fn main() { println!("{}", add(1, 2)); }', language="rust"),
    "Go": shown("Here:", 'cmd := exec.Command("ls", "-l")', language="go"),
    "a macro": shown("Here:", "#define CALL(f, x) f(x)", language="c"),
    "a Makefile": shown("Add the target:", "test:\n\tpytest -q", language="make"),
    "a Dockerfile": shown("Use:", 'FROM python:3.12\nCMD ["python", "-m", "app"]', language="dockerfile"),
    "a regex": r"Use `^(?P<name>\w+)\((?P<args>.*)\)$`; it matches `f(x)`.",
    "a call in a sentence": "I replaced `open(path)` by `Path(path).read_text()`; call `save(item, force=True)` afterwards.",
    "only a call in code": "`np.linalg.norm(x, axis=1)`",
    "a formula": "The result is f(x) = x[0](1 + r) and [1] is its source.",
    "a list of calls": "The functions are [f(x), g(y)] in that order.",
    "a traceback": shown(
        "It failed with:",
        'File "a.py", line 3, in run\n    call(name="x", args=())\nTypeError: no args',
        "I fixed the argument.",
        "",
    ),
    "a log": shown(
        "The log:",
        '2024-05-01 INFO {"name": "worker", "args": ["--queue", "mail"], "action": "start"}',
        "It started once.",
        "text",
    ),
    "a JSON log": shown(
        "The log:",
        '{"level": "info", "action": "start", "params": {"queue": "mail"}}\n{"level": "info", "action": "stop", "params": {}}',
        "Both are fine.",
    ),
    "a test": shown(
        "I added:",
        'def test_call():\n    assert parse(\'{"name": "f", "arguments": {}}\') == Call("f", {})',
        "It passes.",
        "python",
    ),
    "a docstring": shown(
        "Documented:", '"""Run a job.\n\nArgs:\n    name: Its name.\n"""', language="python"
    ),
    "a notebook": shown("The cell:", '{"cell_type": "code", "source": ["x = 1"], "outputs": []}'),
    "GraphQL": shown(
        "The mutation:", 'mutation { deploy(name: "web", args: {env: "prod"}) { id } }', language="graphql"
    ),
    "a Jinja template": shown(
        "The template:",
        "{% for call in calls %}{{ call.name }}({{ call.args }}){% endfor %}",
        language="jinja",
    ),
}
DOCUMENTATION: dict[str, str] = {
    "OpenAPI": shown(
        "The path:",
        '{"/users": {"get": {"operationId": "listUsers", "parameters": [{"name": "page", "in": "query"}]}}}',
    ),
    "OpenAPI, one operation": shown(
        "It has", '{"name": "listUsers", "parameters": [{"name": "page", "in": "query"}]}', "and no body."
    ),
    "a JSON Schema": shown(
        "Validate with",
        '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}',
    ),
    "a definition": 'Its definition is {"name": "get_weather", "description": "Weather", "parameters": {"type": "object"}}.',
    "a definition in a fence": shown("Define the tool:", TOOL, "Pass it in `tools`."),
    "a definition at the end": shown("Define the tool:", TOOL),
    "Anthropic's definition": shown(
        "Define it:", '{"name": "get_weather", "input_schema": {"type": "object"}}'
    ),
    "an answer of an API": 'It replies {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}.',
    "a call of OpenAI": shown("The model answers", OPENAI, "and you run the function."),
    "a call of OpenAI at the end": shown("The message then has this call:", OPENAI),
    "a message of OpenAI": shown(
        "The reply:",
        '{"role": "assistant", "content": null, "tool_calls": [' + OPENAI + "]}",
        "Append it to the messages.",
    ),
    "a block of Anthropic": shown(
        "Claude returns",
        '{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}',
        "with `stop_reason` `tool_use`.",
    ),
    "a part of Gemini": shown(
        "Gemini returns", '{"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}}', "in `parts`."
    ),
    "Bedrock": shown(
        "Converse returns",
        '{"toolUse": {"toolUseId": "t", "name": "get_weather", "input": {"city": "Oslo"}}}',
        "in its content.",
    ),
    "JSON-RPC": shown(
        "MCP sends",
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_weather", "arguments": {"city": "Oslo"}}}',
        "over stdio.",
    ),
    "JSON-RPC without tools": shown(
        "Send", '{"jsonrpc": "2.0", "method": "eth_call", "params": [{"to": "0x1"}], "id": 1}'
    ),
    "a part of a message": "The part has {'kind': 'tool-call'} and the result {'kind': 'tool-return'}.",
    "a call in a sentence": f"A call looks like {CALL} and has no id.",
    "a call in code": f"A call looks like `{CALL}`.",
    "a call in a list": f"1. The model writes `{CALL}`.\n2. You run it.\n3. You send the result.",
    "a call in a fence": shown("The model writes", CALL, "and stops."),
    "a call in a fence at the end": shown("The prompt asks the model to answer like this:", CALL),
    "a table of formats": "| vendor | key |\n|---|---|\n| OpenAI | `tool_calls[].function.arguments` |\n| Anthropic | `tool_use.input` |\n| Gemini | `functionCall.args` |",
    "Hermes": "Hermes models write `<tool_call>` tags with JSON in them.",
    "Hermes in a fence": shown(
        "Hermes models write", f"<tool_call>\n{CALL}\n</tool_call>", "and the server parses it.", "xml"
    ),
    "Hermes in code": f"They write `<tool_call>{CALL}</tool_call>` in the text.",
    "Hermes in a fence at the end": shown("For example:", f"<tool_call>\n{CALL}\n</tool_call>", language=""),
    "Qwen": shown(
        "Qwen 3 Coder writes",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "Each parameter has a tag.",
        "",
    ),
    "Mistral": "Mistral's template starts with `[TOOL_CALLS]` followed by a JSON list, as in `[TOOL_CALLS] [{...}]`.",
    "Llama": "Llama 3.1 writes `<|python_tag|>` before code and `<|eom_id|>` at the end.",
    "Llama in a fence": shown(
        "The prompt ends with",
        '<|start_header_id|>assistant<|end_header_id|>\n\n<|python_tag|>search.call(query="x")',
        "Then the runtime takes over.",
        "text",
    ),
    "DeepSeek": "The token `<｜tool▁calls▁begin｜>` opens the list of calls.",
    "gpt-oss": "Harmony routes by channel: `<|channel|>commentary to=functions.get_weather <|message|>{}`.",
    "legacy Claude": shown(
        "The first models wrote",
        "<function_calls>\n<invoke>\n<tool_name>get_weather</tool_name>\n</invoke>\n</function_calls>",
        "This form is deprecated.",
        "xml",
    ),
    "special tokens": "Stop at `<|im_end|>`; the pad token is `<|endoftext|>`.",
    "a parser": shown(
        "Extract the calls with",
        're.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)',
        "before JSON.",
        "python",
    ),
    "ReAct in a fence": shown("A step of ReAct is", REACT, "and so on.", ""),
    "ReAct in a fence at the end": shown("A step of ReAct is", REACT, language="text"),
    "ReAct in words": "ReAct alternates Thought, Action and Observation: the Action names a tool, and Action Input is its argument.",
    "ReAct in a list": "- Thought: what the model thinks\n- Action: the tool it picks\n- Observation: what came back",
    "ReAct with labels": "**Thought**: reasoning about the task.\n**Action**: a tool to call.\n**Action Input**: its arguments.\n**Observation**: the result.",
    "ReAct without a fence": f"ReAct looks like this:\n\n{REACT}\nThought: I know it.\nFinal Answer: It is sunny.\n\nThe loop ends there.",
    "LangChain's prompt": shown(
        "The prompt says",
        "Use this format:\n\nAction: the action to take\nAction Input: the input to the action\nObservation: the result of the action",
        language="text",
    ),
    "a JSON action": shown(
        "The agent must answer", '{"action": "get_weather", "action_input": "Oslo"}', "in one blob."
    ),
    "a final action": 'It ends with {"action": "Final Answer", "action_input": "It is sunny."}.',
    "DSPy": "The field markers look like `[[ ## answer ## ]]`.",
    "a prompt": shown(
        "I wrote this prompt:",
        f"You may call tools. Answer with JSON such as\n{CALL}\nand nothing else.",
        "It works better.",
        "text",
    ),
    "a training example": shown(
        "One row:",
        '{"messages": [{"role": "assistant", "tool_calls": [' + OPENAI + "]}]}",
        "There are 5,000.",
    ),
    "an evaluation": shown(
        "The expected call:",
        '{"expected": {"name": "get_weather", "arguments": {"city": "Oslo"}}}',
        "The agent made another one.",
    ),
    "a bug report": f"The server returned `{CALL}` as text instead of `tool_calls`; upgrade to fix it.",
    "YAML of a call": shown("In YAML:", "name: get_weather\narguments:\n  city: Oslo", language="yaml"),
    "pseudo code": 'The model emits get_weather(city="Oslo"), the runtime runs it, and the model answers.',
    "a signature": "`get_weather(city: str, unit: str = 'C') -> str`",
    "Gemma": shown(
        "Gemma wraps code like this:",
        '```tool_code\nget_weather(city="Oslo")\n```',
        "Note the language tag.",
        "",
    ).replace("```\n```", "````\n```"),
}
PROSE: dict[str, str] = {
    "an answer": "It is sunny in Oslo.",
    "an answer as JSON": '{"name": "Oslo", "temperature": 21, "unit": "C"}',
    "a list as JSON": '[{"name": "Oslo", "temperature": 21}, {"name": "Bergen", "temperature": 17}]',
    "a product": '{"name": "Drill", "price": 99.5, "specs": {"watts": 700}}',
    "an answer in a fence": fence('{"city": "Oslo", "temperature": 21}'),
    "a decision": '{"action": "approve", "reason": "The amount is below the limit."}',
    "a decision with its arguments": '{"decision": "refund", "parameters": {"amount": 20}}',
    "a plan": "1. Read the file.\n2. Fix the bug.\n3. Run the tests.",
    "a plan with actions": "Action items:\n- Anna: send the draft\n- Action: none for Bob\n\nNext meeting on Friday.",
    "actions of a meeting": "**Decision:** ship on Friday.\n**Action:** Anna writes the notes.\n**Observation:** the tests are slow.",
    "an observation": "Observation: the second group is larger.\n\nThought: it may be chance.",
    "a table": "| tool | calls |\n|---|---|\n| read | 3 |\n| write | 1 |",
    "a summary of calls": "I called `read_table` twice and `plot` once; both succeeded.",
    "a question": "Which branch should I use: `main` or `dev`?",
    "a quotation": '> "Thought: never act twice."\n\nThat is the quotation.',
    "a dialogue": "User: hello\nAgent: hi\nUser: bye",
    "LaTeX": "The loss is \\[L = \\frac{1}{n}\\sum_i (y_i - f(x_i))^2\\].",
    "a citation": "As shown in [1], [2](https://example.com/a_(b)) holds.",
    "footnotes": '[1] The field "tool" is old: see [2].\n[2] It is "function" now.',
    "an e-mail": "Subject: Action required: confirm your address\n\nDear Anna,\nplease confirm it.",
    "a chess game": "1. e4 e5 2. Nf3 Nc6: the call is White's.",
    "a stack of tags": "Use <b>, <i> and <search> elements; close them all.",
    "an XML answer": "<answer>\n<city>Oslo</city>\n</answer>",
    "a thought": "<think>The user wants the weather.</think>It is sunny.",
    "a path": "The file is C:\\tools\\call.json; open it with `type call.json`.",
    "a URL": "See https://example.com/search?q=tool_calls&args={a}.",
    "brackets": "[x] done\n[ ] open",
    "a bracketed word": "[Note] The call failed twice, then it worked.",
    "JSON in words": 'The keys are "name", "arguments" and "id", in that order.',
    "a JSON answer with a tool": '{"tool": "hammer", "material": "steel"}',
    "a recipe": '{"name": "Bread", "steps": [{"action": "mix", "minutes": 5}, {"action": "bake", "minutes": 40}]}',
    "a music list": "Playlist: [Intro (2:10), Song (3:15)]",
    "a contract": 'The function (see § 3) is called "agent"; its input: one signature.',
    "a report": "# Result\n\n## Action: none\n\nThe input was valid. Observation: 3 rows.",
    "a poem": "I call, you call,\nthe tools all fall.",
    "a trailing token": "It is done.<|im_end|>",
    "numbers": "3 * (4 + 5) = 27",
}
ANSWERS: dict[str, str] = {
    f"{group}: {name}": text
    for group, answers in (
        ("configuration", CONFIGURATION),
        ("code", CODE),
        ("documentation", DOCUMENTATION),
        ("prose", PROSE),
    )
    for name, text in answers.items()
}
