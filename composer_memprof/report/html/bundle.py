"""The script of a page: JavaScript modules joined into one text, since a page opened from a file can import nothing.

Only what the modules of this package use is supported: imports by name at the start of a line, and ``export`` in front
of a declaration. Declarations of all modules end up in one scope, so their names must be unique.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter

from composer_memprof.report.html.pages import source

_IMPORT = re.compile(r"^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from '(\.[^']+)';\n", re.MULTILINE)
_EXPORT = re.compile(r'^export (?=(?:async )?(?:class|const|function|let)\b)', re.MULTILINE)
_DECLARED = re.compile(r'^(?:export )?(?:async )?(?:class|const|function|let) (\w+)', re.MULTILINE)
_UNSUPPORTED = re.compile(r'^(?:import|export)\b.*', re.MULTILINE)
_COMMENT = re.compile(r'^ *//[^\n]*\n|/\*\*[\s\S]*?\*/ ?', re.MULTILINE)
_INDENT = re.compile(r'\n\s+')


@functools.cache
def bundle(entry: str) -> str:
    """The script that begins with ``entry`` (a path below ``report/html``) and all modules that it imports.

    Comments and indentation are left out.

    Raises:
        ValueError: naming the module, if it imports in a circle, declares a name of another one, uses an unsupported
            form of import or export, or has a text of several lines, which would lose its indentation.
    """
    modules: dict[str, str] = {}
    _collect(entry, modules, ())
    names = Counter(name for text in modules.values() for name in _DECLARED.findall(text))
    duplicates = sorted(name for name, count in names.items() if count > 1)
    if duplicates:
        raise ValueError(f'{entry}: declared in more than one module: {", ".join(duplicates)}')
    return ''.join(_plain(name, text) for name, text in modules.items())


def _collect(name: str, modules: dict[str, str], importing: tuple[str, ...]) -> None:
    """Add a module behind those that it imports."""
    if name in importing:
        raise ValueError(f'{name} imports itself, by {" and ".join(importing)}')
    if name in modules:
        return
    text = source(name)
    for imported in _IMPORT.findall(text):
        _collect(posixpath.normpath(posixpath.join(posixpath.dirname(name), imported)), modules, (*importing, name))
    modules[name] = text


def _plain(name: str, text: str) -> str:
    text = _EXPORT.sub('', _IMPORT.sub('', _COMMENT.sub('', text)))
    unsupported = _UNSUPPORTED.findall(text) + [line for line in text.split('\n') if line.count('`') % 2]
    if unsupported:
        raise ValueError(f'{name}: not supported in a module of a page: {unsupported[0]}')
    return _INDENT.sub('\n', text).lstrip()
