"""Works out what an agent gives a `calculate` tool: numbers, + - * / and parentheses, and nothing else of Python.

Knows nothing about any domain. Used by the reads.py of servers that have such a tool.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from mcp_servers.errors import ToolFault

ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
MAX_EXPRESSION_CHARS = 400
MAX_EXPONENT = 64


def work_out(expression: str) -> str:
    """The value of an arithmetic expression, rounded to two decimals, as text. ToolFault where it has none."""
    if not all(char in "0123456789+-*/(). " for char in expression):
        raise ToolFault("Invalid characters in expression")
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolFault(f"Expression too long: {len(expression)} characters, at most {MAX_EXPRESSION_CHARS}")
    try:
        return str(round(float(_value(ast.parse(expression.strip(), "<string>", "eval").body)), 2))
    except (SyntaxError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise ToolFault(str(error)) from error


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if abs(right) > MAX_EXPONENT or abs(left) > 1e6:
                raise ValueError(f"power too large: {left} ** {right}")
            return left**right
        if type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](left, right)
    raise ValueError("invalid syntax")
