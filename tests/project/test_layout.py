"""The layout of the project: which module may import which, what exists in one place only, and how large a room may be."""

from __future__ import annotations

import ast
import graphlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOT = PROJECT / 'composer_memprof'
TESTS = PROJECT / 'tests'

#: The most modules in a folder, and the most lines in a Python file.
MOST_MODULES, MOST_LINES = 16, 400
#: One module for each area of torch's private names, so that one callback can do without one of them.
WITHOUT_A_LIMIT = 'recorders/torch_private'

#: What each top-level package or module may import, besides itself. None imports one that is below it in this table.
ROOMS = {
    'vocabulary': set(),
    'cgroup': set(),
    'garbage': set(),
    'signals': set(),
    'redaction': set(),
    'guide': set(),
    'schemas': set(),
    'interrupts': set(),
    'messages': {'redaction', 'vocabulary'},
    'examples': {'messages'},
    'terminal': {'messages', 'redaction', 'vocabulary'},
    'simulated_gpu': {'messages'},
    'schedule': {'messages', 'vocabulary'},
    'recorders': {'cgroup', 'garbage', 'messages', 'signals', 'simulated_gpu', 'vocabulary'},
    'artifacts': {'cgroup', 'messages', 'redaction', 'signals', 'simulated_gpu', 'vocabulary'},
    'analysis': {'artifacts', 'garbage', 'messages', 'recorders', 'vocabulary'},
    'report': {'analysis', 'artifacts', 'messages', 'recorders', 'simulated_gpu', 'vocabulary'},
    'callbacks': {
        *('analysis', 'artifacts', 'messages', 'recorders', 'redaction', 'report', 'schedule', 'signals', 'vocabulary'),
    },
    'loop': {'callbacks', 'messages', 'recorders', 'vocabulary'},
    'config': {'artifacts', 'callbacks', 'examples', 'messages', 'redaction', 'schedule', 'vocabulary'},
    'simulation': {
        'analysis',
        'artifacts',
        'messages',
        'recorders',
        'report',
        'schemas',
        'simulated_gpu',
        'vocabulary',
    },
    'plans': {
        *('analysis', 'artifacts', 'config', 'interrupts', 'messages', 'recorders', 'redaction'),
        *('schemas', 'signals', 'simulated_gpu', 'simulation', 'terminal', 'vocabulary'),
    },
    'budget': {
        *('analysis', 'artifacts', 'examples', 'messages', 'plans', 'redaction', 'report', 'schemas', 'simulated_gpu'),
        *('simulation', 'vocabulary'),
    },
    'interface': {
        *(
            'analysis',
            'artifacts',
            'messages',
            'plans',
            'redaction',
            'report',
            'schemas',
            'simulated_gpu',
            'simulation',
        ),
        *('terminal', 'vocabulary'),
    },
    'testing': {'analysis', 'artifacts', 'messages', 'recorders', 'report', 'simulated_gpu', 'vocabulary'},
    'runner': {'analysis', 'artifacts', 'callbacks', 'config', 'messages', 'report', 'vocabulary'},
    'commands': {
        *('analysis', 'artifacts', 'budget', 'config', 'examples', 'guide', 'interrupts', 'messages', 'plans'),
        *('report', 'runner', 'schemas', 'simulated_gpu', 'simulation', 'terminal'),
    },
}


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module by its dotted name."""
    return {_dotted(path): ast.parse(path.read_text(encoding='utf-8')) for path in sorted(ROOT.rglob('*.py'))}


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each import as module and name, of type checkers and functions too; the name is ``''`` for ``import module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, '') for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, 'imports are absolute'
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def graph() -> dict[str, set[str]]:
    """The package's modules that each module imports."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        pairs = [(source, name) for source, name in imported_names(tree) if source.split('.')[0] == ROOT.name]
        found[module] = {f'{source}.{name}' if f'{source}.{name}' in trees() else source for source, name in pairs}
    return found


def room(module: str) -> str:
    return module.removeprefix(f'{ROOT.name}.').split('.')[0]


def fail_for_a_circle(found: Mapping[str, set[str]]) -> None:
    try:
        graphlib.TopologicalSorter(found).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f'these need each other: {" <- ".join(error.args[1])}')


def test_imports_form_no_circle() -> None:
    fail_for_a_circle(graph())


def test_imports_of_the_pages_scripts_form_no_circle() -> None:
    html = ROOT / 'report/html'
    found = {}
    for path in html.rglob('*.js'):
        names = re.findall(r"^(?:import .*|\}) from '(\.[^']+)';$", path.read_text(encoding='utf-8'), re.MULTILINE)
        folder = path.parent.relative_to(html).as_posix()
        found[path.relative_to(html).as_posix()] = {posixpath.normpath(f'{folder}/{name}') for name in names}
    assert sum(map(len, found.values())) > 50
    fail_for_a_circle(found)


