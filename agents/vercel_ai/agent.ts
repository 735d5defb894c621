/**
 * A tool-using agent built with Vercel's AI SDK, in TypeScript.
 *
 * It knows nothing of how it is trained: it gets a task and two URLs, in its environment; what it prints is its answer.
 * Run by path, in an environment of its own: `harness train --agent agents/vercel_ai/agent.ts`.
 */
import { createMCPClient } from "@ai-sdk/mcp";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const env = process.env as Record<string, string>;
const task: { system_prompt: string; user_message: string } = JSON.parse(env.HARNESS_TASK);

const provider = createOpenAICompatible({ name: "harness", baseURL: env.OPENAI_BASE_URL, apiKey: env.OPENAI_API_KEY });
const server = await createMCPClient({ transport: { type: "http", url: env.MCP_URL } });
try {
  const { text } = await generateText({
    model: provider(env.HARNESS_MODEL),
    tools: await server.tools(),
    system: task.system_prompt,
    prompt: task.user_message,
    stopWhen: () => false, // it goes on while tools are called; the gateway ends a rollout at its turn limit
  });
  process.stdout.write(text);
} finally {
  await server.close();
}
