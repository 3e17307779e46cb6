// Writes the documents of the Vercel AI SDK: run by record_produced.py in a folder that has the package.
import fs from "node:fs";
import * as ai from "ai";
import * as test from "ai/test";
import { z } from "zod";

const [version, folder] = process.argv.slice(2);
const QUESTION = "Find a quiet hotel in Oslo, and is it sunny?";
const SEARCH = { city: "Oslo", filter: { price: { max: 120.5 }, tags: ["quiet", "øst"] } };
const TURNS = [
  ["", [["search_hotels", SEARCH]]],
  ["Two more checks.", [["get_weather", { city: "Oslo", days: [1, 2] }], ["convert", { amount: 120, to: { currency: "EUR" } }]]],
  ["", [["search_hotels", SEARCH]]],
  ["The Fjord is quiet and it is sunny.", []],
];
const RESULTS = {
  search_hotels: '{"hotels": [{"id": 7, "name": "Fjord"}]}',
  get_weather: "sunny",
  convert: '{"amount": 10.5}',
};
const write = (name, document) =>
  fs.writeFileSync(`${folder}/${name}.json`, JSON.stringify(document, null, 1) + "\n");

const is4 = version === "vercel_v4";
const tools = Object.fromEntries(
  Object.keys(RESULTS).map((name) => {
    const schema = z.object({}).passthrough();
    const given = is4 ? { parameters: schema } : { inputSchema: schema };
    return [name, ai.tool({ description: name, ...given, execute: async () => RESULTS[name] })];
  }),
);

let number = 0;
const script = () => {
  const turns = [...TURNS];
  number = 0;
  return () => {
    const [text, calls] = turns.shift();
    return { text, calls: calls.map(([name, given]) => ({ id: `call_${++number}`, name, given: JSON.stringify(given) })) };
  };
};

const stream = (chunks) => ({ stream: ai.simulateReadableStream({ chunks, initialDelayInMs: null, chunkDelayInMs: null }) });

if (is4) {
  const usage = { promptTokens: 1, completionTokens: 1 };
  let next = script();
  const model = () =>
    new test.MockLanguageModelV1({
      doGenerate: async () => {
        const { text, calls } = next();
        return {
          rawCall: { rawPrompt: null, rawSettings: {} },
          finishReason: calls.length ? "tool-calls" : "stop",
          usage,
          text: text || undefined,
          toolCalls: calls.map((c) => ({ toolCallType: "function", toolCallId: c.id, toolName: c.name, args: c.given })),
        };
      },
      doStream: async () => {
        const { text, calls } = next();
        return {
          rawCall: { rawPrompt: null, rawSettings: {} },
          ...stream([
            ...(text ? [{ type: "text-delta", textDelta: text }] : []),
            ...calls.map((c) => ({ type: "tool-call", toolCallType: "function", toolCallId: c.id, toolName: c.name, args: c.given })),
            { type: "finish", finishReason: calls.length ? "tool-calls" : "stop", usage },
          ]),
        };
      },
    });
  const asked = { role: "user", content: QUESTION };
  const result = await ai.generateText({ model: model(), tools, maxSteps: 10, messages: [asked] });
  write("vercel_v4_core_messages", [asked, ...result.response.messages]);
  write("vercel_v4_generate_text", {
    text: result.text,
    toolCalls: result.toolCalls,
    toolResults: result.toolResults,
    finishReason: result.finishReason,
    steps: result.steps.map(({ stepType, text, toolCalls, toolResults, finishReason }) => ({ stepType, text, toolCalls, toolResults, finishReason })),
  });
  const messages = ai.appendResponseMessages({
    messages: [{ id: "u1", role: "user", content: QUESTION, parts: [{ type: "text", text: QUESTION }] }],
    responseMessages: result.response.messages,
  });
  write("vercel_v4_ui_messages", messages);
} else {
  const usage = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };
  let next = script();
  const model = () =>
    new test.MockLanguageModelV2({
      doGenerate: async () => {
        const { text, calls } = next();
        return {
          finishReason: calls.length ? "tool-calls" : "stop",
          usage,
          warnings: [],
          content: [
            ...(text ? [{ type: "text", text }] : []),
            ...calls.map((c) => ({ type: "tool-call", toolCallId: c.id, toolName: c.name, input: c.given })),
          ],
        };
      },
      doStream: async () => {
        const { text, calls } = next();
        return stream([
          { type: "stream-start", warnings: [] },
          ...(text ? [{ type: "text-start", id: "t" }, { type: "text-delta", id: "t", delta: text }, { type: "text-end", id: "t" }] : []),
          ...calls.map((c) => ({ type: "tool-call", toolCallId: c.id, toolName: c.name, input: c.given })),
          { type: "finish", finishReason: calls.length ? "tool-calls" : "stop", usage },
        ]);
      },
    });
  const asked = { role: "user", content: QUESTION };
  const result = await ai.generateText({ model: model(), tools, stopWhen: ai.stepCountIs(10), messages: [asked] });
  write("vercel_v5_model_messages", [asked, ...result.response.messages]);
  write("vercel_v5_generate_text", { text: result.text, steps: result.steps.map(({ content, finishReason }) => ({ content, finishReason })) });
  next = script();
  const streamed = ai.streamText({ model: model(), tools, stopWhen: ai.stepCountIs(10), messages: [asked] });
  let last;
  for await (const message of ai.readUIMessageStream({ stream: streamed.toUIMessageStream({ generateMessageId: () => "a1" }) })) last = message;
  write("vercel_v5_ui_messages", [{ id: "u1", role: "user", parts: [{ type: "text", text: QUESTION }] }, last]);
}
