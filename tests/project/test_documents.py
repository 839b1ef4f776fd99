"""The README and the guide keep what they promise: their commands and examples run, and their samples are what is printed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from composer_memprof import config
from composer_memprof.budget.file import read_budget
from composer_memprof.config.arguments import call
from tests.conftest import child_environment, entries
from tests.project.documents import BLOCKS, DOCUMENTS, NOT_RUN, ROOT, Block, Reader, blocks, commands
from tests.project.documents import reader as reader
from tests.support.processes import warm_python

PROJECT = 'https://github.com/composer-memprof/composer_memprof'


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} == {'bash', 'python', 'yaml', ''}
    assert len(BLOCKS) > 30 and {block.document for block in BLOCKS} > {'README', 'index', 'out-of-memory'}


@pytest.mark.slow
@pytest.mark.parametrize('command', [each for each in commands() if not each.startswith(tuple(NOT_RUN))])
def test_commands_run(command: str, reader: Reader) -> None:
    reader.run(command)


def test_each_command_that_does_not_run_here_is_in_a_document() -> None:
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in commands())] == []


def structure(line: str) -> str:
    """A line of output without numbers, units, the frame of a table and the folder of the command."""
    line = re.sub(r'[━┃│┏┓┡┩╇┳└┘┴─]', '', line).replace('.venv/bin/', '')
    line = re.sub(r'\d[\d.,]*', '#', line)
    return ' '.join(re.sub(r'\b(B|KiB|MiB)\b', 'B', line).replace('blocks', 'block').split())


def printed_by(block: Block) -> str:
    """The command that prints a sample: the last one of the bash block before it."""
    before = [each for each in BLOCKS if each.document == block.document and each.line < block.line]
    return [each for each in before if each.language == 'bash'][-1].commands()[-1]


@pytest.mark.parametrize('block', blocks(''))
def test_sample_output_is_what_the_command_prints(block: Block, reader: Reader) -> None:
    printed = set(map(structure, reader.run(printed_by(block)).splitlines()))
    # If several rules put blocks into a category, the size of each precedes its rule.
    printed |= {line.removeprefix('# B ') for line in printed}
    shown = [line for line in map(structure, block.text.splitlines()) if line not in ('', '…')]
    assert shown and [line for line in shown if line not in printed] == [], printed


RUN_PYTHON = """
import contextlib, io, json, sys
printed = []
for name, line, text in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(text, f'{name}, block at line {line}', 'exec'), {'__name__': '__main__'})
    printed.append(out.getvalue())
json.dump(printed, open('printed.json', 'w'))
"""


@pytest.mark.slow
def test_python_examples_run_in_a_process_of_their_own_and_an_empty_folder() -> None:
    examples = [block for block in BLOCKS if block.language == 'python']
    done = warm_python.run(
        [sys.executable, '-c', RUN_PYTHON],
        input=json.dumps([(block.document, block.line, block.text) for block in examples]),
        env=child_environment(OMP_NUM_THREADS='1'),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (last_line,) = re.findall(r'`(composer_memprof: [^`]+)`', DOCUMENTS['README'])
    assert last_line.replace('\n', ' ') in done.stderr.splitlines()
    assert {'host_rss', 'step_times', 'memory_snapshot', 'memory_snapshot.page'} <= {
        entry.kind for entry in entries(Path('first')) if entry.status == 'saved'
    }
    (readings,) = (path.read_text() for path in Path().rglob('rank_0_memory_stats.yaml'))
    assert all(f'0.tokenize.{call}.{end}:' in readings for call in (2, 3, 4) for end in ('start', 'end'))
    assert '0.tokenize.1.start' not in readings and '0.training_step.4.end:' in readings
    printed = dict(zip((block.text for block in examples), json.loads(Path('printed.json').read_text())))
    (medians,) = (text for example, text in printed.items() if 'step_times.summary.json' in example)
    assert re.match(r"rank 0: \{'total': [\d.]+, 'data': [\d.]+, 'dataloader': ", medians)


def build(callbacks: dict[str, Any]) -> None:
    """Check names and arguments of callbacks, and make them."""
    for name, arguments in callbacks.items():
        call(f'callbacks.{name}', config.ALL_CALLBACKS[name], arguments)


@pytest.mark.parametrize('block', blocks('yaml'))
def test_yaml_examples_are_valid(block: Block) -> None:
    Path('example.yaml').write_text(block.text)
    example: Any = OmegaConf.load('example.yaml')
    if 'runs' in example:
        assert read_budget(Path('example.yaml'))
        return
    if 'jobs' in example:  # a workflow of GitHub; its commands are looked for in the text
        return
    complete = 'model' in example
    if not complete:  # goes into a config that has the rest
        quickstart: Any = OmegaConf.load(ROOT / 'yamls/quickstart.yaml')
        OmegaConf.save({**quickstart, **example}, 'example.yaml')
    loaded = config.load('example.yaml')
    build(loaded['callbacks'])
    if complete:
        config.build_trainer(loaded).close()


def test_links_are_absolute_and_files_that_they_name_exist() -> None:
    if not (ROOT / '.github').is_dir():
        pytest.skip('an sdist has no .github')
    links = [link for text in DOCUMENTS.values() for link in re.findall(r'\]\(([^)]+)\)', text)]
    assert links and all(link.startswith(('https://', '#')) for link in links)
    raw = PROJECT.replace('github.com', 'raw.githubusercontent.com')
    for link in links:
        for base in (f'{PROJECT}/blob/main/', f'{raw}/main/'):
            if link.startswith(base):
                assert (ROOT / link.removeprefix(base)).is_file(), link
        own = link.startswith(PROJECT) and link != f'{PROJECT}/issues'
        assert not own or '/blob/main/' in link, link
    assert all(image.stat().st_size < 200_000 for image in (ROOT / '.github/images').iterdir())


FEATURES = [row for row in DOCUMENTS['from-other-tools'].splitlines() if row.startswith('|') and '`-k ' in row]


def test_every_feature_of_the_table_is_listed() -> None:
    assert len(FEATURES) > 20


@pytest.mark.parametrize('row', FEATURES, ids=range(len(FEATURES)))
def test_each_listed_feature_has_its_tests(row: str) -> None:
    for place, words in re.findall(r'`-k "?(\w+)(?: and \(?([\w ]+)\)?)?"?`', row.split('|')[-2]):
        files = [path for path in (ROOT / 'tests').rglob('test_*.py') if place in path.relative_to(ROOT).as_posix()]
        tests = [name for path in files for name in re.findall(r'^def (test_\w+)', path.read_text(), re.MULTILINE)]
        for word in words.split(' or '):
            assert any(word in test for test in tests), f'no file {place!r} has a test for {word!r}'
