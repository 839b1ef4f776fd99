"""The schemas of what ``--json`` prints: sound, there for each command that has a version, and in step with the types."""

from __future__ import annotations

import json

import jsonschema
import pytest

from composer_memprof.schemas import VERSIONS, schema
from tests.support.json_schemas import all_schemas


@pytest.mark.parametrize('command', VERSIONS)
def test_a_schema_is_valid_and_asks_for_the_version(command: str) -> None:
    found = schema(command)
    jsonschema.Draft202012Validator.check_schema(found)
    validator = jsonschema.Draft202012Validator(found)
    assert any(f'{VERSIONS[command]} was expected' in error.message for error in validator.iter_errors({'version': 0}))
    assert any("'version' is a required property" in error.message for error in validator.iter_errors({}))


@pytest.mark.parametrize('command', VERSIONS)
def test_a_schema_says_what_the_types_say(command: str) -> None:
    """If not, run ``python -m tests.support.json_schemas``, and see CONTRIBUTING for what may change."""
    assert schema(command) == json.loads(json.dumps(all_schemas()[command]))
