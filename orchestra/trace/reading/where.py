"""Conditions on messages, as in `--where "version > 120 and 'worker-3' in sender"`.

A condition is parsed and interpreted here, never run by Python. It consists of names, constants, comparisons,
arithmetic, `and`, `or`, `not`, `in`, indices, and a few functions.

A comparison with an array holds if it holds for any element (`versions < 50`); `all(versions < 50)` requires all. A
message without a field that the condition names does not match.
"""

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from orchestra.errors import UsageError, ValuesMissing
from orchestra.trace.format.records import Digest

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
KNOWN = ("actor", "sender", "type", "n", "bytes", "waited", "incarnation")
"""Properties of every delivery that a condition can name beside the fields."""


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
        self._check(self._tree)

    def __repr__(self) -> str:
        return f"<Where {self.text}>"

    def __call__(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message with these values matches.

        Raises:
            ValuesMissing: the condition uses an array that was recorded by digest only.
        """
        try:
            return _true(self._value(self._tree, values))
        except _Absent:
            return False
        except ValuesMissing as error:
            raise ValuesMissing(f"--where {self.text!r}: {error}") from error
        except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, AttributeError):
            return False  # a field of another type than the condition expects

    def may_hold(self, names: Collection[str]) -> bool:
        """Return whether the condition can hold for a message with exactly the fields `names`."""
        return _may_hold(self._tree, {*names, *KNOWN})

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.Constant() | ast.Name():
                return
            case ast.BoolOp(values=values) | ast.List(elts=values) | ast.Tuple(elts=values):
                parts: list[ast.AST] = list(values)
            case ast.Compare(left=left, comparators=others):
                parts = [left, *others]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                parts = [left, right]
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                parts = [operand]
            case ast.Attribute(value=value, attr=name) if not name.startswith("_"):
                parts = [value]
            case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Slice):
                parts = [value, index]
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                parts = [argument]
            case ast.Call(func=function):
                known = ", ".join(_FUNCTIONS)
                called = ast.unparse(function)
                raise UsageError(f"--where: cannot call {called}(); the functions are {known}, each of one value")
            case _:
                raise UsageError(f"--where: {ast.unparse(node)!r} is not allowed in a condition")
        for part in parts:
            self._check(part)

    def _value(self, node: ast.AST, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in values:
                    raise _Absent
                return _usable(values[name])
            case ast.BoolOp(op=op, values=parts):
                decided = isinstance(op, ast.Or)
                for part in parts:
                    if self._holds(part, values) is decided:
                        return decided
                return not decided
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(left, ops, others, values)
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](self._value(left, values), self._value(right, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._holds(operand, values)
            case ast.UnaryOp(operand=operand):
                return -self._value(operand, values)
            case ast.Attribute(value=value, attr=name):
                inner = self._value(value, values)
                if isinstance(inner, Mapping):
                    if name not in inner:
                        raise _Absent
                    return _usable(inner[name])
                if name in ("address", "shape", "size"):  # of a ref; of an array
                    return getattr(inner, name)
                raise _Absent
            case ast.Subscript(value=value, slice=index):
                return _usable(self._value(value, values)[self._value(index, values)])
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return _FUNCTIONS[name](self._value(argument, values))
            case ast.List(elts=parts):
                return [self._value(part, values) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self._value(part, values) for part in parts)
        raise AssertionError(ast.dump(node))  # _check admits nothing else

    def _holds(self, node: ast.AST, values: Mapping[str, Any]) -> bool:
        try:
            return _true(self._value(node, values))
        except _Absent:
            return False

    def _compared(self, left: ast.AST, ops: list[ast.cmpop], others: list[ast.expr], values: Mapping[str, Any]) -> Any:
        first = self._value(left, values)
        if len(ops) == 1:
            return _COMPARE[type(ops[0])](first, self._value(others[0], values))
        held: Any = True
        for op, other in zip(ops, others, strict=True):
            second = self._value(other, values)
            held = np.logical_and(held, _COMPARE[type(op)](first, second))
            first = second
        return held


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
