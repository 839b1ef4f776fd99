"""What maintainers rely on: the workflow, the forms, the pre-commit hooks and the metadata say what the project does."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
METADATA = configparser.RawConfigParser()
METADATA.read(ROOT / 'setup.cfg')

pytestmark = pytest.mark.skipif(not (ROOT / '.github').is_dir(), reason='an sdist has no .github')


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_workflow_runs_the_projects_checks_on_every_python_that_the_package_takes() -> None:
    (job,) = load('.github/workflows/ci.yml')['jobs'].values()
    assert 'bash .ci/run' in [step.get('run') for step in job['steps']]
    classifiers = METADATA['metadata']['classifiers']
    assert job['strategy']['matrix']['python'] == re.findall(r'Python :: (3\.\d+)', classifiers)


def test_pre_commit_runs_ruff_as_make_lint_does() -> None:
    (repository,) = load('.pre-commit-config.yaml')['repos']
    hooks = {hook['entry'].removesuffix(' --force-exclude') for hook in repository['hooks']}
    makefile = (ROOT / 'Makefile').read_text()
    assert hooks == {f'.venv/bin/{command}' for command in re.findall(r'\$\(BIN\)/(ruff .*) \.\n', makefile)}


def test_each_issue_form_asks_for_something_and_no_question_twice() -> None:
    forms = [load(f'.github/ISSUE_TEMPLATE/{name}.yml') for name in ('bug', 'question')]
    for form in forms:
        asked = [field['id'] for field in form['body'] if field['type'] != 'markdown']
        assert asked and len(set(asked)) == len(asked)


def test_the_metadata_say_who_wrote_it_for_which_systems_and_how_to_find_it() -> None:
    assert METADATA['metadata']['author']
    assert 'out-of-memory' in METADATA['metadata']['keywords'].split(', ')
    assert 'Operating System :: POSIX :: Linux' in METADATA['metadata']['classifiers']
