"""The metadata is in setup.cfg. Here is only what it can't say: an sdist holds the tests and all that they read."""

from setuptools import setup
from setuptools.command.sdist import sdist


class WholeProject(sdist):
    """An sdist from which the tests run."""

    def make_distribution(self) -> None:
        for folder in ('tests', 'yamls', '.github', '.ci', '.docs'):
            self.filelist.graft(folder)
        for file in ('Makefile', '.ruff.toml', '.gitignore', '.pre-commit-config.yaml'):
            self.filelist.include(file)
        self.filelist.global_exclude('*.py[co]')
        self.filelist.exclude_pattern(r'(^|/)(node_modules|__pycache__)/', is_regex=True)
        super().make_distribution()


setup(cmdclass={'sdist': WholeProject})