def test_the_files_of_the_simulated_runtime_call_each_other_in_no_circle() -> None:
    def code(path: Path) -> str:
        return re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', '', path.read_text(encoding='utf-8'), flags=re.DOTALL)

    files = {path.name: code(path) for path in (ROOT / 'simulated_gpu/runtime').glob('*.c')}
    defined = re.compile(r'^(?!static|typedef|return|else)[\w *]*?\b([a-z]\w+)\([^;{}]*\)\s*\{', re.MULTILINE)
    homes = {function: name for name, text in files.items() for function in defined.findall(text)}
    assert homes['figure'] == 'figures.c' and homes['devices_seen'] == 'visible_devices.c'
    called = {
        name: {homes.get(word, name) for word in re.findall(r'\b(\w+)\s*\(', text)} for name, text in files.items()
    }
    fail_for_a_circle({name: others - {name} for name, others in called.items()})


@pytest.mark.parametrize('kind', ['*.py', '*.js'])
def test_no_folder_has_many_modules(kind: str) -> None:
    files = [path for root in (ROOT, TESTS) for path in root.rglob(kind) if 'node_modules' not in path.parts]
    folders = Counter(path.parent.relative_to(PROJECT).as_posix() for path in files)
    assert len(folders) > 5
    full = {folder: count for folder, count in folders.items() if count > MOST_MODULES}
    assert set(full) <= {f'{ROOT.name}/{WITHOUT_A_LIMIT}'}, full


def test_no_file_is_long() -> None:
    lines = {
        path.relative_to(PROJECT).as_posix(): len(path.read_text(encoding='utf-8').splitlines())
        for root in (ROOT, TESTS)
        for path in root.rglob('*.py')
        if 'node_modules' not in path.parts
    }
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize('name', ROOMS)
def test_a_room_imports_only_rooms_above_it_in_the_table(name: str) -> None:
    found = {
        (module, imported)
        for module, imports in graph().items()
        for imported in imports
        if room(module) == name and room(imported) not in {name, *ROOMS[name]}
    }
    assert found == set()


def test_every_room_is_in_the_table() -> None:
    assert {room(module) for module in trees()} - set(ROOMS) <= {ROOT.name, 'cli', '__main__'}


def test_nothing_imports_the_command() -> None:
    users = [module for module, imports in graph().items() if f'{ROOT.name}.cli' in imports]
    assert set(users) <= {f'{ROOT.name}.__main__'}


@pytest.mark.parametrize('name', ['recorders', 'analysis', 'report'])
def test_recorders_analysis_and_reports_do_not_import_composer(name: str) -> None:
    users = [
        module
        for module, tree in trees().items()
        if room(module) == name and any(source.split('.')[0] == 'composer' for source, _ in imported_names(tree))
    ]
    assert users == []


def test_every_package_says_what_is_in_it() -> None:
    packages = {_dotted(path) for path in ROOT.rglob('__init__.py')}
    assert [package for package in sorted(packages) if not ast.get_docstring(trees()[package])] == []


def test_no_module_imports_a_private_name_of_another() -> None:
    found = [
        (module, source, name)
        for module, tree in trees().items()
        for source, name in imported_names(tree)
        if source.split('.')[0] == ROOT.name and name.startswith('_') and not name.endswith('__')
    ]
    assert found == []


def test_no_property_takes_a_lock_that_a_forked_child_would_wait_for() -> None:
    """``functools.cached_property`` does before Python 3.12; ``computed_once`` does not."""
    users = {module for module, tree in trees().items() if ('functools', 'cached_property') in imported_names(tree)}
    assert users == set()


def test_only_the_folder_push_clearing_closing_and_simulations_write_to_a_manifest() -> None:
    users = {
        module
        for module, tree in trees().items()
        for source, name in imported_names(tree)
        if source == f'{ROOT.name}.artifacts.reading.manifest' and name in ('Manifest', 'append_line')
    }
    writing = ('writing.folder', 'writing.temporary_files', 'writing.earlier_attempts', 'uploading.push.push')
    writers = (*(f'artifacts.{writer}' for writer in writing), 'simulation.snapshot_files')
    assert users == {f'{ROOT.name}.{writer}' for writer in writers}


def test_only_the_table_of_codecs_has_their_suffixes() -> None:
    # A string with a space is a sentence that mentions the suffix, not a part of a name.
    users = {
        module
        for module, tree in trees().items()
        if any(('.gz' in text or '.zst' in text) and ' ' not in text for text in _strings(tree))
    }
    assert users == {f'{ROOT.name}.artifacts.naming.compression'}


def _strings(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that are not docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _is_text(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _is_text(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
