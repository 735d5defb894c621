"""Judge answers on disk, keyed by what was asked: a second pass over the same groups costs nothing.

It knows nothing about prompts or endpoints; text in, text out, in one SQLite file that several processes may share.
Called by judge.py, which puts in only answers that were accepted.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from harness.errors import JudgeError

BUSY_TIMEOUT_S = 30.0


class JudgeCache:
    """Accepted answers by key; safe to share between threads. Use `with`, or call `close`."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises JudgeError when that can't be done."""
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, text TEXT NOT NULL,"
                " created_ns INTEGER NOT NULL) WITHOUT ROWID"
            )
        except (sqlite3.Error, OSError) as error:
            raise JudgeError(
                asked=f"the judge cache {path}", found=str(error), fix="delete the file, or name another folder"
            ) from error

    def get(self, key: str) -> str | None:
        """The answer kept under `key`; None when there is none."""
        with self._lock:
            row = self._connection.execute("SELECT text FROM answers WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, model: str, text: str) -> None:
        """Keep an answer; the first one under a key stays."""
        with self._lock:
            self._connection.execute(
                "INSERT OR IGNORE INTO answers (key, model, text, created_ns) VALUES (?, ?, ?, ?)",
                (key, model, text, time.time_ns()),
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> JudgeCache:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
