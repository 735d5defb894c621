"""Every span, event and attribute name we write or read, each with its source.

It knows nothing about spans or stores; names only. GENAI and MCP names are of status Development and are pinned here as
strings (open-telemetry/semantic-conventions-genai, read at b49cb9d, 8f24f0e and 024a4f9), because the constants of the
Python package lag behind. `harness.*` names are ours. Gateways, importers, assembly and export use them.
"""

from __future__ import annotations

from typing import Final

# --- GenAI spans: semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md
OPERATION_NAME: Final = "gen_ai.operation.name"
OPERATION_CHAT: Final = "chat"
OPERATION_TEXT_COMPLETION: Final = "text_completion"
OPERATION_GENERATE_CONTENT: Final = "generate_content"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"

# --- GenAI content (opt-in), JSON schemas gen-ai-input-messages.json, -output-messages.json, -tool-definitions.json
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"

# --- GenAI agents and tools: docs/gen-ai/gen-ai-agent-spans.md
AGENT_NAME: Final = "gen_ai.agent.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

# --- GenAI evaluation: docs/gen-ai/gen-ai-events.md
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"

# --- MCP: semantic-conventions-genai, docs/mcp/mcp.md; trace context in params._meta: MCP SEP-414
MCP_METHOD_NAME: Final = "mcp.method.name"
MCP_METHOD_TOOLS_CALL: Final = "tools/call"
MCP_PROTOCOL_VERSION: Final = "mcp.protocol.version"
MCP_SESSION_ID: Final = "mcp.session.id"
MCP_RESOURCE_URI: Final = "mcp.resource.uri"
JSONRPC_REQUEST_ID: Final = "jsonrpc.request.id"
RPC_STATUS_CODE: Final = "rpc.response.status_code"
ERROR_TYPE_TOOL: Final = "tool_error"

# --- Stable core: open-telemetry/semantic-conventions v1.41.0, docs/general/attributes.md
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
NETWORK_TRANSPORT: Final = "network.transport"
SERVICE_NAME: Final = "service.name"

# --- Ours: where a span belongs. The store keeps these as columns; export writes them as attributes.
ROLLOUT_ID: Final = "harness.rollout.id"
GROUP_ID: Final = "harness.group.id"
RUN_ID: Final = "harness.run.id"
TASK_ID: Final = "harness.task.id"
TASK_KIND: Final = "harness.task.kind"
TASK_SPLIT: Final = "harness.task.split"
POLICY_VERSION: Final = "harness.policy.version"
ENDING: Final = "harness.rollout.ending"
ENDING_DETAIL: Final = "harness.rollout.ending_detail"
AGENT_OUTPUT: Final = "harness.agent.output"
USER_HEARD: Final = "harness.user.heard"
USER_SAID: Final = "harness.user.said"

# --- Ours: tokens. In OTLP as base64 of little-endian int32 and float32; in the store as typed columns.
PROMPT_IDS: Final = "harness.tokens.prompt_ids"
COMPLETION_IDS: Final = "harness.tokens.completion_ids"
LOGPROBS: Final = "harness.tokens.logprobs"
TOKENS_RESCORED: Final = "harness.tokens.rescored"
FORK_CAUSE: Final = "harness.fork.cause"
FORK_MESSAGE_INDEX: Final = "harness.fork.message_index"
FORK_TOKEN_INDEX: Final = "harness.fork.token_index"
DRIFT_TOKENS: Final = "harness.drift.tokens"

# --- Ours: gateways.
DIALECT: Final = "harness.gateway.dialect"
CONTINUATION: Final = "harness.gateway.continuation"
ASKED_MODEL: Final = "harness.gateway.asked_model"
RETRY_COUNT: Final = "harness.gateway.retry_count"
LIMIT_HIT: Final = "harness.gateway.limit"
IDEMPOTENCY_KEY: Final = "harness.idempotency_key"
TOOL_SERVER: Final = "harness.tool.server"
TOOL_REPLAYED: Final = "harness.tool.replayed"
SCORER_VERSION: Final = "harness.scorer.version"
SCORE_COMPONENTS: Final = "harness.score.components"
EVIDENCE_GAPS: Final = "harness.evidence.gaps"


def chat_span_name(model: str) -> str:
    """`chat {model}`: inference span name."""
    return f"{OPERATION_CHAT} {model}"


def agent_span_name(agent: str) -> str:
    """`invoke_agent {agent}`."""
    return f"{OPERATION_INVOKE_AGENT} {agent}"


def execute_tool_span_name(tool: str) -> str:
    """`execute_tool {tool}`."""
    return f"{OPERATION_EXECUTE_TOOL} {tool}"


def mcp_span_name(method: str, target: str = "") -> str:
    """`{mcp.method.name} {target}`, such as `tools/call cancel_order`."""
    return f"{method} {target}" if target else method
