"""The session state kit: overlays, drafts, forks, snapshots, hashes, expiry, calls once per key, and the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.errors import CallKeyReused, ServerError, SessionUnknown, ToolFault
from mcp_servers.journal import Journal
from mcp_servers.sessions import Sessions
from mcp_servers.state import Base, State, canonical, copy_json, normalise
from mcp_servers.toolbox import Toolbox, ToolResult

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


class Bank:
    """A view of a tiny world: accounts with a balance."""

    def __init__(self, state: State) -> None:
        self.state = state


def balance(bank: Bank, account: str) -> str:
    return str((bank.state.get("accounts", account) or {"balance": "none"})["balance"])


def deposit(bank: Bank, account: str, marks: list[str]) -> dict[str, Any]:
    entity = bank.state.edit("accounts", account)
    for mark in marks:
        entity["balance"] += 1
        if mark == "bad":
            raise ToolFault("bad mark")
    return entity


TOOLBOX = Toolbox(reads=(balance,), writes=(deposit,))


def run(state: State, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    return TOOLBOX.run(Bank(state), name, arguments)


@pytest.fixture
def base() -> Base:
    return Base({"accounts": {"a": {"balance": 5}, "b": {"balance": 7.0}}}, {"note": "tiny"})


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_session_sees_its_own_writes_and_the_base_never_changes(base: Base) -> None:
    one, other = State(base), State(base)
    one.edit("accounts", "a")["balance"] = 6
    one.commit()
    assert (one.get("accounts", "a"), other.get("accounts", "a")) == ({"balance": 6}, {"balance": 5})
    assert base.get("accounts", "a") == {"balance": 5}


def test_a_draft_that_is_rolled_back_leaves_no_trace(base: Base) -> None:
    state = State(base)
    state.edit("accounts", "a")["balance"] = 6
    state.rollback()
    assert state.get("accounts", "a") == {"balance": 5}
    assert state.changes() == {}


def test_forks_go_their_own_ways_from_where_they_parted(base: Base) -> None:
    trunk = State(base)
    trunk.edit("accounts", "a")["balance"] = 6
    trunk.commit()
    branch = trunk.fork()
    branch.edit("accounts", "a")["balance"] = 60
    branch.add("accounts", "c", {"balance": 1})
    branch.commit()
    assert trunk.changes() == {"accounts": {"a": {"balance": 6}}}
    assert branch.changes() == {"accounts": {"a": {"balance": 60}, "c": {"balance": 1}}}


def test_a_change_that_is_taken_back_is_no_difference_and_has_the_old_hash(base: Base) -> None:
    state = State(base)
    untouched = state.hash()
    for value in (6, 5.0):
        state.edit("accounts", "a")["balance"] = value
        state.commit()
    assert state.diff() == {}
    assert state.hash() == untouched


def test_equal_states_have_equal_hashes_whatever_the_order_of_writes(base: Base) -> None:
    one, other = State(base), State(base)
    for state, order in ((one, "ab"), (other, "ba")):
        for account in order:
            state.edit("accounts", account)["balance"] = 9
            state.commit()
    assert one.hash() == other.hash() != State(base).hash()


@given(JSON)
def test_copies_are_equal_and_share_no_container_with_the_original(value: Any) -> None:
    twin = copy_json(value)
    assert twin == value
    assert not isinstance(value, dict | list) or twin is not value


@given(JSON)
def test_values_that_differ_in_null_fields_or_integral_floats_are_the_same(value: Any) -> None:
    assert canonical({"x": value, "gone": None}) == canonical({"x": normalise(value)})


def test_a_base_written_to_a_file_opens_with_the_same_entities_order_and_fingerprint(
    base: Base, tmp_path: Path
) -> None:
    base.write(tmp_path / "base.db")
    opened = Base.open(tmp_path / "base.db")
    assert list(opened.ids("accounts")) == ["a", "b"]
    assert (opened.get("accounts", "b"), opened.get("accounts", "z"), opened.get("z", "a")) == (
        {"balance": 7.0},
        None,
        None,
    )
    assert (opened.fingerprint, opened.meta) == (base.fingerprint, {"note": "tiny"})


@pytest.mark.parametrize("content", [None, b"", b"no database at all, but long enough to be looked at" * 20])
def test_a_missing_or_foreign_base_file_is_refused_in_one_clear_message(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "base.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ServerError, match=r"open the base database .*base\.db"):
        Base.open(path)


def test_a_call_that_fails_half_way_changes_nothing(base: Base) -> None:
    sessions = Sessions(base, run)
    session = sessions.create()
    result = sessions.call(session, "deposit", {"account": "a", "marks": ["x", "bad"]})
    assert (result.text, result.is_error) == ("Error: bad mark", True)
    assert session.state.changes() == {}


def test_a_call_repeated_under_its_key_answers_as_before_and_runs_once(base: Base) -> None:
    sessions = Sessions(base, run)
    session = sessions.create()
    deposit_one = {"account": "a", "marks": ["x"]}
    first = sessions.call(session, "deposit", deposit_one, "k1")
    assert sessions.call(session, "deposit", deposit_one, "k1") == first
    assert sessions.call(session, "balance", {"account": "a"}).text == "6"
    sessions.call(session, "deposit", deposit_one, "k2")
    assert sessions.call(session, "balance", {"account": "a"}).text == "7"


def test_a_key_that_is_used_for_another_call_is_refused(base: Base) -> None:
    sessions = Sessions(base, run)
    session = sessions.create()
    sessions.call(session, "deposit", {"account": "a", "marks": ["x"]}, "k1")
    with pytest.raises(CallKeyReused, match=r"'k1'.*used for deposit"):
        sessions.call(session, "deposit", {"account": "b", "marks": ["x"]}, "k1")


def test_a_key_of_one_session_means_nothing_in_another(base: Base) -> None:
    sessions = Sessions(base, run)
    one, other = sessions.create(), sessions.create()
    for session in (one, other):
        sessions.call(session, "deposit", {"account": "a", "marks": ["x"]}, "k1")
    assert one.state.changes() == other.state.changes() == {"accounts": {"a": {"balance": 6}}}


def test_a_snapshot_restores_what_was_and_can_be_restored_again(base: Base) -> None:
    sessions = Sessions(base, run)
    session = sessions.create()
    snapshot = sessions.snapshot(session.id)
    for _ in range(2):
        sessions.call(session, "deposit", {"account": "a", "marks": ["x"]})
        sessions.restore(session.id, snapshot)
        assert session.state.changes() == {}
    with pytest.raises(ServerError, match=r"snapshot '9'.*snapshots: 1"):
        sessions.restore(session.id, "9")


def test_an_unused_session_expires_and_a_used_one_lives_on(base: Base) -> None:
    clock = Clock()
    sessions = Sessions(base, run, idle_s=100, clock=clock)
    idle, used = sessions.create(), sessions.create()
    clock.now_s = 90
    sessions.by_key(used.key)
    clock.now_s = 150
    sessions.create()
    assert next(session.id for session in sessions) == used.id
    with pytest.raises(SessionUnknown, match="expired"):
        sessions.by_key(idle.key)


def test_a_dropped_session_can_not_be_found_by_key_or_id(base: Base) -> None:
    sessions = Sessions(base, run)
    session = sessions.create()
    sessions.drop(session.id)
    for find, given_name in ((sessions.get, session.id), (sessions.by_key, session.key)):
        with pytest.raises(SessionUnknown):
            find(given_name)


def test_durable_sessions_come_back_with_state_calls_and_snapshots(base: Base, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sessions.db", base)
    sessions = Sessions(base, run, journal=journal)
    session, dropped = sessions.create(), sessions.create()
    sessions.call(session, "deposit", {"account": "a", "marks": ["x"]}, "k1")
    snapshot = sessions.snapshot(session.id)
    sessions.call(session, "deposit", {"account": "b", "marks": ["x"]}, "k2")
    fork = sessions.fork(session.id)
    sessions.drop(dropped.id)
    # No close: the next owner of the file finds it as a kill would leave it.
    again = Sessions(base, run, journal=Journal(tmp_path / "sessions.db", base))
    found = again.by_key(session.key)
    assert {live.id for live in again} == {session.id, fork.id}
    assert found.state.hash() == session.state.hash() == again.get(fork.id).state.hash()
    repeated = again.call(found, "deposit", {"account": "b", "marks": ["x"]}, "k2")
    assert (repeated.text, repeated.value) == ('{"balance": 8.0}', {"balance": 8.0})
    again.restore(found.id, snapshot)
    assert found.state.changes() == {"accounts": {"a": {"balance": 6}}}


def test_a_journal_can_be_read_with_plain_sqlite_while_sessions_live(base: Base, tmp_path: Path) -> None:
    sessions = Sessions(base, run, journal=Journal(tmp_path / "sessions.db", base))
    session = sessions.create()
    sessions.call(session, "deposit", {"account": "a", "marks": ["x"]}, "k1")
    with sqlite3.connect(tmp_path / "sessions.db") as file:
        rows = file.execute("SELECT kind, id, body FROM entities WHERE session_id = ?", (session.id,)).fetchall()
    assert rows == [("accounts", "a", '{"balance": 6}')]


def test_a_journal_of_another_base_is_refused(base: Base, tmp_path: Path) -> None:
    Journal(tmp_path / "sessions.db", base).close()
    with pytest.raises(ServerError, match="another base database"):
        Journal(tmp_path / "sessions.db", Base({"accounts": {}}))


def test_a_write_that_can_not_be_journalled_changes_nothing_and_says_so(base: Base, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sessions.db", base)
    sessions = Sessions(base, run, journal=journal)
    session = sessions.create()
    journal.close()
    with pytest.raises(ServerError, match=r"write to .*sessions\.db"):
        sessions.call(session, "deposit", {"account": "a", "marks": ["x"]}, "k1")
    assert session.state.changes() == {}
    assert session.calls == {}


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("nothing", {}, "Tool 'nothing' not found."),
        ("balance", {}, "is missing account"),
        ("balance", {"account": 3}, "must be a string, got 3"),
        ("balance", {"account": None}, "must be a string, got None"),
        ("balance", {"account": "a", "x": 1}, "unexpected argument 'x'; it takes account"),
        ("balance", {"account": "a" * 10_001}, "10001 characters, at most 10000"),
        ("deposit", {"account": "a", "marks": "x"}, "must be a list of strings, got 'x'"),
        ("deposit", {"account": "a", "marks": ["x", 1]}, "item 1: must be a string, got 1"),
        ("deposit", {"account": "a", "marks": ["x"] * 101}, "101 items, at most 100"),
        ("bal\ud800", {}, "Tool 'bal?' not found."),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_the_value_and_what_fits(
    base: Base, name: str, arguments: dict[str, Any], complaint: str
) -> None:
    result = TOOLBOX.call(Bank(State(base)), name, arguments)
    assert result.is_error
    assert complaint in result.text
