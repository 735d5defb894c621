"""Every sort of bad agent in one group: each ends for its own reason, nothing is left behind, and the group goes on."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from harness.agent import KEPT_OUTPUT_BYTES, load_agent
from harness.group import GroupPlan, run_group
from tests.rollout_world import POLICY, open_rollout_world
from traces.trajectory import Ending

# Every rollout of the group starts this; each takes the next behaviour that none has taken.
SCRIPT = """
import json, os, subprocess, sys, time, urllib.request

def ask():
    asked = {"role": "user", "content": json.loads(os.environ["HARNESS_TASK"])["user_message"]}
    body = {"model": "m", "messages": [asked]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

def hang():
    time.sleep(600)

def crash():
    ask()
    raise RuntimeError("lost my head")

def flood():
    for _ in range(300):
        sys.stdout.write("x" * 65536)
    print(ask())

def fork():
    for _ in range(8):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(f"{folder}/{child.pid}.pid", "w"):
            pass
    print(ask())

def vanish():
    os._exit(3)

def talk():
    print(ask())

folder = sys.argv[1]
for behaviour in (hang, crash, flood, fork, vanish, talk):
    try:
        os.mkdir(f"{folder}/{behaviour.__name__}")
    except FileExistsError:
        continue
    with open(f"{folder}/{os.getpid()}.pid", "w"):
        pass
    behaviour()
    break
"""


async def test_a_group_of_bad_agents_ends_each_for_its_reason_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(SCRIPT)
    seen = tmp_path / "seen"
    seen.mkdir()
    agent = load_agent(f"{sys.executable} {script} {seen}")
    async with open_rollout_world(tmp_path, lambda _: "I will not.<|im_end|>") as here:
        world = replace(here.limited(wall_s=8), slots=asyncio.Semaphore(3))
        group = await run_group(await here.cancel_task(), agent, POLICY, world, GroupPlan(size=6))
        assert len(here.sessions) == 0
    endings = sorted((one.ending.value, one.ending_detail[:40]) for one in group.trajectories)
    assert endings == [
        (Ending.AGENT_ERROR, "exit code 1: Traceback (most recent call"),
        (Ending.AGENT_ERROR, "exit code 3: "),
        (Ending.ANSWERED, ""),
        (Ending.ANSWERED, ""),
        (Ending.ANSWERED, ""),
        (Ending.TIME_LIMIT, "the agent ran until its time limit"),
    ]
    crashed = next(one for one in group.trajectories if "exit code 1" in one.ending_detail)
    assert "lost my head" in crashed.ending_detail
    answers = [one.answer or "" for one in group.trajectories if one.ending is Ending.ANSWERED]
    assert all(answer.endswith("I will not.") and len(answer) <= KEPT_OUTPUT_BYTES for answer in answers)
    assert [score.value for one in group.trajectories for score in one.scores] == [0.0] * 6
    assert all(one.tool_calls == [] for one in group.trajectories)
    pids = [int(path.stem) for path in seen.glob("*.pid")]
    assert len(pids) == 6 + 8
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
