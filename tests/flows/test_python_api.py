"""The Python API over a run: real gateway, store and tool servers, a scripted engine, and a trainer that only plans.

The trainer process itself is tested in test_python_api_trainer.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAIError

import harness.api as art
from harness.api.run import Run
from harness.api.trainer import Taken, step_of
from harness.config_source import load_config
from harness.engine import attach
from harness.errors import ConfigError, HarnessError, TrainingError
from harness.policy import Policy, adapter_name
from harness.session import attach_tool_server
from harness.stack import Stack
from harness.task_server import NO_TOOLS, NoTools, TaskServer
from mcp_servers.game_2048.server import game_2048_world
from mcp_servers.retail.server import retail_world
from mcp_servers.world import World
from tests.conftest import REPO
from tests.model_doors import serve_doors
from tests.rollout_world import tool_call
from tests.scripted_engine import ScriptedEngine, serve_engine
from tests.scripted_judge import honest, scripted_judge
from tests.served_worlds import CONTROL_KEY, serve_world
from traces.records import PolicyRecord
from traces.store import Store
from traces.trajectory import Ending
from training.batch import BatchRules, group_rows, plan_call


@dataclass
class PlanningTrainer:
    """Takes calls as the trainer process does, without learning: consumes, publishes the base as a new version."""

    rows: tuple[int, ...] = ()

    async def start(self) -> None:
        """Nothing to start."""

    async def wait_until_taken(self, store: Store, run_id: str, group_id: str, before: int) -> Taken:
        rules = BatchRules(rows=1)
        pending = [group_rows(store.group(record.group_id), rules) for record in store.unconsumed_groups(run_id)]
        batch = plan_call(pending, before, rules)
        assert batch is not None
        self.rows = (*self.rows, len(batch.rows))
        step = before + 1 if batch.rows else before
        store.consume(run_id, batch.group_ids, step)
        if batch.rows:
            store.append_policy(
                PolicyRecord(run_id=run_id, version=step, model=adapter_name(step), adapter_path=None, step=step)
            )
        assert step_of(store, run_id, group_id) == step
        return Taken(step, dict(batch.metrics))


@dataclass
class Here:
    """A registered model."""

    model: art.TrainableModel
    backend: InProcessBackend
    engine: ScriptedEngine

    @property
    def store(self) -> Store:
        return self.model.run.store


WORLDS: dict[str, Callable[[], World]] = {"retail": retail_world, "game_2048": game_2048_world}


@dataclass
class InProcessBackend:
    """A backend whose gateway and tool server run in this event loop; the run is as `LocalBackend` makes it."""

    folder: Path
    engine_url: str
    tools: str
    parts: AsyncExitStack

    def folder_of(self, model: art.Model | art.TrainableModel) -> Path:
        return self.folder / model.project / model.name

    async def open_run(self, model: art.TrainableModel) -> Run:
        folder = self.folder_of(model)
        folder.mkdir(parents=True)
        config = load_config(flags={"run.name": model.name, "tools.server": self.tools, "wandb.mode": "disabled"})
        doors = await self.parts.enter_async_context(serve_doors(self.engine_url, folder))
        server: TaskServer = NoTools()
        if self.tools != NO_TOOLS:
            served = await self.parts.enter_async_context(serve_world(WORLDS[self.tools]()))
            attached = attach_tool_server(self.tools, served.url, served.url, CONTROL_KEY)
            server = await self.parts.enter_async_context(attached)
        stack = Stack(await attach(self.engine_url), server, doors.admin, ())
        trainer: Any = PlanningTrainer()
        return Run(config, folder, doors.store, stack, trainer, Policy("base"))


@asynccontextmanager
async def registered(folder: Path, answer: Callable[[str], str], tools: str = NO_TOOLS) -> AsyncGenerator[Here]:
    engine = ScriptedEngine(answer)
    async with serve_engine(engine) as url, AsyncExitStack() as parts:
        backend = InProcessBackend(folder, url, tools, parts)
        model = art.TrainableModel(name="m", project="p")
        await model.register(backend)
        yield Here(model, backend, engine)


def count_up(prompt: str) -> str:
    """Says how many answers there were before, with odd spacing."""
    return f"answer  {prompt.count('<|im_start|>assistant') - 1} .<|im_end|>"


async def two_turns(model: art.TrainableModel, reward: float) -> art.Trajectory:
    client = model.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": f"go {reward}"}])
    for _ in range(2):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages()
        )
        trajectory.messages_and_choices += [completion.choices[0], {"role": "user", "content": "more"}]
    trajectory.reward = reward
    return trajectory


async def test_a_gathered_group_is_trained_from_what_the_gateway_recorded(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        rewards = (0.0, 1.0, 0.5)
        (group,) = await art.gather_trajectory_groups(
            [art.TrajectoryGroup((two_turns(here.model, reward) for reward in rewards), metadata={"task_id": "t-1"})]
        )
        assert [trajectory.reward for trajectory in group] == list(rewards)
        assert await here.model.get_step() == 0
        result = await here.model.train([group])
        assert (result.step, result.trained, await here.model.get_step()) == (1, True, 1)
        assert result.metrics["reward"] == 0.5
        (closed,) = here.store.groups("m")
        stored = here.store.group(closed.group_id)
        assert (stored.task_id, stored.split, stored.position) == ("t-1", "train", 0)
        assert [t.score().value for t in stored.trajectories] == list(rewards)
        for trajectory, record in zip(group, stored.trajectories, strict=True):
            assert trajectory.rollouts == {"m": record.rollout_id}
            assert record.ending is Ending.ANSWERED
            assert [turn.has_tokens for turn in record.turns] == [True, True]
            sampled = [*record.turns[0].prompt_ids_T, *record.turns[0].completion_ids_T]
            assert list(record.turns[1].prompt_ids_T[: len(sampled)]) == sampled, "the second turn was re-tokenised"
            assert record.metrics["drift_tokens"] == 0
        assert here.model.run.trainer.rows == (3,)


async def test_rollouts_that_run_at_once_keep_to_doors_of_their_own(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        groups = [art.TrajectoryGroup(two_turns(here.model, float(n)) for n in range(8)) for _ in range(2)]
        gathered = await art.gather_trajectory_groups(groups, pbar_desc=None)
        ids = [trajectory.rollouts["m"] for group in gathered for trajectory in group]
        assert len(set(ids)) == 16
        for group in gathered:
            for trajectory in group:
                turns = here.store.trajectory(trajectory.rollouts["m"]).turns
                assert [turn.input_messages[0]["content"] for turn in turns] == [f"go {trajectory.reward}"] * 2


async def test_groups_whose_rewards_are_all_the_same_make_no_step(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        groups = await art.gather_trajectory_groups([art.TrajectoryGroup(two_turns(here.model, 1.0) for _ in range(2))])
        result = await here.model.train(groups)
        assert (result.step, result.trained, result.metrics) == (0, False, {})


async def test_errors_are_borne_up_to_the_bound_and_leave_their_group(tmp_path: Path) -> None:
    async def broken(model: art.TrainableModel) -> art.Trajectory:
        await model.openai_client().chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        raise ValueError("my own mistake")

    async with registered(tmp_path, count_up) as here:

        def group() -> art.TrajectoryGroup:
            return art.TrajectoryGroup([two_turns(here.model, 1.0), broken(here.model)])

        (borne,) = await art.gather_trajectory_groups([group()], max_exceptions=1)
        assert (len(borne), [str(error) for error in borne.exceptions]) == (1, ["my own mistake"])
        endings = here.store.count_endings("m")
        assert endings == {Ending.ANSWERED: 1, Ending.AGENT_ERROR: 1}
        with pytest.raises(ValueError, match="my own mistake"):
            await art.gather_trajectory_groups([group()])
        assert None not in here.store.count_endings("m"), "a rollout was left open"


async def test_a_failure_of_the_engine_never_becomes_a_trajectory_with_reward_zero(tmp_path: Path) -> None:
    async def careless(model: art.TrainableModel) -> art.Trajectory:
        try:
            return await two_turns(model, 1.0)
        except OpenAIError:
            return art.Trajectory(reward=0.0)

    async with registered(tmp_path, count_up) as here:
        here.engine.fail_next += ["500"] * 50
        attempts = [careless(here.model), two_turns(here.model, 1.0)]
        (group,) = await art.gather_trajectory_groups([art.TrajectoryGroup(attempts)], max_exceptions=9)
        assert len(group) == 0
        for error in group.exceptions:
            assert isinstance(error, art.RolloutFailed)
            assert error.ending is Ending.ENGINE_ERROR
        with pytest.raises(TrainingError, match="no trajectory in them"):
            await here.model.train([group])


async def test_choices_and_trajectories_that_were_not_sampled_here_are_refused(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        (good, other) = await art.gather_trajectories([two_turns(here.model, 1.0), two_turns(here.model, 0.0)])
        assert isinstance(good, art.Trajectory)
        assert isinstance(other, art.Trajectory)
        good.choices()[0].message.content = "words I would have liked better"
        with pytest.raises(TrainingError, match="never sampled: 'words I would"):
            await here.model.train([art.TrajectoryGroup([good, other])])
        with pytest.raises(TrainingError, match="rollouts of no model"):
            await here.model.train([art.TrajectoryGroup([art.Trajectory(reward=1.0), other])])
        with pytest.raises(TrainingError, match="the same rollout twice"):
            await here.model.train([art.TrajectoryGroup([other, other])])
        other.reward = math.nan
        with pytest.raises(TrainingError, match="the reward nan"):
            await here.model.train([art.TrajectoryGroup([other])])
        assert here.store.groups("m") == []


async def test_tasks_of_a_tool_server_are_worked_on_in_sessions_and_graded(tmp_path: Path) -> None:
    async def refuse(model: art.TrainableModel, task: art.Task) -> art.Trajectory:
        async with model.rollout(task) as rollout:
            client = model.openai_client()
            words: list[Any] = [{"role": "user", "content": rollout.task.user_message}]
            completion = await client.chat.completions.create(model=rollout.door.model, messages=words)
            rollout.answer = completion.choices[0].message.content
            trajectory = art.Trajectory(messages_and_choices=[*words, completion.choices[0]])
        assert rollout.score is not None
        trajectory.reward = rollout.score.value
        return trajectory

    async with registered(tmp_path, count_up, tools="retail") as here:
        tasks = await here.model.tasks("train", count=24)
        picked = [
            next(t for t in tasks if t.is_refusal and not t.expected.get("communicate")),
            next(t for t in tasks if not t.is_refusal),
        ]
        gathered = await art.gather_trajectories([refuse(here.model, task) for task in picked])
        assert [trajectory.reward for trajectory in gathered] == [1.0, 0.0]
        again = await here.model.run_agent(lambda task, door: _say_no(), picked[0])
        assert (again.reward, again.metrics["passed"], again.rollouts.keys()) == (1.0, 1.0, {"m"})
        result = await here.model.train([art.TrajectoryGroup(gathered)])
        assert result.trained


async def _say_no() -> str:
    return "I can't do that."


async def test_a_registration_of_processes_takes_up_what_a_kill_left(tmp_path: Path) -> None:
    async with serve_engine(ScriptedEngine(count_up)) as url:

        def backend() -> art.LocalBackend:
            return art.LocalBackend(tmp_path, settings={"engine.url": url, "wandb.mode": "disabled"})

        async with backend() as first:
            model = art.TrainableModel(name="m", project="p")
            await model.register(first)
            model.run.trainer = PlanningTrainer()  # type: ignore[assignment]
            attempts = (two_turns(model, float(number)) for number in range(2))
            groups = await art.gather_trajectory_groups([art.TrajectoryGroup(attempts)])
            assert (await model.train(groups)).step == 1
            with pytest.raises(ConfigError, match="twice"):
                await art.TrainableModel(name="m", project="p").register(first)
        async with backend() as second:
            again = art.TrainableModel(name="m", project="p")
            await again.register(second)
            # The planning trainer wrote no checkpoint, as if killed before it: the step is undone, its groups wait.
            assert await again.get_step() == 0
            assert len(again.run.store.unconsumed_groups("m")) == 1


async def test_logged_groups_are_on_record_and_never_trained(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        groups = await art.gather_trajectory_groups([art.TrajectoryGroup(two_turns(here.model, 1.0) for _ in range(2))])
        numbers = await here.model.log(groups, split="val")
        assert numbers == {"reward": 1.0, "trajectories": 2.0, "exceptions": 0.0}
        assert here.store.unconsumed_groups("m") == []
        assert [record.split for record in here.store.groups("m")] == ["val"]
        rows = [json.loads(line) for line in (tmp_path / "p/m/trajectories/val-0000.jsonl").read_text().splitlines()]
        assert [row["messages"][1]["content"] for row in rows] == ["answer  0 ."] * 2
        hosted = art.Model(name="gpt", project="p")
        with pytest.raises(HarnessError, match="not registered"):
            await hosted.log(groups)
        await hosted.register(here.backend)
        assert (await hosted.log([art.TrajectoryGroup([art.Trajectory(reward=0.5)])]))["reward"] == 0.5


async def test_an_evaluation_counts_failures_of_infrastructure_apart(tmp_path: Path) -> None:
    async def attempt(model: art.TrainableModel, scenario: dict[str, Any]) -> art.Trajectory:
        if scenario["id"] == "broken":
            here.engine.fail_next += ["500"] * 50
        elif scenario["id"] == "wrong":
            raise ValueError("no idea")
        return await two_turns(model, 1.0)

    async with registered(tmp_path, count_up) as here:
        scenarios = [{"id": name} for name in ("right", "wrong")]
        found = art.summarise(await art.evaluate(here.model, attempt, scenarios, samples=2, pbar_desc=None))
        assert (found.success.mean, found.infrastructure, found.rollouts) == (0.5, 0, 4)
        assert found.means["turns"] > 0
        lost = art.summarise(await art.evaluate(here.model, attempt, [{"id": "broken"}], pbar_desc=None))
        assert (lost.infrastructure, lost.success.count) == (1, 0)
        assert list((tmp_path / "p/m/evaluations").glob("eval-val-v0-*.json"))


async def test_a_judge_replaces_rewards_and_a_lost_judge_drops_the_group(tmp_path: Path) -> None:
    def said(worth: float) -> art.Trajectory:
        words = [{"role": "user", "content": "go"}, {"role": "assistant", "content": f"done, worth {worth:.2f}"}]
        return art.Trajectory(messages_and_choices=words, reward=9.0)

    async with scripted_judge(honest) as judge:
        group = await art.ruler_score_group(art.TrajectoryGroup([said(0.2), said(0.9)]), judge.spec())
        assert group is not None
        assert [trajectory.reward for trajectory in group] == [0.2, 0.9]
        assert [trajectory.metrics["independent_reward"] for trajectory in group] == [9.0, 9.0]
        assert group.metrics["ruler/calls"] == 1
    async with scripted_judge(lambda _: "I would rather not.") as judge:
        lost = art.TrajectoryGroup([said(0.2), said(0.9)])
        assert await art.ruler_score_group(lost, judge.spec(), swallow_exceptions=True) is None
        with pytest.raises(HarnessError):
            await art.ruler_score_group(lost, judge.spec())
        assert [trajectory.reward for trajectory in lost] == [9.0, 9.0]


async def test_calls_outside_of_rollouts_reach_the_engine_and_leave_no_record(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        client = here.model.openai_client()
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "answer  0 ."
        assert here.store.rollouts() == []
        pinned = await here.model.at_step(0, temperature=0.0)
        assert (pinned.name, await pinned.get_step(), pinned.temperature) == ("m@0", 0, 0.0)
        with pytest.raises(ConfigError, match="the versions 0 to 0"):
            await here.model.at_step(7)
        with pytest.raises(HarnessError, match="pinned"):
            await pinned.train([])
        with pytest.raises(ConfigError, match="epsilom: Extra inputs"):
            await here.model.train([], config=art.TrainConfig(settings={"epsilom": 0.1}))


async def test_a_cancelled_gathering_leaves_every_rollout_interrupted(tmp_path: Path) -> None:
    async with registered(tmp_path, count_up) as here:
        here.engine.hold = asyncio.Event()
        attempts = [two_turns(here.model, 1.0) for _ in range(3)]
        running = [asyncio.create_task(art.gather_trajectories(attempts))]
        for _ in range(3):
            await asyncio.wait_for(here.engine.waiting.acquire(), 30)
        running[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running[0]
        assert here.store.count_endings("m") == {Ending.INTERRUPTED: 3}
        here.engine.hold.set()


def shuffle_left_and_right(prompt: str) -> str:
    """Plays 2048 badly: left, down, left, down, with something impossible at the start; gives up after a while."""
    moves = prompt.count("<|im_start|>tool\n")
    if moves >= 6:
        return "That is all I can do.<|im_end|>"
    direction = "nowhere" if moves == 0 else ("left", "down", "right")[moves % 3]
    return tool_call("move", direction=direction)


async def test_the_2048_example_plays_through_mcp_and_is_rewarded_for_how_far_it_came(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("train_2048", REPO / "examples" / "train_2048.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    async with registered(tmp_path, shuffle_left_and_right, tools="game_2048") as here:
        (task,) = await here.model.tasks("train", count=1)
        (trajectory,) = await art.gather_trajectories([example.play(here.model, task)])
        assert isinstance(trajectory, art.Trajectory)
        assert 0 < trajectory.reward < 1
        assert trajectory.metrics["moves"] >= 1
        record = here.store.trajectory(trajectory.rollouts["m"])
        assert (record.tool_calls[0].is_error, len(record.tool_calls)) == (True, 6)
        assert len(record.turns) == 7
        assert record.metrics["drift_tokens"] == 0
