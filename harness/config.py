"""The one configuration tree of a run: frozen, with defaults that run, checked when it is built.

Knows nothing about files, flags or the environment (config_source.py reads those) and starts nothing.
Built by the command line; read by everything that a run starts; written, resolved, beside the run's results.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RunsIn = Literal["auto", "here", "process", "venv"]
RewardKind = Literal["checks", "ruler", "independent", "gate", "weighted"]


class Section(BaseModel):
    """A part of the tree: unknown keys are refused, nothing changes after it was built."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class RunSection(Section):
    """Where the run lives and what makes it repeatable."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")] = "run"
    """Folder name under `folder`; letters, digits, dot, dash, underscore."""
    folder: str = "runs"
    """Where run folders are made."""
    seed: NotNegative = 0
    """Seeds task order, adapters, sampling and evaluation."""


class ModelSection(Section):
    """The policy before training."""

    name: str = "nano"
    """`nano` (the shipped small policy), a folder, or a Hugging Face id."""
    adapter: str | None = None
    """Folder of a LoRA adapter to start from; None starts from the model itself."""


class EngineSection(Section):
    """The vLLM server that samples the policy: started here, or attached to by URL."""

    url: str | None = None
    """Base URL of a running server; None starts one."""
    hosted: str | None = None
    """LiteLLM model string of a hosted model to measure in the engine's place (`url` is its address then); it can't be
    trained. Its key comes from the environment."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and activations of the engine; float32 agrees with a float32 trainer token for token."""
    max_model_len: Count | None = None
    """Longest prompt plus answer, tokens; None takes what the model says."""
    max_num_seqs: Count = 32
    """Requests decoded together at most."""
    kv_cache_gib: Annotated[float, Field(gt=0)] = 2.0
    """Room for keys and values on a CPU, GiB."""
    gpu_memory_utilization: Fraction = 0.85
    """Share of GPU memory the engine may take; leave room for a trainer on the same device."""
    tool_call_parser: str = "hermes"
    """vLLM's parser for the model's tool calls."""
    reasoning_parser: str | None = None
    """vLLM's parser for reasoning text; None for models without."""
    start_timeout_s: Seconds = 600.0
    """Time the engine has to become healthy."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for the server's command line."""


class ToolsSection(Section):
    """The tool server whose tasks the agent works on."""

    server: str = "retail"
    """A folder of `mcp_servers/`, a module (`.mine`, `pkg.mine`) that starts like one, or `none`."""
    command: str | None = None
    """Command line of an MCP server that has no tasks, for `tasks.file`: a process a session, on stdio or `{port}`."""
    url: str | None = None
    """Base URL of a running server; with `tasks.file`, its MCP address, which all sessions share. None starts one."""
    control_url: str | None = None
    """State control API of a running server; goes with `url`."""
    call_timeout_s: Seconds = 30.0
    """Time one tool call has before it counts as a failure of infrastructure."""
    args: tuple[str, ...] = ()
    """Further arguments for the server's command line."""
    cassette: str | None = None
    """File of recorded tasks (`harness traces cassettes`) that answer in the server's place; empty for none."""
    on_miss: Literal["refuse", "simulate", "live"] = "refuse"
    """A call not on record: `refuse` answers an error, `simulate` has a model play the tool, `live` asks `live_url`
    or `server` in a session that is brought to where the agent stands."""
    simulator: str | None = None
    """LiteLLM model string that plays tools for `simulate`. Its key comes from the environment."""
    simulator_api_base: str | None = None
    """Address of an OpenAI-compatible endpoint for it; None for the provider's own."""
    live_url: str | None = None
    """MCP address of a running server for `live`; None starts `server`."""


class AgentSection(Section):
    """The agent under training."""

    spec: str = "agents/openai_agents/agent.py"
    """A Python file with `async def run(task, door)`, a file for Node, or a command line."""
    runs_in: RunsIn = "auto"
    """Where a Python file runs: `here` (this process), `process` (one of its own for every rollout), `venv` (the same
    under an environment made from the `requirements.txt` beside it); `auto`: `venv` if there is one, else `here`."""
    python: str | None = None
    """Interpreter for `process` and `venv`, a path or a command; None takes the harness's own."""
    time_limit_s: Seconds = 300.0
    """Time one rollout may take from start to answer."""


