"""Conditions on messages, as in `--where "version > 120 and 'worker-3' in sender"`.

A condition is parsed and interpreted here, never run by Python. It consists of names, constants, comparisons,
arithmetic, `and`, `or`, `not`, `in`, indices, and a few functions.

A comparison with an array holds if it holds for any element (`versions < 50`); `all(versions < 50)` requires all. A
message without a field that the condition names does not match.
"""

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from orchestra.errors import UsageError, ValuesMissing
from orchestra.trace.format.records import Delivery, Digest

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: _contains(right, left),
    ast.NotIn: lambda left, right: not _contains(right, left),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "all": lambda value: bool(np.all(value)),
    "any": lambda value: bool(np.any(value)),
    "isnan": lambda value: bool(np.any(np.isnan(value))),
    "len": len,
    "max": np.max,
    "mean": np.mean,
    "min": np.min,
    "sum": np.sum,
}
MAX_LENGTH = 1000
PROPERTIES: dict[str, Callable[[Delivery], Any]] = {
    "actor": attrgetter("actor"),
    "sender": attrgetter("id.sender"),
    "type": attrgetter("type.name"),
    "n": attrgetter("n"),
    "bytes": attrgetter("nbytes"),
    "waited": attrgetter("waited"),
    "incarnation": attrgetter("incarnation"),
}
"""Properties of every delivery that a condition can name beside the fields."""

Evaluate = Callable[[Mapping[str, Any]], Any]


class _Absent(Exception):
    """The message lacks a field that the condition names."""


class Where:
    """A condition on a message's fields and the properties of its delivery.

    Raises:
        UsageError: the text is not a condition; the error names the part.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise UsageError(f"--where: the condition has {len(text)} characters; at most {MAX_LENGTH} are allowed")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UsageError(f"--where: {text!r} is not a condition: {reason}") from error
        self._evaluate = _compiled(self._tree)

    def __repr__(self) -> str:
        return f"<Where {self.text}>"

    def __call__(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message with these values matches.

        Raises:
            ValuesMissing: the condition uses an array that was recorded by digest only.
        """
        try:
            return _true(self._evaluate(values))
        except _Absent:
            return False
        except ValuesMissing as error:
            raise ValuesMissing(f"--where {self.text!r}: {error}") from error
        except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, AttributeError):
            return False  # a field of another type than the condition expects

    def may_hold(self, names: Collection[str]) -> bool:
        """Return whether the condition can hold for a message with exactly the fields `names`."""
        return _may_hold(self._tree, {*names, *PROPERTIES})


def _compiled(node: ast.AST) -> Evaluate:
    """Return a function from the values of a message to the value of `node`.

    Raises:
        UsageError: `node` is not allowed in a condition.
    """
    match node:
        case ast.Constant(value=constant):
            return lambda values: constant
        case ast.Name(id=name):
            return lambda values: _usable(_item(values, name))
        case ast.BoolOp(op=op, values=nodes):
            combined, parts = any if isinstance(op, ast.Or) else all, [_truth(each) for each in nodes]
            return lambda values: combined(part(values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison([_compiled(each) for each in (left, *others)], [_COMPARE[type(op)] for op in ops])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            calculate, first, second = _ARITHMETIC[type(op)], _compiled(left), _compiled(right)
            return lambda values: calculate(first(values), second(values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            holds = _truth(operand)
            return lambda values: not holds(values)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _compiled(operand)
            return lambda values: -number(values)
        case ast.Attribute(value=inner, attr=name) if not name.startswith("_"):
            whole = _compiled(inner)
            return lambda values: _attribute(whole(values), name)
        case ast.Subscript(value=inner, slice=index) if not isinstance(index, ast.Slice):
            whole, at = _compiled(inner), _compiled(index)
            return lambda values: _usable(whole(values)[at(values)])
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            function, argued = _FUNCTIONS[name], _compiled(argument)
            return lambda values: function(argued(values))
        case ast.Call(func=called):
            known = ", ".join(_FUNCTIONS)
            raise UsageError(f"--where: cannot call {ast.unparse(called)}(); the functions of one value are {known}")
        case ast.List(elts=nodes) | ast.Tuple(elts=nodes):
            items, container = [_compiled(each) for each in nodes], list if isinstance(node, ast.List) else tuple
            return lambda values: container(item(values) for item in items)
    raise UsageError(f"--where: {ast.unparse(node)!r} is not allowed in a condition")


def _truth(node: ast.AST) -> Callable[[Mapping[str, Any]], bool]:
    """As `_compiled`, for the truth of `node`: false where the message lacks a field."""
    evaluate = _compiled(node)

    def truth(values: Mapping[str, Any]) -> bool:
        try:
            return _true(evaluate(values))
        except _Absent:
            return False

    return truth


def _comparison(parts: list[Evaluate], comparisons: list[Callable[[Any, Any], Any]]) -> Evaluate:
    def compared(values: Mapping[str, Any]) -> Any:
        found = [part(values) for part in parts]
        results = [compare(*pair) for compare, pair in zip(comparisons, pairwise(found), strict=True)]
        return results[0] if len(results) == 1 else reduce(np.logical_and, results)

    return compared


def _item(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise _Absent
    return values[name]


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return _usable(_item(value, name))
    if name in ("address", "shape", "size"):  # of a ref; of an array
        return getattr(value, name)
    raise _Absent


def _true(value: Any) -> bool:
    """The truth of a value; an array is true if any element is."""
    return value if value is True or value is False else bool(np.any(value))


def _may_hold(node: ast.AST, names: Collection[str]) -> bool:
    match node:
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_may_hold(part, names) for part in parts)
        case ast.BoolOp(values=parts):
            return all(_may_hold(part, names) for part in parts)
    inner = list(ast.walk(node))
    if any(isinstance(each, ast.BoolOp | ast.Not) for each in inner):
        return True  # an absent field counts as false in there, which can make the whole true
    called = {id(each.func) for each in inner if isinstance(each, ast.Call)}
    return all(each.id in names for each in inner if isinstance(each, ast.Name) and id(each) not in called)


def _usable(value: Any) -> Any:
    if isinstance(value, Digest):
        raise ValuesMissing(f"the values of {value} were not recorded, only its digest")
    return value


def _contains(container: Any, item: Any) -> bool:
    if isinstance(container, np.ndarray):
        return bool((container == item).any())
    return item in container
