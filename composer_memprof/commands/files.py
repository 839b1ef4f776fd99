"""The callbacks, and a run's files: listed and uploaded."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from composer_memprof.commands.reading import on_this_disk, os_errors_in_one_line
from composer_memprof.commands.storage_options import parse_storage_options
from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.terminal import say, show

if TYPE_CHECKING:
    from composer_memprof.artifacts.uploading.push.targets import Allowed, Target


def callbacks(as_json: bool = typer.Option(False, '--json', help='print as JSON')) -> None:
    """List the callbacks: what each records, its parameters and their defaults.

    \b
    Example:
      composer-memprof callbacks --json
    """
    from rich.padding import Padding
    from rich.text import Text

    from composer_memprof.config.catalog import describe_callbacks, shared_defaults

    described = describe_callbacks()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(callback) for callback in described], default=str))
        return
    shared = shared_defaults(described)
    for callback in described:
        show(Text(f'{callback.name} ({callback.class_name})'))
        show(Padding(Text(callback.records), (0, 0, 0, 2)))
        for reason in callback.unavailable:
            show(Padding(Text(f'Unavailable: {reason}'), (0, 0, 0, 2)))
        own = {name: value for name, value in callback.defaults.items() if name not in shared}
        further = f' **{callback.further_arguments}' if callback.further_arguments else ''
        show(Padding(Text(_settings_line(own) + further), (0, 0, 1, 2)))
    show(Text('Parameters of all callbacks'))
    show(Padding(Text(_settings_line(shared)), (0, 0, 0, 2)))


def _settings_line(defaults: dict[str, Any]) -> str:
    return ' '.join(f'{name}={json.dumps(value, default=str)}' for name, value in defaults.items())


def push(
    folder: Path = typer.Argument(..., help='searched for manifests at any depth', metavar='RUN_FOLDER'),
    storage_options: list[str] = typer.Option(
        [],
        '--storage-options',
        help='for the store, in addition to the environment: key=value, or a JSON object; may be given again',
        metavar='OPTIONS',
    ),
    allow_local: list[Path] = typer.Option(
        [],
        '--allow-local',
        help='a folder of this machine that files may be copied to; may be given again',
        metavar='FOLDER',
    ),
    yes: bool = typer.Option(False, '--yes', '-y', help='do not ask before files are sent to a store'),
    verify: bool = typer.Option(
        False, '--verify', help='ask the store for size and checksum of each uploaded file; exit 1 if one is wrong'
    ),
    as_json: bool = typer.Option(False, '--json', help='print one JSON object for each file'),
) -> None:
    """Upload the files that the manifests list as not uploaded.

    A manifest names the stores, and may come from anybody. So the stores are shown, and files are sent once you
    agree, or with --yes.

    COMPOSER_MEMPROF_UPLOAD_LIMIT in the environment limits the bytes per second: 200MB.

    \b
    Examples:
      composer-memprof push runs/my-run
      composer-memprof push my-run --storage-options key=value
      composer-memprof push my-run --allow-local /mnt/runs
      composer-memprof push my-run --verify
    """
    from composer_memprof.artifacts.uploading.bar import UploadBar
    from composer_memprof.artifacts.uploading.push import push as pushing

    _check_is_folder(folder)
    allowed = _confirmed(
        pushing.targets(folder, verify=verify), allow_local, yes, 'send or verify' if verify else 'send'
    )

    def report(pushed: pushing.PushResult) -> None:
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(pushed), default=str))
        elif pushed.error is None and pushed.was_sent:
            typer.echo(f'uploaded {str(pushed.path)!r} to {pushed.remote!r}')
        elif pushed.error is None:
            return
        elif not pushed.was_sent:
            say(f'{str(pushed.path)!r} was uploaded to {pushed.remote!r}, but {pushed.error}')
        elif pushed.remote:
            say(f'{str(pushed.path)!r} was not uploaded to {pushed.remote!r}: {pushed.error}')
        else:
            say(f'{str(pushed.path)!r} was not pushed: {pushed.error}')

    bar = UploadBar()
    try:
        results = pushing.push(folder, parse_storage_options(storage_options), report, bar.show, allowed, verify=verify)
    except ValueError as error:  # a setting
        say(str(error))
        raise typer.Exit(2) from None
    finally:
        bar.close()
    if not as_json:
        stored = [pushed for pushed in results if pushed.error is None]
        if not results:
            typer.echo(f'nothing to upload under {printable(str(folder))}')
        elif verify:
            typer.echo(f'verified {len(stored)} of {count_of(len(results), "file")}')
    if any(pushed.error is not None for pushed in results):
        raise typer.Exit(1)


def _confirmed(targets: list[Target], allow_local: list[Path], yes: bool, verb: str) -> Allowed:
    """The places that files may be sent to. Asks on a terminal, with ``verb``; ends the command if nobody agrees."""
    from composer_memprof.artifacts.uploading.push.targets import Allowed, local_path

    allowed = Allowed(allow_local, [target.address for target in targets if local_path(target.address) is None])
    for target in targets:
        if allowed.refuses(f'{target.address}/file') is not None:
            folder = local_path(target.address)
            say(f'push would copy {_in_words(target)}. Nothing was sent; if that is right, add --allow-local {folder}')
            raise typer.Exit(2)
    stores = [target for target in targets if local_path(target.address) is None]
    if stores and not yes:
        shown = ', '.join(map(_in_words, stores))
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            say(f'push would {verb} {shown}. Nothing was sent; if that is right, add --yes')
            raise typer.Exit(2)
        if not typer.confirm(f'{verb.capitalize()} {shown}?', err=True):
            raise typer.Exit(1)
    return allowed


def _in_words(target: Target) -> str:
    size = f' ({human_bytes(target.bytes)})' if target.bytes else ''
    return f'{count_of(target.files, "file")}{size} to {printable(target.address)}'


def list_files(
    folder: str = typer.Argument(
        ...,
        help='searched for manifests at any depth; on this disk, or in a store, such as s3://…',
        metavar='RUN_FOLDER',
    ),
    as_json: bool = typer.Option(False, '--json', help='print as JSON'),
) -> None:
    """List the files of a run that its manifests name. In a store without a manifest, all files are listed.

    \b
    Examples:
      composer-memprof ls runs/my-run
      composer-memprof ls s3://bucket/my-run
    """
    from rich.text import Text

    from composer_memprof.analysis.run import left_out_windows, list_artifacts
    from composer_memprof.analysis.run_report.attempts import run_attempts
    from composer_memprof.analysis.run_report.files import files_by_name
    from composer_memprof.report.text.sentences.run_failures import attempt_lines
    from composer_memprof.report.text.terminal.run_table import artifacts_table, left_out_sentences

    with on_this_disk([folder], lambda path: []) as (run,), os_errors_in_one_line():
        stored = run.name != str(run.path)
        if not stored:
            _check_is_folder(run.path)
        artifacts = list_artifacts([run.path], recursive=True) or (files_by_name(run.path) if stored else [])
        if as_json:
            typer.echo(run.named(json.dumps([dataclasses.asdict(artifact) for artifact in artifacts], default=str)))
            return
        if artifacts:
            show(artifacts_table(artifacts, 'Files', run.named))
        else:
            typer.echo(f'no manifest under {printable(folder)} lists a file')
        for sentence in left_out_sentences(left_out_windows([run.path])):
            show(Text(sentence))
        for line in attempt_lines(run_attempts([run.path])):
            show(Text(printable(line)))


def _check_is_folder(folder: Path) -> None:
    if not folder.is_dir():
        say(f'RUN_FOLDER {str(folder)!r} is not a directory')
        raise typer.Exit(2)