class UserSection(Section):
    """The user that an agent talks with while it works on a task."""

    kind: Literal["none", "scripted", "llm"] = "none"
    """`none`: all is in the first message; `scripted` answers by rule; `llm` is played by a model."""
    model: str | None = None
    """LiteLLM model string for `llm`, or `served`: the engine's own base model. Its key comes from the environment."""
    api_base: str | None = None
    """Address of an OpenAI-compatible endpoint; None for the provider's own."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature of the model; None leaves it to the provider."""
    concurrency: Count = 16
    """Model calls under way at once."""
    timeout_s: Seconds = 60.0
    """Time one model call has."""
    messages: Count = 16
    """Messages an agent may send before the user leaves."""


class TasksSection(Section):
    """Which tasks the run draws; the server makes them from the seed."""

    seed: NotNegative = 0
    """Seed of the task generator; the same seed gives the same tasks."""
    train: Count = 512
    """Training tasks before the order starts over."""
    kinds: tuple[str, ...] = ()
    """Request kinds to draw from, repeat one to weigh it; empty leaves the mix to the server."""
    difficulty: Count | None = None
    """Draw tasks of this difficulty only, where the server knows levels; None leaves the mix to the server."""
    file: str | None = None
    """Tasks as JSON lines (`harness tasks generate`) in place of the server's own; they need a judge as the reward."""


class RolloutSection(Section):
    """How one rollout samples and how far it may go."""

    concurrency: Count = 32
    """Rollouts under way at once."""
    gateways: Count = 1
    """Gateway processes, which share the rollouts: one core serves over a thousand model calls a second."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature while training."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus mass; 1 keeps the whole distribution, which the loss assumes."""
    turns: Count = 24
    """Model calls at most."""
    tokens: Count = 16_384
    """Sampled tokens of the whole rollout at most."""
    answer_tokens: Count = 1024
    """Sampled tokens of one model call at most."""
    infrastructure_retries: NotNegative = 2
    """Fresh attempts after a failure of infrastructure."""
    give_up_after: Count = 8
    """Groups in a row of which nothing but failures of infrastructure may come before training stops."""


class RewardSection(Section):
    """What a trajectory is worth."""

    kind: RewardKind = "checks"
    """`checks` grades the final state; `ruler` has a judge compare a group, `independent` has it judge each alone;
    `gate` and `weighted` blend checks and judge."""
    checks_weight: Fraction = 0.5
    """Share of the checks in `weighted`."""


class JudgeSection(Section):
    """The LLM judge, called through LiteLLM. Its key comes from the environment, never from here."""

    model: str | None = None
    """LiteLLM model string, such as `openai/gpt-5`, or `served`: the base model that the run's own engine serves.
    Needed by every reward but `checks`."""
    api_base: str | None = None
    """Address of an OpenAI-compatible endpoint; None for the provider's own."""
    rubric: str | None = None
    """Text or file of the rubric; None for the default."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature of the judge; None leaves it to the provider."""
    concurrency: Count = 8
    """Judge calls under way at once."""
    timeout_s: Seconds = 120.0
    """Time one judge call has."""
    votes: Count = 1
    """Independent orders in which `ruler` has a group judged; their scores are averaged."""
    give_up_after: Count = 8
    """Groups in a row that the judge may leave unscored before the run stops."""


class TrainingSection(Section):
    """How the adapter learns."""

    steps: Count = 30
    """Optimizer steps."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Longest time for training; the newest policy then is the result. None: as long as `steps` take."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Rollouts of one task that are compared with each other (G)."""
    batch_rows: Count = 48
    """Rows of one step (B)."""
    lr: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate of AdamW."""
    lora_rank: Count = 16
    """Rank of the adapter."""
    lora_alpha: Count = 32
    """Scale of the adapter is alpha / rank."""
    lora_targets: str | tuple[str, ...] = "all-linear"
    """Modules the adapter changes, by name; `all-linear` takes every linear layer but the head."""
    epsilon: Annotated[float, Field(gt=0)] = 0.2
    """Clip of the probability ratio below 1."""
    epsilon_high: Annotated[float, Field(gt=0)] = 0.28
    """Clip of the probability ratio above 1."""
    warmup_steps: NotNegative = 2
    """Steps over which the learning rate rises to `lr`, which it then keeps."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Longer gradients are shortened to this."""
    loss_weight: Literal["token", "trajectory"] = "token"
    """What weighs the same in a step's loss: every trained token, or every trajectory however long."""
    agents: tuple[str, ...] = ()
    """Sub-agents whose turns are trained, by the name they send; empty for all. Other turns stay context."""
    models: tuple[str, ...] = ()
    """Model names, as agents ask for them, whose turns are trained; empty for all."""
    turns: Annotated[str, Field(pattern=r"^(-?\d+)?:(-?\d+)?$")] = ":"
    """Slice of these turns that is trained, as Python writes it: `-1:` is the last, `:3` the first three."""
    max_staleness: NotNegative = 1
    """Versions a row may be behind when it is trained on."""
    steps_ahead: NotNegative = 1
    """Steps for which rows are made while the trainer works; 0 alternates, where both want the same cores."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the trainer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the trainer computes; `auto` takes a GPU if there is one."""
    max_row_tokens: Count = 8192
    """Longer rows are dropped and counted."""
    forward_tokens: Count = 32_768
    """Unique tokens of one forward pass at most; a larger step is split and its gradients added up."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: slower, for models that don't fit."""
    group_timeout_s: Seconds = 3600.0
    """Time the trainer waits for a step's rollouts before it gives up."""
    checkpoint_every: Count = 5
    """Steps between checkpoints."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that stay on disk."""


