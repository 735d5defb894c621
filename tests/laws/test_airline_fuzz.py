"""Malformed calls to airline tools: none crashes, none changes anything, each answers an error that can be printed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.airline.data import generated_base
from mcp_servers.airline.state import Airline
from mcp_servers.airline.tools import TOOLBOX, TOOLS, call_tool
from mcp_servers.state import State

TEXT = st.text(st.characters(categories=None), max_size=40)
NUMBERS = st.integers() | st.floats() | st.integers(min_value=-3, max_value=9)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
OBJECTS = st.lists(
    st.dictionaries(
        st.sampled_from(("flight_number", "date", "first_name", "last_name", "dob", "payment_id", "amount")) | TEXT,
        ANYTHING,
        max_size=4,
    ),
    max_size=3,
)
PARAMETERS = sorted(
    {name for tool in TOOLS.values() for name in list(tool.__annotations__) if name not in ("airline", "return")}
)
LISTS = ("flights", "passengers", "payment_methods")
MALFORMED = st.dictionaries(st.sampled_from(PARAMETERS) | TEXT, ANYTHING, max_size=8)


@pytest.mark.parametrize("tau2", [False, True])
@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(TOOLS)) | TEXT, arguments=MALFORMED)
def test_malformed_calls_change_nothing_and_are_answered_in_printable_words(
    tau2: bool, name: str, arguments: dict[str, Any]
) -> None:
    airline = Airline(State(generated_base()), tau2)
    result = call_tool(airline, name, arguments)
    assert airline.state.changes() == {}
    result.text.encode("utf-8")
    assert result.is_error == result.text.startswith("Error: ")
    # Arguments drawn at random fit none but the tools that take anything.
    assert result.is_error or name in ("list_all_airports", "transfer_to_human_agents", "calculate") or "search" in name


@pytest.mark.parametrize("tau2", [False, True])
@settings(max_examples=120, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TOOLBOX.writes)))
def test_writes_with_well_typed_nonsense_fail_or_leave_a_state_that_can_be_hashed(
    tau2: bool, data: st.DataObject, name: str
) -> None:
    base = generated_base()
    user_id, reservation_id = next(iter(base.ids("users"))), next(iter(base.ids("reservations")))
    kinds: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(LISTS, OBJECTS)
    kinds |= dict.fromkeys(("total_baggages", "nonfree_baggages", "amount"), NUMBERS)
    kinds |= {"user_id": st.just(user_id), "reservation_id": st.just(reservation_id)}
    kinds["cabin"] = st.sampled_from(("economy", "business")) | TEXT
    kinds["payment_id"] = st.sampled_from(list((base.get("users", user_id) or {})["payment_methods"])) | TEXT
    names = [parameter for parameter in TOOLS[name].__annotations__ if parameter not in ("airline", "return")]
    arguments = {parameter: data.draw(kinds.get(parameter, TEXT)) for parameter in names}
    airline = Airline(State(base), tau2)
    result = call_tool(airline, name, arguments)
    result.text.encode("utf-8")
    json.dumps(airline.state.changes(), allow_nan=False)
    assert airline.state.hash()
    assert not result.is_error or airline.state.changes() == {}
