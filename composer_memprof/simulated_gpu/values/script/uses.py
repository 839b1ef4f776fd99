"""What a script does with a value that it reads: found in its source, at the line that reads.

A number that is only printed or logged decides nothing. One that is compared, counts a loop, or sizes a tensor does.
The source of a function is followed from the read through assignments, returns to callers and arguments of functions of the
same file, without regard to the order of lines: rather too much is taken to depend on a read than too little.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import types
from collections.abc import Iterator
from typing import Optional, Union

#: Calls that neither decide by a value nor give it back.
_ONLY_TOLD = frozenset(
    [
        *(
            'print',
            'log',
            'debug',
            'info',
            'warning',
            'warn',
            'error',
            'write',
            'writerow',
            'set_postfix',
            'format',
            'dump',
        ),
        *('set_description', 'add_scalar', 'add_scalars', 'log_metrics', 'log_dict', 'str', 'repr', 'dumps'),
        *('isinstance', 'hasattr', 'type', 'len', 'isfinite', 'isnan', 'isinf'),
    ]
)
#: Methods that put their arguments into their object.
_KEEP = frozenset(['append', 'add', 'extend', 'insert', 'update', 'setdefault', 'appendleft', 'put'])
#: Names and attributes that are followed for one read.
_MOST = 200
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]
_LOOPS = (ast.While, ast.For, ast.AsyncFor)


@dataclasses.dataclass
class Use:
    """What may follow from a value.

    Attributes:
        decides: a branch, a loop or a size may follow from it; also where the source is not known.
        ends_loop: a loop may end by it.
        goes_on: the answer with which the script does not leave the block that asks, as a check does that finds a fault;
            None if it leaves by neither.
        is_checked: with the other answer it fails. Known where Python says which expression of a line runs.
    """

    decides: bool = False
    ends_loop: bool = False
    goes_on: Optional[bool] = None
    is_checked: bool = False


def use_at(frame: Optional[types.FrameType]) -> Use:
    """What follows from a value that the frame's current line reads; the frames that called it are looked at too."""
    found, seen = Use(), 0
    while frame is not None:
        module = _module(frame.f_code.co_filename, _lines(frame))
        node = None if module is None else module.node_at(*_position(frame))
        if module is None or node is None:
            found.decides = True
            break
        is_returned = _Search(module, found).follow(node)
        found.is_checked &= _position(frame)[1] >= 0
        seen += 1
        if not is_returned or seen > _MOST:
            break
        frame = frame.f_back
    return found


def _lines(frame: types.FrameType) -> tuple[str, ...]:
    return tuple(linecache.getlines(frame.f_code.co_filename, frame.f_globals))


