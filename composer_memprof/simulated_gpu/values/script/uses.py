"""What a script does with a value that it reads: found in its source, at the line that reads.

A number that is only printed or logged decides nothing. One that is compared, counts a loop, or sizes a tensor does.
The source of a function is followed from the read through assignments, returns to callers and arguments of functions of the
same file, without regard to the order of lines: rather too much is taken to depend on a read than too little.
"""

from __future__ import annotations

import ast
import dataclasses
import types
from typing import Optional

from composer_memprof.simulated_gpu.values.script.parsed_source import (
    Function,
    SourceFile,
    last_name,
    position_of,
    set_in,
    source_of,
)

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
#: Functions that end the script.
_EXITS = frozenset(['exit', '_exit', 'quit'])
#: Names and attributes that are followed for one read.
_MOST = 200
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
        goes_nearer: the answer, yes or no, or a large or a small number, with which alone a branch changes what its loop ends
            by, as where a solver accepts a step; None if no branch does.
        leaves_loop: a loop ends by the value itself, and not only by what a branch selects.
        loops: file, first and last line of each loop that may end by it.
    """

    decides: bool = False
    ends_loop: bool = False
    goes_on: Optional[bool] = None
    is_checked: bool = False
    goes_nearer: Optional[bool] = None
    leaves_loop: bool = False
    loops: set[tuple[str, int, int]] = dataclasses.field(default_factory=set)

    @property
    def selects(self) -> bool:
        """Whether a loop goes on with either answer, one way or another, and ends by what follows."""
        return self.goes_nearer is not None or (self.ends_loop and not self.leaves_loop)


def use_at(frame: Optional[types.FrameType]) -> Use:
    """What follows from a value that the frame's current line reads; the frames that called it are looked at too."""
    found, seen, is_selected = Use(), 0, False
    is_positive: Optional[bool] = True
    while frame is not None:
        module = source_of(frame)
        node = None if module is None else module.node_at(*position_of(frame))
        if module is None or node is None:
            found.decides = True
            break
        search = _Search(module, frame.f_code.co_filename, found)
        returns = search.follow(_Place(node, is_positive, is_selected))
        found.is_checked &= position_of(frame)[1] >= 0
        seen += 1
        if not returns or seen > _MOST:
            break
        is_selected = all(each.is_selected for each in returns)
        signs = {each.is_positive for each in returns}
        is_positive = signs.pop() if len(signs) == 1 else None
        frame = frame.f_back
    return found


@dataclasses.dataclass(frozen=True)
class _Place:
    """A node that depends on the value.

    Attributes:
        is_positive: whether it is true, or large, where the value is; None if that is not known.
        is_selected: whether a branch decided what it is.
    """

    node: ast.AST
    is_positive: Optional[bool] = True
    is_selected: bool = False


