"""What a model that knows how to cancel a retail order samples, turn by turn: a script for the scripted engine."""

from __future__ import annotations

import json
import re
from typing import Any

ORDER_ID = re.compile(r"#[A-Z]\d+")


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as a model would sample it, with spacing of its own."""
    return f'<tool_call>{{"name":"{name}",  "arguments": {json.dumps(arguments)}}}</tool_call><|im_end|>'


def cancel_expert(prompt: str) -> str:
    """Looks at the order, cancels it, says so."""
    user = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    order_id = ORDER_ID.findall(user)[0]
    reason = "ordered by mistake" if "mistake" in user else "no longer needed"
    answers = (
        tool_call("get_order_details", order_id=order_id),
        tool_call("cancel_pending_order", order_id=order_id, reason=reason),
        f"Order {order_id} is cancelled.<|im_end|>",
    )
    return answers[prompt.count("<|im_start|>tool\n")]
