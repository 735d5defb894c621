"""2048 from task to trained adapter, on the Python API: `python examples/train_2048.py`.

A game is a task of the server `game_2048`; the policy plays it through MCP. The reward is how far it came. Stopped at
any moment, the same command goes on with the step that came next. `--model nano` shows the whole path on a laptop,
quickly; that model was never taught the game.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from mcp import Client, MCPError

import harness.api as art


async def play(model: art.TrainableModel, task: art.Task) -> art.Trajectory:
    """One game: the policy moves until it wins, loses, stops, or has used up its turns."""
    async with model.rollout(task) as game, Client(game.door.mcp_url) as server:
        client = model.openai_client()
        tools = [as_function(tool) for tool in (await server.list_tools()).tools]
        trajectory = art.Trajectory(
            messages_and_choices=[
                {"role": "system", "content": game.task.system_prompt},
                {"role": "user", "content": game.task.user_message},
            ],
            tools=tools,
        )
        for _ in range(game.door.max_turns):
            completion = await client.chat.completions.create(
                model=model.get_inference_name(), messages=trajectory.messages(), tools=tools
            )
            choice = completion.choices[0]
            trajectory.messages_and_choices.append(choice)
            if not choice.message.tool_calls:
                break
            for call in choice.message.tool_calls:
                board = await called(server, call.function.name, call.function.arguments)
                trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": board})
    score = game.score.components if game.score is not None else {}
    # A win counts as much as the whole way to it, so that being quick about it is never worth losing.
    trajectory.reward = (score["progress"] + score["win"]) / 2
    trajectory.metrics |= {"passed": score["win"], "best_tile": score["best_tile"], "moves": score["moves"]}
    return trajectory


async def called(server: Client, name: str, arguments: str) -> str:
    """What a tool answers; what goes wrong is text that the policy reads."""
    try:
        result = await server.call_tool(name, json.loads(arguments or "{}"))
    except (ValueError, MCPError) as error:
        return f"Error: {error}"
    return "\n".join(part.text for part in result.content if part.type == "text")


def as_function(tool: Any) -> dict[str, Any]:
    """An MCP tool as the chat API takes it."""
    described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": described}


async def main(model_name: str, steps: int, games: int, tries: int) -> None:
    """Evaluate, train, evaluate."""
    settings = {"rollout.turns": 40, "rollout.answer_tokens": 256, "tasks.difficulty": 1}
    async with art.LocalBackend("runs", tools="game_2048", settings=settings) as backend:
        model = art.TrainableModel(name="agent-1", project="2048", base_model=model_name)
        await model.register(backend)
        held_out = await model.tasks("held_out", count=games * 4)
        before = await art.evaluate(model, play, held_out, label="before", split="held_out")
        train = await model.tasks("train", count=steps * games)
        for batch in art.iterate_dataset(train, groups_per_step=games, initial_step=await model.get_step()):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup((play(model, task) for _ in range(tries)), metadata={"task_id": task.id})
                    for task in batch.items
                ),
                pbar_desc=f"step {batch.step + 1} of {steps}",
                max_exceptions=0.1,
            )
            result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
            print(f"step {result.step}", {name: round(value, 4) for name, value in result.metrics.items()})
        after = await art.evaluate(model, play, held_out, label="after", split="held_out")
        for evaluation in (before, after):
            found = art.summarise(evaluation)
            print(f"{evaluation.spec.label}: won {found.success.mean:.0%}, reward {found.reward.mean:.2f}")
        print(f"adapter: {model.policy.adapter_path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a model to play 2048.")
    parser.add_argument("--model", default="Qwen/Qwen3-4B-Instruct-2507", help="folder, Hugging Face id, or nano")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--games", type=int, default=8, help="games of one step")
    parser.add_argument("--tries", type=int, default=8, help="attempts at each game, compared with one another")
    given = parser.parse_args()
    asyncio.run(main(given.model, given.steps, given.games, given.tries))