def _position(frame: types.FrameType) -> tuple[int, int, int, int]:
    """Line and column where the expression on its way begins and ends; columns are -1 before Python 3.11."""
    positions = getattr(frame.f_code, 'co_positions', None)
    if positions is not None:
        line, end_line, column, end_column = list(positions())[frame.f_lasti // 2]
        if None not in (line, end_line, column, end_column):
            return line, column, end_line, end_column
    return frame.f_lineno, -1, frame.f_lineno, -1


@functools.lru_cache(maxsize=64)
def _module(file: str, lines: tuple[str, ...]) -> Optional[_Module]:
    del file  # a part of the key
    try:
        return _Module(ast.parse(''.join(lines))) if lines else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Module:
    """The source of one file.

    Attributes:
        parents: of each node.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self._names: dict[str, list[ast.Name]] = {}
        self._attributes: dict[str, list[ast.Attribute]] = {}
        self._functions: dict[str, list[_Function]] = {}
        self._expressions: dict[int, list[ast.expr]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._names.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._attributes.setdefault(node.attr, []).append(node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions.setdefault(node.name, []).append(node)
            if isinstance(node, ast.expr):
                self._expressions.setdefault(node.lineno, []).append(node)

    def node_at(self, line: int, column: int, end_line: int, end_column: int) -> Optional[ast.expr]:
        """The expression there; without columns, the largest one that begins in the line."""
        found = self._expressions.get(line, [])
        place = (column, end_line, end_column)
        same = (each for each in found if (each.col_offset, each.end_lineno, each.end_col_offset) == place)
        return next(same, max(found, key=lambda each: (each.end_lineno, each.end_col_offset), default=None))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that contain it, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> Optional[ast.AST]:
        return next(
            (each for each in self.above(node) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))), None
        )

    def names(self, name: str, function: Optional[ast.AST]) -> list[ast.Name]:
        """Where the name is read: within the function, if it is one of a function."""
        found = self._names.get(name, [])
        return found if function is None else [each for each in found if function in self.above(each)]

    def attributes(self, name: str) -> list[ast.Attribute]:
        return self._attributes.get(name, [])

    def functions(self, name: str) -> list[_Function]:
        return self._functions.get(name, [])


class _Search:
    """Follows one value through one file, and notes in ``use`` what it decides."""

    def __init__(self, module: _Module, use: Use) -> None:
        self._module = module
        self._use = use
        self._is_returned = False
        self._start: Optional[ast.AST] = None
        self._left: list[tuple[ast.expr, bool]] = []
        self._known: set[tuple[str, Optional[ast.AST]]] = set()

    def follow(self, node: ast.expr) -> bool:
        """Whether the function that reads returns the value."""
        self._start = self._module.function_of(node)
        self._left = [(node, True)]
        while self._left and len(self._known) < _MOST:
            self._climb(*self._left.pop())
        return self._is_returned

    def _climb(self, node: ast.AST, is_positive: bool) -> None:
        """From an expression that depends on the value to the statement that it is in."""
        while isinstance(node, (ast.expr, ast.keyword, ast.Starred, ast.comprehension)):
            above = self._module.parents[node]
            if isinstance(above, (ast.JoinedStr, ast.FormattedValue, ast.Lambda)):
                return
            if isinstance(above, ast.Compare) and all(isinstance(each, (ast.Is, ast.IsNot)) for each in above.ops):
                return
            if (isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not)) or _is_true_for_less(above, node):
                is_positive = not is_positive
            elif isinstance(above, ast.NamedExpr):
                self._assigned(above.target)
            elif isinstance(above, ast.IfExp) and node is above.test:
                self._use.decides = True
            elif isinstance(above, ast.comprehension):
                if node in above.ifs:
                    self._use.decides = True
                else:
                    self._assigned(above.target)
            elif isinstance(above, ast.Subscript) and node is above.slice:
                self._use.decides = True
            elif isinstance(above, ast.Call) and node is not above.func and not self._called(above, node):
                return
            node = above
        self._in_statement(node, is_positive)

    def _called(self, call: ast.Call, argument: ast.AST) -> bool:
        """Whether what the call gives back depends on this argument."""
        name = _last_name(call.func)
        if name in _ONLY_TOLD:
            return False
        if name in ('range', 'arange', 'islice'):
            self._use.decides = True
        if name in _KEEP and isinstance(call.func, ast.Attribute):
            self._assigned(call.func.value)
        for function in self._module.functions(name):
            for parameter in _parameters(function, call, argument):
                self._depends(parameter, function)
        return True

    def _in_statement(self, node: ast.AST, is_positive: bool) -> None:
        if isinstance(node, ast.While):
            self._use.decides = self._use.ends_loop = True
        elif isinstance(node, ast.If):
            self._use.decides = True
            self._if(node, is_positive)
        elif isinstance(node, ast.Assert):
            self._use.goes_on, self._use.is_checked = is_positive, True
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assigned(node.target)
        elif isinstance(node, ast.Match):
            self._use.decides = True
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assigned(target)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            self._assigned(node.target)
        elif isinstance(node, ast.Return):
            self._is_returned |= self._module.function_of(node) is self._start

    def _if(self, node: ast.If, is_positive: bool) -> None:
        """A branch: it may leave its block, or set what a loop ends by."""
        leaving = [_only_leaves(body) for body in (node.body, node.orelse)]
        if leaving[0] != leaving[1]:
            self._use.goes_on = is_positive is leaving[1]
            self._use.is_checked = isinstance((node.body if leaving[0] else node.orelse)[-1], ast.Raise)
        inside = [each for statement in (*node.body, *node.orelse) for each in ast.walk(statement)]
        function = self._module.function_of(node)
        above = list(self._module.above(node))
        if function is not None:
            above = above[: above.index(function)]
        if any(isinstance(each, _LOOPS) for each in above) and any(
            isinstance(each, (ast.Break, ast.Return)) for each in inside
        ):
            self._use.ends_loop = True
        for each in inside:
            if isinstance(each, (ast.Assign, ast.AugAssign)):
                for target in getattr(each, 'targets', None) or [each.target]:  # type: ignore[union-attr]
                    self._assigned(target)
            elif isinstance(each, ast.Return) and function is self._start:
                self._is_returned = True

    def _assigned(self, target: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assigned(each)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self._assigned(target.value)
        elif isinstance(target, ast.Attribute):
            if ('.' + target.attr, None) not in self._known:
                self._known.add(('.' + target.attr, None))
                self._left.extend((each, True) for each in self._module.attributes(target.attr))
        elif isinstance(target, ast.Name):
            self._depends(target.id, self._module.function_of(target))

    def _depends(self, name: str, function: Optional[ast.AST]) -> None:
        if (name, function) not in self._known:
            self._known.add((name, function))
            self._left.extend((each, True) for each in self._module.names(name, function))


def _is_true_for_less(above: ast.AST, node: ast.AST) -> bool:
    """Whether a comparison is of the kind ``count == 0``, ``count < 1`` or ``1 > count``."""
    if not isinstance(above, ast.Compare) or len(above.ops) != 1:
        return False
    (operator,), other = above.ops, above.comparators[0] if node is above.left else above.left
    if isinstance(operator, ast.Eq):
        return isinstance(other, ast.Constant) and not other.value
    return isinstance(operator, (ast.Lt, ast.LtE) if node is above.left else (ast.Gt, ast.GtE))


def _only_leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch gives up: it raises, or leaves a loop or a function without a value, and selects nothing before."""
    last = body[-1] if body else None
    if isinstance(last, ast.Raise):
        return True
    if not isinstance(last, (ast.Break, ast.Continue)) and not (isinstance(last, ast.Return) and last.value is None):
        return False
    inside = (each for statement in body for each in ast.walk(statement))
    return not any(
        isinstance(each, ast.Subscript) and isinstance(each.slice, (ast.Name, ast.Attribute)) for each in inside
    )


def _last_name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ''
    )


def _parameters(function: _Function, call: ast.Call, argument: ast.AST) -> list[str]:
    """The parameters that may get this argument of the call."""
    if isinstance(argument, ast.keyword):
        return [argument.arg] if argument.arg else []
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    place = next((number for number, each in enumerate(call.args) if each is argument), -1)
    if names[:1] in (['self'], ['cls']) and isinstance(call.func, ast.Attribute):
        place += 1
    if isinstance(argument, ast.Starred) or not 0 <= place < len(names):
        return [each.arg for each in (function.args.vararg, function.args.kwarg) if each is not None]
    return [names[place]]
