"""The source of a file, parsed: the expression that runs, what contains it, and where names are read."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator, Sequence
from typing import Optional, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


def position_of(frame: types.FrameType) -> tuple[int, int, int, int]:
    """Line and column where the expression on its way begins and ends; columns are -1 before Python 3.11."""
    positions = getattr(frame.f_code, 'co_positions', None)
    if positions is not None:
        line, end_line, column, end_column = list(positions())[frame.f_lasti // 2]
        if None not in (line, end_line, column, end_column):
            return line, column, end_line, end_column
    return frame.f_lineno, -1, frame.f_lineno, -1


def source_of(frame: types.FrameType) -> Optional[SourceFile]:
    """That of the file whose code the frame runs; None if it is not there, or is no Python."""
    file = frame.f_code.co_filename
    return _parsed(file, tuple(linecache.getlines(file, frame.f_globals)))


@functools.lru_cache(maxsize=64)
def _parsed(file: str, lines: tuple[str, ...]) -> Optional[SourceFile]:
    del file  # a part of the key
    try:
        return SourceFile(ast.parse(''.join(lines))) if lines else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class SourceFile:
    """The source of one file.

    Attributes:
        parents: of each node.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self._names: dict[str, list[ast.Name]] = {}
        self._attributes: dict[str, list[ast.Attribute]] = {}
        self._functions: dict[str, list[Function]] = {}
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
        """Where the name is read: within the function, or else where no function has a name of its own like it."""
        found = self._names.get(name, [])
        if function is not None:
            return [each for each in found if function in self.above(each)]
        own = self._owners(name)
        return [each for each in found if own.isdisjoint(self.above(each))]

    def _owners(self, name: str) -> set[ast.AST]:
        """The functions that set the name, or have a parameter of that name."""
        functions = (each for found in self._functions.values() for each in found)
        return {each for each in functions if name in set_in([each]) or name in arguments_of(each)}

    def attributes(self, name: str) -> list[ast.Attribute]:
        return self._attributes.get(name, [])

    def functions(self, name: str) -> list[Function]:
        return self._functions.get(name, [])


def set_in(body: Sequence[ast.AST]) -> set[str]:
    """Names and attributes that the statements set, as a whole or an element of them."""
    stored = (
        each for statement in body for each in ast.walk(statement) if isinstance(getattr(each, 'ctx', None), ast.Store)
    )
    return {last_name(each.value if isinstance(each, ast.Subscript) else each) for each in stored} - {''}


def arguments_of(function: Function) -> set[str]:
    given = function.args
    return {
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
    }


def last_name(function: ast.AST) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ''
    )
