"""The README: short, complete, and true about what is installed."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from composer_memprof.artifacts.naming.names import RUN_VARIABLES, TIME_VARIABLES
from composer_memprof.callbacks.framework.options import SHARED
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.cli import app
from composer_memprof.examples.configs import shipped_configs
from tests.project.documents import GUIDE, README, ROOT, TEXT
from tests.project.test_documents import PROJECT, build

METADATA = configparser.RawConfigParser()
METADATA.read(ROOT / 'setup.cfg')
TARGETS = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE))
MOST_LINES = 220


def test_it_is_short_all_of_it_is_visible_and_its_contents_are_listed() -> None:
    assert len(README.splitlines()) <= MOST_LINES and '<details' not in README
    headings = re.findall(r'^## (.*)$', README, re.MULTILINE)
    anchors = [re.sub(r'[^a-z -]', '', heading.lower()).replace(' ', '-') for heading in headings]
    assert re.findall(r'\]\(#([^)]+)\)', README) == anchors


def test_it_links_to_every_page_of_the_guide() -> None:
    assert set(re.findall(r'composer_memprof/guide/([a-z-]+)\.md', README)) == set(GUIDE)


def test_make_run_trains_the_quickstart() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    assert '$(BIN)/composer-memprof train $(CONFIG) --report $(ARGS)' in makefile
    assert 'CONFIG ?= yamls/quickstart.yaml\n' in makefile
    assert shipped_configs()['quickstart'].samefile(ROOT / 'yamls/quickstart.yaml')


def test_what_is_installed_and_cloned_is_this_project() -> None:
    assert f'git clone {PROJECT} && cd composer_memprof' in README
    assert PROJECT in METADATA['metadata']['project_urls']
    extras = set(METADATA['options.extras_require'])
    for command in re.findall(r'pip install (\S+)', README):
        name, _, chosen = command.strip("'`]").partition('[')
        assert name == METADATA['metadata']['name']
        assert set(filter(None, chosen.split(','))) <= extras
    assert (
        f'extras: {", ".join(name for name in METADATA["options.extras_require"] if name not in ("all", "dev"))}, or'
        in README
    )


def test_commands_and_targets_in_the_text_exist() -> None:
    commands = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    assert set(re.findall(r'composer-memprof ([a-z]+)', TEXT)) == commands
    targets = re.findall(r'`make ([a-z-]+)', TEXT) + re.findall(r'^make ([a-z-]+)', TEXT, re.MULTILINE)
    assert set(targets) <= TARGETS
    for name in re.findall(r'composer-memprof train (\w+)(?![\w.])', TEXT):
        assert name == 'run' or name in shipped_configs()
    assert all(f'`{name}`' in GUIDE['runner'] for name in shipped_configs())
    for page in re.findall(r'composer-memprof guide ([a-z-]+)', TEXT):
        assert page in GUIDE


QUESTIONS = re.findall(r'^\|[^|]+\? \| `(\w+)` \| `([^`]+)` \|$', README, re.MULTILINE)


@pytest.mark.parametrize(('callback', 'line'), QUESTIONS)
def test_each_question_has_a_line_of_yaml_that_makes_its_callback(callback: str, line: str) -> None:
    Path('line.yaml').write_text(line)
    (name,) = made = OmegaConf.to_container(OmegaConf.load('line.yaml'))
    assert CALLBACKS[name].__name__ == callback
    build(made)


def test_every_callback_answers_a_question_and_is_described() -> None:
    names = {callback.__name__ for callback in CALLBACKS.values()}
    assert {callback for callback, _ in QUESTIONS} == names
    assert set(re.findall(r'^## `(\w+)`$', GUIDE['callbacks'], re.MULTILINE)) == names
    shared = re.search(r'All take `([^`]+)`', GUIDE['callbacks'])
    assert shared and set(re.split(r',\s+', shared[1])) == set(SHARED)
    variables = re.search(r'those of Composer: `([^`]+)`', GUIDE['stores-and-names'])
    assert variables and set(re.findall(r'\{(\w+)\}', variables[1])) == {*RUN_VARIABLES, *TIME_VARIABLES}
