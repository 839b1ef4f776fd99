"""The guide: Markdown pages that ship with the package, so that they are there on the node where a job died."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The pages in the order in which they are listed, the one for a job that just died first.
NAMES = (
    *('index', 'out-of-memory', 'host-memory', 'slow-step', 'many-ranks', 'will-it-fit', 'budget'),
    *(
        'callbacks',
        'schedules',
        'stores-and-names',
        'files',
        'metrics',
        'own-functions',
        'own-loop',
        'in-python',
        'runner',
    ),
    *('troubleshooting', 'from-other-tools', 'changes'),
)


@dataclass(frozen=True)
class Page:
    """A page of the guide.

    Args:
        name (str): as it is typed.
        text (str): Markdown. Its first line is the title.
    """

    name: str
    text: str

    @property
    def title(self) -> str:
        """Without the mark of a heading.

        >>> from composer_memprof.guide import pages
        >>> pages()[0].title
        'Your job just died: do this'
        """
        return self.text.partition('\n')[0].removeprefix('# ')


def pages() -> list[Page]:
    """All pages, in the order of :data:`NAMES`."""
    folder = Path(__file__).parent
    return [Page(name, (folder / f'{name}.md').read_text(encoding='utf-8')) for name in NAMES]
