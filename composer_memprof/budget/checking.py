"""Holds runs to a budget: within it, above it and what grew, or why that can't be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.budget.figures import Figures, Growth, grown
from composer_memprof.budget.measures import MEASURES, Measure
from composer_memprof.budget.recorded import Recorded
from composer_memprof.budget.running import Ran
from composer_memprof.budget.runs import Run
from composer_memprof.simulation.verdict import DOES_NOT_FIT, NOT_SEEN

WITHIN, ABOVE, NOT_RECORDED = 'within', 'above', 'not recorded'
#: The exit codes of what does not depend on how the run ended.
_CODES = {WITHIN: 0, ABOVE: 4, NOT_RECORDED: 2, DOES_NOT_FIT: 3}
#: When several runs have different ones, the first of these is the command's.
_WORST = (2, 3, 4, 0)


@dataclass(frozen=True)
class Amount:
    """One measure of a run.

    Args:
        measure (Measure): which.
        now (float): the figure.
        recorded (float, optional): before; None if there is none to compare with.
        limit (str): as the budget has it; ``''`` if it has none.
        allowed (float, optional): the most that the limit allows.
    """

    measure: Measure
    now: float
    recorded: Optional[float]
    limit: str
    allowed: Optional[float]

    @property
    def above(self) -> float:
        """How much of the figure is above what is allowed; 0 if none is."""
        return 0 if self.allowed is None else max(self.now - self.allowed, 0)


@dataclass(frozen=True)
class Checked:
    """A run that was held to its budget.

    Args:
        run (Run): what was run.
        torch (str): the version that ran.
        status (str): within, above, not recorded, or a simulation's ``not seen`` and ``does not fit``.
        code (int): the exit code for it.
        reason (str): why it was not seen, does not fit or could not be compared, in one line.
        amounts (list[Amount]): empty if nothing was seen.
        grown (list[Growth]): the places that hold more than at the recorded peak, most first.
        output (str): the end of a failed command's own output.
        growth (int): bytes that each step keeps and that are not recorded; no limit allows them.
    """

    run: Run
    torch: str
    status: str
    code: int
    reason: str = ''
    amounts: list[Amount] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    output: str = ''
    growth: int = 0

    @property
    def above(self) -> list[Amount]:
        """What is above its limit, the part of it that is largest first."""
        found = [amount for amount in self.amounts if amount.above]
        return sorted(found, key=lambda amount: -amount.above / max(amount.now, 1))

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            'name': self.run.name,
            'setup': self.run.setup(),
            'status': self.status,
            'reason': self.reason,
            'growth': self.growth,
            'amounts': [
                {
                    'measure': amount.measure.key,
                    'recorded': amount.recorded,
                    'now': amount.now,
                    'limit': amount.limit,
                    'allowed': amount.allowed,
                    'above': amount.above,
                }
                for amount in self.amounts
            ],
            'grown': [
                {
                    'category': change.category,
                    'module': change.module,
                    'at': [str(frame) for frame in change.frames],
                    'within': '' if change.within is None else str(change.within),
                    'before': change.before,
                    'after': change.after,
                }
                for change in self.grown
            ],
        }


def held(what: Run, ran: Ran, recorded: Recorded, torch: str) -> Checked:
    """How a run's figures stand against its budget and the recorded figures."""
    before = recorded.of(what.name, torch)
    other = '' if before is None else _other_setup(what, before)
    if ran.figures is None:
        return Checked(what, torch, NOT_SEEN, ran.code or 2, ran.reason, output=ran.output)
    comparable = None if other else before
    amounts = [
        _amount(measure, what, now, comparable)
        for measure in MEASURES
        if (now := getattr(ran.figures, measure.key)) is not None
    ]
    growth = max(0, ran.figures.growth - (comparable.growth if comparable else 0))
    changes = [] if comparable is None else grown(comparable.places, ran.figures.places)
    unknown = [amount for amount in amounts if amount.limit and amount.allowed is None]
    unmeasured = sorted(what.allowed.keys() - {amount.measure.key for amount in amounts})
    status, reason = WITHIN, ''
    if ran.verdict == DOES_NOT_FIT:
        without_advice = '. '.join(ran.reason.split('. ')[:2])  # torch's
        status, reason = DOES_NOT_FIT, without_advice
    elif growth or any(amount.above for amount in amounts):
        status, reason = ABOVE, '' if comparable else other or _not_recorded(what, recorded, torch)
    elif unknown:
        new = '' if comparable is None else f'no {unknown[0].measure.key} of it is recorded; --update records it'
        status, reason = NOT_RECORDED, other or new or _not_recorded(what, recorded, torch)
    elif unmeasured:
        why = f'its {unmeasured[0]} is limited and was not found; guide will-it-fit says when it is'
        status, reason = NOT_RECORDED, why
    return Checked(what, torch, status, _CODES[status], reason, amounts, changes, growth=growth)


def exit_code(checked: list[Checked]) -> int:
    """Of the command that checked all of these: that of a run that failed comes first."""
    codes = {each.code for each in checked}
    failed = [each.code for each in checked if each.code not in _WORST]
    return failed[0] if failed else next(code for code in _WORST if code in codes)


def _amount(measure: Measure, what: Run, now: float, before: Optional[Figures]) -> Amount:
    limit = what.allowed.get(measure.key)
    recorded = None if before is None else getattr(before, measure.key)
    return Amount(
        measure,
        now,
        recorded,
        '' if limit is None else limit.text,
        None if limit is None else limit.allowed(recorded),
    )


def _other_setup(what: Run, before: Figures) -> str:
    """That the recorded figures are those of other settings, in one line; else ``''``."""
    now = what.setup()
    for key in sorted({*now, *before.setup}):
        if now.get(key) != before.setup.get(key):
            return (
                f'its figures were recorded with {key} {before.setup.get(key, "unset")}, and it has '
                f'{now.get(key, "none")} now; --update records them anew'
            )
    return ''


def _not_recorded(what: Run, recorded: Recorded, torch: str) -> str:
    others = recorded.versions_of(what.name)
    if others:
        return (
            f'its figures were recorded with torch {", ".join(others)}, not {torch}, whose allocator may reserve more '
            'or less; --update adds those of this version'
        )
    return 'no figures of it are recorded; --update records them'
