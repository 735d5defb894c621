"""The splice, over ids alone: what was sampled stays, whatever the template makes of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.gateway.continuation import SampledTurn, find_turn_end, splice, tail_after_turn, tail_by_count

END = 2
WORDS = st.lists(st.integers(10, 40), min_size=1, max_size=8)


def message(role: int, words: list[int]) -> list[int]:
    return [1, role, *words, END, 3]


def conversation(turns: list[tuple[list[int], list[int]]]) -> list[int]:
    """User and assistant messages in turn, rendered."""
    return [i for asked, answered in turns for i in message(4, asked) + message(5, answered)]


GENERATION = [1, 5]


@given(st.lists(st.tuples(WORDS, WORDS), max_size=3), WORDS, WORDS, WORDS, WORDS)
def test_the_next_prompt_begins_with_exactly_what_was_sampled(
    history: list[tuple[list[int], list[int]]], asked: list[int], sampled: list[int], shown: list[int], then: list[int]
) -> None:
    earlier = conversation(history) + message(4, asked) + GENERATION
    # The template shows `shown` where `sampled` was sampled.
    rendered = conversation(history) + message(4, asked) + message(5, shown) + message(4, then) + GENERATION
    upto = conversation(history) + message(4, asked) + message(5, shown)
    for closed in (True, False):
        sequence = earlier + sampled + ([END] if closed else [])
        quick = tail_after_turn(rendered, earlier, END)
        assert quick == tail_by_count(rendered, upto, END) == [END, 3, *message(4, then), *GENERATION]
        prompt = splice(sequence, quick or [], SampledTurn(earlier, closed))
        assert prompt == earlier + sampled + [END, 3, *message(4, then), *GENERATION]


def test_a_pre_opened_reasoning_block_does_not_hide_the_place() -> None:
    asked, thought = message(4, [11]), [7, 8]
    earlier = asked + GENERATION + thought
    rendered = asked + message(5, [12]) + message(4, [13]) + GENERATION + thought
    assert tail_after_turn(rendered, earlier, END) == [END, 3, *message(4, [13]), *GENERATION, *thought]


def test_the_quick_way_declines_where_old_messages_render_otherwise() -> None:
    earlier = message(4, [11, 99]) + GENERATION
    rendered = message(4, [11]) + message(5, [12]) + message(4, [13]) + GENERATION
    assert tail_after_turn(rendered, earlier, END) is None
    upto = message(4, [11, 99]) + message(5, [12])
    assert tail_by_count(rendered, upto, END) == [END, 3, *message(4, [13]), *GENERATION]


def test_a_template_without_turn_ends_gives_no_place_for_the_splice() -> None:
    assert tail_by_count([5, 6, 7], [5, 6], END) is None
    assert tail_after_turn([5, 6, 7], [5, 6], END) is None
    assert tail_by_count([5, END, 7], [5, END, END], END) is None


def test_the_turn_end_is_the_first_token_of_what_both_renderings_end_with() -> None:
    assert find_turn_end([1, 5, 60, END, 3], [1, 5, 61, END, 3]) == END
    assert find_turn_end([1, 5, 60], [1, 5, 61]) is None
    assert find_turn_end([], []) is None
