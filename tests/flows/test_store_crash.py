"""Law 8 at the store: kill -9, several processes, full disks, files that are damaged or something else."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.flows.recorded import RUN, close_group, model_span
from traces.database import SCHEMA_VERSION
from traces.store import Store, StoreError

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "traces.db") as opened:
        yield opened


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.flows.recorded import close_group, model_span
from traces.store import Store
store = Store(sys.argv[2])
for number in range(10**6):
    prefix = list(range(600))
    store.append_spans([model_span(f"r{number}", prefix, [number]), model_span(f"r{number}", [*prefix, number], [1])])
    close_group(store, number)
    print(number, flush=True)
"""


def test_kill_nine_of_a_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(7)
    for attempt in range(8):
        path = tmp_path / f"{attempt}.db"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(REPO), str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(dice.randrange(1, 60)):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in process.stdout.read().splitlines() if line.strip()]
        last = max(acknowledged, default=0)
        with Store(path, create=False) as store:
            assert store.query("check", "PRAGMA integrity_check") == [("ok",)]
            for number in range(last + 1):
                first, second = store.spans(f"r{number}")
                assert second.tokens is not None
                assert second.tokens.prompt_ids_T.tolist() == [*range(600), number]
                assert first.tokens is not None
            assert len(store.groups(RUN)) >= last + 1


def test_several_processes_write_one_store_without_losing_a_group(tmp_path: Path) -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.flows.recorded import close_group, model_span
from traces.store import Store
with Store(sys.argv[2]) as store:
    for number in range(int(sys.argv[3]), int(sys.argv[3]) + 40):
        store.append_spans([model_span(f"r{number}", [1], [2])])
        close_group(store, number)
"""
    path = tmp_path / "traces.db"
    arguments = [[sys.executable, "-c", script, str(REPO), str(path), str(start)] for start in (0, 100, 200)]
    processes = [subprocess.Popen(argument) for argument in arguments]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    with Store(path) as store:
        groups = store.groups(RUN)
        assert len(groups) == 120
        assert [g.seq for g in groups] == list(range(1, 121))


def test_threads_share_one_store_while_it_is_read(store: Store) -> None:
    stop = threading.Event()

    def read() -> int:
        seen = 0
        while not stop.is_set():
            found = len(store.groups(RUN))
            assert found >= seen
            seen = found
        return seen

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        list(pool.map(lambda number: close_group(store, number), range(60)))
        stop.set()
        assert reader.result(timeout=60) <= 60
    assert len(store.groups(RUN)) == 60


def test_a_file_that_is_no_store_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    path.write_bytes(b"this is not a database, but it is long enough to look at" * 100)
    with pytest.raises(StoreError, match="not a SQLite database"):
        Store(path)


def test_a_store_of_another_schema_version_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match=f"schema version {SCHEMA_VERSION + 1}"):
        Store(path)


def test_another_programs_database_is_refused_and_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="schema version 0"):
        Store(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_missing_folder_or_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be opened"):
        Store(tmp_path / "no" / "traces.db")
    with pytest.raises(StoreError, match="no such file"):
        Store(tmp_path / "traces.db", create=False)
    assert not (tmp_path / "traces.db").exists()


def read_all(path: Path, count: int) -> None:
    with Store(path) as store:
        for number in range(count):
            store.spans(f"r{number}")


def test_a_damaged_file_is_named_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    with Store(path) as store:
        for number in range(50):
            store.append_spans([model_span(f"r{number}", list(range(number, 600)), [1])])
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 2000] = b"\xff" * min(2000, len(content) - start)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        read_all(path, 50)


FILLER = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.flows.recorded import model_span
from traces.store import Store, StoreError
store = Store(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
kept = 0
try:
    for number in range(10_000):
        store.append_spans([model_span(f"r{number}", list(range(number, number + 255)), [1])])
        kept += 1
except StoreError as error:
    print(kept)
    print(error)
"""


def test_a_full_disk_is_said_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(REPO), str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    kept, *lines = done.stdout.splitlines()
    message = " ".join(lines)
    assert "disk" in message
    assert "append 1 spans" in message
    with Store(path) as store:
        assert all(len(store.spans(f"r{number}")) == 1 for number in range(int(kept)))