class OfflineSection(Section):
    """Training on what is stored, without rollouts."""

    runs: tuple[str, ...] = ()
    """Folders of runs (or `traces.db` files) whose scored groups are trained on; empty trains on rollouts."""
    rescore: bool = False
    """Give turns without token ids those of the policy's own reading, with its log-probabilities; marked as such."""
    passes: Count = 1
    """How often each group is trained on."""


class EvaluationSection(Section):
    """How success is measured; these numbers never steer training."""

    split: Literal["train", "validation", "held_out"] = "held_out"
    """Tasks to measure on."""
    tasks: Count = 128
    """Tasks of one measurement."""
    samples: Count = 1
    """Rollouts of each task at temperature 1; pass^k is told for every k up to it."""
    greedy: bool = True
    """Also measure at temperature 0."""
    before: bool = True
    """Measure before the first step."""
    after: bool = True
    """Measure after the last step."""


class WandbSection(Section):
    """Weights & Biases; without a key in the environment the run is kept offline."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """`auto` goes online if a key is set."""
    project: str = "mcp-agent-training"
    """Project the run is filed under."""
    entity: str | None = None
    """Team or user; None for the key's own."""


class Config(Section):
    """Everything a run is made of."""

    run: RunSection = RunSection()
    """Name, folder, seed."""
    model: ModelSection = ModelSection()
    """The policy before training."""
    engine: EngineSection = EngineSection()
    """The inference server."""
    tools: ToolsSection = ToolsSection()
    """The tool server."""
    agent: AgentSection = AgentSection()
    """The agent under training."""
    user: UserSection = UserSection()
    """Whom the agent talks with."""
    tasks: TasksSection = TasksSection()
    """The tasks drawn."""
    rollout: RolloutSection = RolloutSection()
    """Sampling and limits of one rollout."""
    reward: RewardSection = RewardSection()
    """What a trajectory is worth."""
    judge: JudgeSection = JudgeSection()
    """The LLM judge."""
    training: TrainingSection = TrainingSection()
    """How the adapter learns."""
    offline: OfflineSection = OfflineSection()
    """Training on what is stored."""
    evaluation: EvaluationSection = EvaluationSection()
    """How success is measured."""
    wandb: WandbSection = WandbSection()
    """Where metrics also go."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.reward.kind != "checks" and self.judge.model is None:
            raise ValueError(f"reward.kind = {self.reward.kind!r} needs judge.model (flag --judge)")
        if self.user.kind == "llm" and self.user.model is None:
            raise ValueError("user.kind = 'llm' needs user.model")
        if self.tasks.file is None and (self.tools.url is None) != (self.tools.control_url is None):
            raise ValueError("tools.url and tools.control_url go together")
        if self.tasks.file is not None and self.reward.kind not in ("ruler", "independent"):
            raise ValueError("tasks.file has tasks that no server grades: set reward.kind = 'ruler' or 'independent'")
        if self.tools.command is not None and self.tasks.file is None:
            raise ValueError("tools.command names a server without tasks: set tasks.file (`harness tasks generate`)")
        if self.tools.cassette and self.tools.on_miss == "simulate" and self.tools.simulator is None:
            raise ValueError("tools.on_miss = 'simulate' needs tools.simulator")
        if self.offline.rescore and (self.model.adapter is not None or self.rollout.temperature != 1.0):
            raise ValueError("offline.rescore reads the model itself at temperature 1: leave model.adapter out")
        if self.training.batch_rows < self.training.group_size:
            raise ValueError(
                f"training.batch_rows = {self.training.batch_rows} holds no group of training.group_size = "
                f"{self.training.group_size}"
            )
        if self.training.steps_ahead > self.training.max_staleness:
            raise ValueError(
                f"training.steps_ahead = {self.training.steps_ahead} makes rows that training.max_staleness = "
                f"{self.training.max_staleness} throws away"
            )
        return self
