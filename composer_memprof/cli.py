"""The ``composer-memprof`` command."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand

from composer_memprof import __version__
from composer_memprof.commands.checking import CheckCommand, check
from composer_memprof.commands.files import callbacks, list_files, push
from composer_memprof.commands.guide import guide
from composer_memprof.commands.run_report import report, watch
from composer_memprof.commands.simulating import plan, simulate
from composer_memprof.commands.snapshots import diff, inspect
from composer_memprof.commands.training import train
from composer_memprof.interrupts import INTERRUPTED, ctrl_c_raises
from composer_memprof.terminal import say

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f'composer-memprof {__version__}')
        raise typer.Exit


@app.callback()
def _settings(
    version: bool = typer.Option(
        False, '--version', help='Show the version and exit.', callback=_show_version, is_eager=True
    ),
) -> None:
    """Memory and speed profiling for training with MosaicML Composer.

    \b
    Examples:
      composer-memprof train quickstart
      composer-memprof inspect runs/quickstart
      composer-memprof callbacks
    """


class _Interruptible(TyperCommand):
    """A command that may have to clean up: Ctrl-C raises KeyboardInterrupt in it, and then ends it as the others."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            with ctrl_c_raises():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            say('interrupted')
            raise typer.Exit(INTERRUPTED) from None


for command in (guide, train, callbacks, push, inspect, diff, report):
    app.command(cls=_Interruptible)(command)
app.command(name='ls', cls=_Interruptible)(list_files)
app.command(cls=_Interruptible)(watch)
# The options of the simulated command are its own.
app.command(cls=_Interruptible, context_settings={'allow_interspersed_args': False})(simulate)
app.command()(plan)
app.command(cls=CheckCommand)(check)


def main() -> None:
    try:
        app(prog_name='composer-memprof')
    except ModuleNotFoundError as error:
        if error.name != 'composer':
            raise
        say('this command needs Composer, which is not installed: pip install mosaicml')
        sys.exit(1)


if __name__ == '__main__':
    main()
