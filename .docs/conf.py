"""The site that ``make docs`` builds: the guide and the API reference, with a search that needs no server."""

import importlib

import composer_memprof as package
from composer_memprof.guide import NAMES

project = 'composer_memprof'
author = 'The composer_memprof developers'
copyright = author
version = release = package.__version__

extensions = ['myst_parser', 'sphinx.ext.apidoc', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 3
exclude_patterns = ['guide/__init__.py', 'api/modules.rst', '**/__pycache__']
# Several rooms have a class of one name; a link leads to the first.
suppress_warnings = ['myst.xref_missing', 'ref.python']

# The package imports its callbacks when they are first used; autodoc documents only what is there.
vars(package).update({name: getattr(package, name) for name in package.__all__})
package.__dict__['__all__'] = list(package.__all__)

apidoc_modules = [
    {
        'path': '../composer_memprof',
        'destination': 'api/',
        'separate_modules': False,
        'implicit_namespaces': False,
        'module_first': True,
        'automodule_options': {'members', 'show-inheritance'},
        'exclude_patterns': ['../composer_memprof/simulated_gpu/startup', '../composer_memprof/__main__.py'],
    }
]
# The adapters' packages need not be installed.
autodoc_mock_imports = ['lightning', 'transformers']
autodoc_typehints = 'description'
autodoc_member_order = 'bysource'
# Docstrings name parameters as Composer's do, with the type in brackets.
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = 'furo'
html_title = f'composer-memprof {version}'
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False


def _with_pages(app: object, name: str, source: list) -> None:
    """The pages of the guide in the order of the command."""
    if name == 'index':
        source[0] = source[0].replace('PAGES', '\n'.join(f'guide/{page}' for page in NAMES))


def setup(app: object) -> None:
    app.connect('source-read', _with_pages)
    importlib.import_module('torch')  # before autodoc imports parts of it
