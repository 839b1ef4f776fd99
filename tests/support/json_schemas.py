"""The JSON Schemas in the package: outputs are held to them, and ``python -m tests.support.json_schemas`` writes them anew.

They are written from the types of the dataclasses that a command prints. Look at the difference before you commit it: keys
may be added; whatever else changes raises the version in ``composer_memprof/schemas``.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

import jsonschema

from composer_memprof import schemas
from composer_memprof.schemas import VERSIONS, schema

Schema = dict[str, Any]
_PLAIN = {bool: 'boolean', int: 'integer', float: 'number', str: 'string', type(None): 'null', Path: 'string'}
#: By name, as far as a schema has referred to them.
_dataclasses: dict[str, Any] = {}


def as_promised(command: str, text: str) -> Any:
    """The values that a command has printed, which keep to its schema."""
    values = json.loads(text)
    jsonschema.validate(values, schema(command))
    return values


def schema_of(kind: Any) -> Schema:
    """The schema of a type. Dataclasses are described once in each file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return {'type': _PLAIN[kind]}
    if origin in (Union, types.UnionType):
        return {'anyOf': [schema_of(each) for each in arguments]}
    if origin is Literal:
        return {'type': 'string'}
    if origin in (list, tuple, Sequence):
        return {'type': 'array', 'items': schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {'type': 'object', 'additionalProperties': schema_of(arguments[1])}
    if dataclasses.is_dataclass(kind):
        _dataclasses[kind.__name__] = kind  # type: ignore[union-attr]
        return {'$ref': f'#/$defs/{kind.__name__}'}  # type: ignore[union-attr]
    return {}


def described(kind: Any, **more: Schema) -> Schema:
    """A dataclass, with further keys."""
    hints = typing.get_type_hints(kind)
    parts = {each.name: schema_of(hints[each.name]) for each in dataclasses.fields(kind)}
    return an_object(kind.__doc__ or '', **{**parts, **more})


def an_object(title: str = '', /, **parts: Schema) -> Schema:
    """A mapping that has at least these keys."""
    described = {'description': title.strip().partition('\n')[0]} if title else {}
    return {**described, 'type': 'object', 'properties': parts, 'required': list(parts)}


def a_list(items: Schema) -> Schema:
    return {'type': 'array', 'items': items}


def optional(one: Schema) -> Schema:
    return {'anyOf': [one, {'type': 'null'}]}


def all_schemas() -> dict[str, Schema]:
    """Each command's schema, from the types of today."""
    from composer_memprof.analysis.function_growth import FunctionGrowth
    from composer_memprof.analysis.memory.snapshot_report import SnapshotReport
    from composer_memprof.analysis.run import LeftOutWindows
    from composer_memprof.analysis.run_report.advice.kinds import Advice
    from composer_memprof.analysis.run_report.failures import Failure
    from composer_memprof.analysis.run_report.trials import Trials
    from composer_memprof.plans.result import Plan, Row
    from composer_memprof.plans.trial import Outcome
    from composer_memprof.simulation.result import SimulationResult
    from composer_memprof.simulation.search import Search

    text, number, whole, flag = ({'type': _PLAIN[kind]} for kind in (str, float, int, bool))
    any_mapping: Schema = {'type': 'object'}
    outcome = described(Outcome)
    of_row = {**outcome, 'required': [key for key in outcome['required'] if key != 'places']}
    row = described(Row, outcome=of_row)
    file = an_object(
        path=text,
        rank=optional(whole),
        failure=text,
        others=whole,
        ranks=a_list(whole),
        failed=any_mapping,
        page=optional(text),
    )
    amount = an_object(
        measure=text,
        recorded=optional(number),
        now=number,
        limit=text,
        allowed=optional(number),
        above=number,
    )
    grown = an_object(category=text, module=text, at=a_list(text), within=text, before=whole, after=whole)
    checked = an_object(
        name=text,
        setup=schema_of(dict[str, str]),
        status=text,
        reason=text,
        growth=whole,
        summary=text,
        amounts=a_list(amount),
        grown=a_list(grown),
    )
    cause = an_object(kind=text)
    figures = an_object(
        kind=text,
        unit=text,
        batch=optional(whole),
        ranks=a_list(whole),
        rows=a_list(an_object(group=text, name=text, values=a_list(optional(number)))),
    )
    found = {
        'check': an_object(budget=text, torch=text, exit_code=whole, runs=a_list(checked)),
        'inspect': {
            'anyOf': [described(SnapshotReport, file=file), an_object(functions=a_list(schema_of(FunctionGrowth)))]
        },
        'plan': described(Plan, changes=a_list(row), combination=optional(row), grid=a_list(row)),
        'report': an_object(
            name=text,
            simulated=optional(text),
            ranks=a_list(whole),
            verdict=a_list(any_mapping),
            causes=a_list(cause),
            advice=a_list(schema_of(Advice)),
            comparison=optional(any_mapping),
            trials=optional(schema_of(Trials)),
            not_tried=text,
            failures=a_list(schema_of(Failure)),
            attempts=a_list(an_object(ranks=any_mapping, states=any_mapping)),
            odd_ranks=a_list(any_mapping),
            figures=a_list(figures),
            snapshot=optional(an_object(rank=optional(whole), path=text)),
            status=schema_of(dict[str, int]),
            windows_left_out=a_list(schema_of(LeftOutWindows)),
            unreadable=a_list(text),
        ),
        'simulate': {
            'anyOf': [
                described(
                    SimulationResult,
                    fits=optional(flag),
                    verdict=text,
                    reason=text,
                    growth=whole,
                    steps_that_fit=optional(whole),
                ),
                described(Search, limit=text),
            ]
        },
    }
    return {command: _with_version(command, each) for command, each in found.items()}


def _with_version(command: str, what: Schema) -> Schema:
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': f'composer-memprof {command} --json',
        'type': 'object',
        'properties': {'version': {'const': VERSIONS[command]}},
        'required': ['version'],
        'allOf': [what],
        '$defs': dict(sorted(_definitions(what).items())),
    }


def _definitions(what: Schema) -> dict[str, Schema]:
    """The dataclasses that a schema refers to, and that these refer to."""
    found: dict[str, Schema] = {}
    waiting = _references(what)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = described(_dataclasses[name])
            waiting |= _references(found[name])
    return found


def _references(what: Any) -> set[str]:
    if isinstance(what, list):
        return {name for each in what for name in _references(each)}
    if not isinstance(what, dict):
        return set()
    own = {what['$ref'].rpartition('/')[2]} if isinstance(what.get('$ref'), str) else set()
    return own | {name for each in what.values() for name in _references(each)}


def write() -> None:
    for command, described in all_schemas().items():
        path = Path(schemas.__file__).with_name(f'{command}.json')
        path.write_text(f'{json.dumps(described, indent=1)}\n', encoding='utf-8')


if __name__ == '__main__':
    write()