class _Search:
    """Follows one value through one file, and notes in ``use`` what it decides."""

    def __init__(self, module: SourceFile, file: str, use: Use) -> None:
        self._module = module
        self._file = file
        self._use = use
        self._is_selected = False
        self._returns: list[_Place] = []
        self._start: Optional[ast.AST] = None
        self._left: list[_Place] = []
        self._known: set[tuple[str, Optional[ast.AST]]] = set()

    def follow(self, place: _Place) -> list[_Place]:
        """Each ``return`` with which the value leaves the function that reads it."""
        self._start = self._module.function_of(place.node)
        self._left = [place]
        while self._left and len(self._known) < _MOST:
            self._climb(self._left.pop())
        return self._returns

    def _climb(self, place: _Place) -> None:
        """From an expression that depends on the value to the statement that it is in."""
        node = place.node
        is_positive, self._is_selected = place.is_positive, place.is_selected
        while isinstance(node, (ast.expr, ast.keyword, ast.Starred, ast.comprehension)):
            above = self._module.parents[node]
            if isinstance(above, (ast.JoinedStr, ast.FormattedValue, ast.Lambda)):
                return
            if isinstance(above, ast.Compare) and all(isinstance(each, (ast.Is, ast.IsNot)) for each in above.ops):
                return
            if _is_turned(above, node):
                is_positive = _opposite(is_positive)
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
            elif isinstance(above, ast.Call) and node is not above.func:
                if not self._called(above, node, is_positive):
                    return
                if self._module.functions(last_name(above.func)):
                    is_positive = None
            node = above
        self._in_statement(node, is_positive)

    def _called(self, call: ast.Call, argument: ast.AST, is_positive: Optional[bool]) -> bool:
        """Whether what the call gives back depends on this argument."""
        name = last_name(call.func)
        if name in _ONLY_TOLD:
            return False
        if name in ('range', 'arange', 'islice'):
            self._use.decides = True
        if name in _KEEP and isinstance(call.func, ast.Attribute):
            self._assigned(call.func.value)
        for function in self._module.functions(name):
            for parameter in _parameters(function, call, argument):
                self._depends(parameter, function, is_positive)
        return True

    def _in_statement(self, node: ast.AST, is_positive: Optional[bool]) -> None:
        if isinstance(node, ast.While):
            self._use.decides = True
            self._ends(node)
            self._use.leaves_loop |= not self._is_selected
        elif isinstance(node, ast.If):
            self._use.decides = True
            self._if(node, is_positive)
        elif isinstance(node, ast.Assert) and not self._is_selected:
            self._use.goes_on, self._use.is_checked = is_positive, True
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assigned(node.target)
        elif isinstance(node, ast.Match):
            self._use.decides = True
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assigned(target, is_positive)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            self._assigned(node.target)
        elif isinstance(node, ast.Return) and self._module.function_of(node) is self._start:
            self._returns.append(_Place(node, is_positive, self._is_selected))

    def _ends(self, loop: ast.stmt) -> None:
        self._use.ends_loop = True
        self._use.loops.add((self._file, loop.lineno, loop.end_lineno or loop.lineno))

    def _if(self, node: ast.If, is_positive: Optional[bool]) -> None:
        """A branch: it may leave its block, or set what a loop ends by."""
        is_first, self._is_selected = not self._is_selected, True
        leaving = [_only_leaves(body) for body in (node.body, node.orelse)]
        if is_first and leaving[0] != leaving[1]:
            self._use.goes_on = None if is_positive is None else is_positive is leaving[1]
            self._use.is_checked = isinstance((node.body if leaving[0] else node.orelse)[-1], ast.Raise)
        inside = [each for statement in (*node.body, *node.orelse) for each in ast.walk(statement)]
        function = self._module.function_of(node)
        above = list(self._module.above(node))
        if function is not None:
            above = above[: above.index(function)]
        loops = [each for each in above if isinstance(each, _LOOPS)]
        if loops and any(_leaves(each) for each in inside):
            self._ends(loops[0] if any(isinstance(each, ast.Break) for each in inside) else loops[-1])
            self._use.leaves_loop = True
        loop = next((each for each in loops if isinstance(each, ast.While)), None)
        if is_first and loop is not None:
            self._goes_nearer(loop, _ways(node, above[0]), is_positive)
        for each in inside:
            if isinstance(each, (ast.Assign, ast.AugAssign)):
                for target in getattr(each, 'targets', None) or [each.target]:  # type: ignore[union-attr]
                    self._assigned(target)
            elif isinstance(each, ast.Return) and function is self._start:
                self._returns.append(_Place(each, None, False))  # as in `if loss < 1: return True`

    def _goes_nearer(
        self, loop: ast.While, ways: tuple[list[ast.stmt], list[ast.stmt]], is_positive: Optional[bool]
    ) -> None:
        """Whether one way of a branch alone changes what the loop ends by, and is no mark that it shall end."""
        ends_by = _ends_by(loop)
        if any(_flags_in(way) & ends_by for way in ways):
            self._use.leaves_loop = True
            return
        changes = [bool(set_in(way) & ends_by) for way in ways]
        if changes[0] != changes[1] and is_positive is not None:
            self._use.goes_nearer = is_positive is changes[0]

    def _assigned(self, target: ast.AST, is_positive: Optional[bool] = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assigned(each)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self._assigned(target.value)
        elif isinstance(target, ast.Attribute):
            self._depends('.' + target.attr, None, is_positive)
        elif isinstance(target, ast.Name):
            self._depends(target.id, self._module.function_of(target), is_positive)

    def _depends(self, name: str, function: Optional[ast.AST], is_positive: Optional[bool] = None) -> None:
        """Follow a name of a function, or an attribute, whose name begins with a dot."""
        if (name, function) not in self._known:
            self._known.add((name, function))
            found = self._module.attributes(name[1:]) if name[0] == '.' else self._module.names(name, function)
            self._left.extend(_Place(each, is_positive, self._is_selected) for each in found)


def _ways(branch: ast.If, above: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of a loop that run with either answer only: after a ``continue`` the rest of the block belongs to one."""
    block = next((each for _, each in ast.iter_fields(above) if isinstance(each, list) and branch in each), [])
    rest = block[block.index(branch) + 1 :] if block else []
    ways = branch.body, branch.orelse
    skips = [bool(way) and isinstance(way[-1], ast.Continue) for way in ways]
    return ways[0] + (rest if skips[1] else []), ways[1] + (rest if skips[0] else [])


def _flags_in(body: list[ast.stmt]) -> set[str]:
    """Those that the statements set to a constant, as where a search has converged."""
    inside = [each for statement in body for each in ast.walk(statement) if isinstance(each, ast.Assign)]
    pairs = [(target, each.value) for each in inside for target in each.targets]
    for target, value in list(pairs):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs.extend(zip(target.elts, value.elts))
    return set_in([target for target, value in pairs if isinstance(value, ast.Constant)])


def _ends_by(loop: ast.While) -> set[str]:
    """Names and attributes by which the loop ends: in its test, or in that of a branch that leaves it."""
    branches = (each for each in ast.walk(loop) if isinstance(each, ast.If))
    tests = [loop.test, *(each.test for each in branches if any(map(_leaves, (*each.body, *each.orelse))))]
    read = (each for test in tests for each in ast.walk(test))
    return {last_name(each) for each in read if isinstance(each, (ast.Name, ast.Attribute))}


def _opposite(is_positive: Optional[bool]) -> Optional[bool]:
    return None if is_positive is None else not is_positive


def _is_turned(above: ast.AST, node: ast.AST) -> bool:
    """Whether an expression is false, or small, where this part of it is true, or large."""
    if isinstance(above, ast.UnaryOp):
        return isinstance(above.op, (ast.Not, ast.USub))
    if isinstance(above, ast.BinOp):
        return node is above.right and isinstance(above.op, (ast.Div, ast.FloorDiv, ast.Sub))
    return _is_true_for_less(above, node)


def _is_true_for_less(above: ast.AST, node: ast.AST) -> bool:
    """Whether a comparison is of the kind ``count == 0``, ``count < 1`` or ``1 > count``."""
    if not isinstance(above, ast.Compare) or len(above.ops) != 1:
        return False
    (operator,), other = above.ops, above.comparators[0] if node is above.left else above.left
    if isinstance(operator, ast.Eq):
        return isinstance(other, ast.Constant) and not other.value
    return isinstance(operator, (ast.Lt, ast.LtE) if node is above.left else (ast.Gt, ast.GtE))


def _leaves(node: ast.AST) -> bool:
    """Whether a statement, or a call that is one, ends the loop around it."""
    call = node.value if isinstance(node, ast.Expr) else node
    is_exit = isinstance(call, ast.Call) and last_name(call.func) in _EXITS
    return is_exit or isinstance(node, (ast.Break, ast.Return, ast.Raise))


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


def _parameters(function: Function, call: ast.Call, argument: ast.AST) -> list[str]:
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
