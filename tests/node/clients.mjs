// The official Node clients at a model door: two turns with parallel tool calls in every dialect, whole and streamed.
// `node clients.mjs <model door>`; prints what each talk came to as one JSON object. Run by tests/contracts/test_node_clients.py.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [door] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: door, apiKey: "unused", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: door.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 0 });
const schema = { type: "object", properties: { order_id: { type: "string" } }, required: ["order_id"] };
const names = ["get_order", "cancel_order"];

async function chat(stream) {
  const tools = names.map((name) => ({ type: "function", function: { name, parameters: schema } }));
  const messages = [{ role: "user", content: `cancel both, chat ${stream}` }];
  const ask = async () => {
    const asked = { model: "m", messages, tools };
    const answer = stream
      ? await openai.chat.completions.stream(asked).finalChatCompletion()
      : await openai.chat.completions.create(asked);
    const { content, tool_calls } = answer.choices[0].message;
    messages.push({ role: "assistant", content, tool_calls });
    return { text: content, calls: (tool_calls ?? []).map((c) => [c.id, c.function.name, JSON.parse(c.function.arguments)]) };
  };
  const { calls } = await ask();
  for (const [id] of calls) messages.push({ role: "tool", tool_call_id: id, content: "ok" });
  return { calls, text: (await ask()).text };
}

async function responses(stream) {
  const tools = names.map((name) => ({ type: "function", name, parameters: schema, strict: false }));
  let previous = null;
  const ask = async (input) => {
    const asked = { model: "m", input, tools, previous_response_id: previous };
    const answer = stream ? await openai.responses.stream(asked).finalResponse() : await openai.responses.create(asked);
    previous = answer.id;
    const calls = answer.output.filter((item) => item.type === "function_call");
    return { text: answer.output_text, calls: calls.map((c) => [c.call_id, c.name, JSON.parse(c.arguments)]) };
  };
  const { calls } = await ask(`cancel both, responses ${stream}`);
  const results = calls.map(([call_id]) => ({ type: "function_call_output", call_id, output: "ok" }));
  return { calls, text: (await ask(results)).text };
}

async function messages(stream) {
  const tools = names.map((name) => ({ name, input_schema: schema }));
  const history = [{ role: "user", content: `cancel both, messages ${stream}` }];
  const ask = async () => {
    const asked = { model: "m", max_tokens: 500, messages: history, tools };
    const answer = stream ? await anthropic.messages.stream(asked).finalMessage() : await anthropic.messages.create(asked);
    history.push({ role: "assistant", content: answer.content });
    const calls = answer.content.filter((block) => block.type === "tool_use").map((b) => [b.id, b.name, b.input]);
    const text = answer.content.filter((block) => block.type === "text").map((block) => block.text).join("");
    return { text, calls };
  };
  const { calls } = await ask();
  history.push({ role: "user", content: calls.map(([id]) => ({ type: "tool_result", tool_use_id: id, content: "ok" })) });
  return { calls, text: (await ask()).text };
}

const found = {};
for (const stream of [false, true]) {
  for (const talk of [chat, responses, messages]) found[`${talk.name} ${stream}`] = await talk(stream);
}
try {
  await openai.chat.completions.create({ model: "m", messages: [] });
} catch (error) {
  found.refused = [error.status, error.constructor.name];
}
console.log(JSON.stringify(found));
