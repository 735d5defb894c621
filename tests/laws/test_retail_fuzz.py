"""Malformed calls to retail tools: none crashes, none changes anything, each answers an error that can be printed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.retail.data import generated_base
from mcp_servers.retail.state import Retail
from mcp_servers.retail.tools import TOOLBOX, TOOLS, call_tool
from mcp_servers.state import State

TEXT = st.text(st.characters(categories=None), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
PARAMETERS = sorted(
    {name for tool in TOOLS.values() for name in list(tool.__annotations__) if name not in ("retail", "return")}
)
MALFORMED = st.dictionaries(st.sampled_from(PARAMETERS) | TEXT, ANYTHING, max_size=8)


@pytest.mark.parametrize("tau2", [False, True])
@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(TOOLS)) | TEXT, arguments=MALFORMED)
def test_malformed_calls_change_nothing_and_are_answered_in_printable_words(
    tau2: bool, name: str, arguments: dict[str, Any]
) -> None:
    retail = Retail(State(generated_base()), tau2)
    result = call_tool(retail, name, arguments)
    assert retail.state.changes() == {}
    result.text.encode("utf-8")
    assert result.is_error == result.text.startswith("Error: ")
    # Arguments drawn at random fit none but the tools that take anything.
    assert result.is_error or name in ("list_all_product_types", "transfer_to_human_agents", "calculate")


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(TOOLBOX.writes)), text=TEXT, items=st.lists(TEXT, max_size=3))
def test_writes_with_well_typed_nonsense_change_nothing(name: str, text: str, items: list[str]) -> None:
    parameters = list(TOOLS[name].__annotations__)[1:-1]
    arguments = {parameter: items if parameter.endswith("item_ids") else text for parameter in parameters}
    retail = Retail(State(generated_base()))
    assert call_tool(retail, name, arguments).is_error
    assert retail.state.changes() == {}


@settings(max_examples=300, deadline=None)
@given(expression=st.text("0123456789+-*/(). ", max_size=60))
def test_any_arithmetic_is_worked_out_or_refused_at_once(expression: str) -> None:
    result = call_tool(Retail(State(generated_base())), "calculate", {"expression": expression})
    assert result.is_error or float(result.text) is not None
