"""From the options to the parts of a job, and the job from its first look to its last line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_photon.batch import answers
from sglang_photon.batch.answers import Checker
from sglang_photon.batch.convert import Columns, convert
from sglang_photon.batch.folder import Folder
from sglang_photon.batch.job import Bounds as JobBounds
from sglang_photon.batch.journal import make_folder
from sglang_photon.batch.lines import JsonLines, Source
from sglang_photon.batch.media import MediaRoot
from sglang_photon.batch.ordered import Ordered
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.progress import Display, Tally, display
from sglang_photon.batch.running import Running, Service, api_key
from sglang_photon.batch.store import Paths, Store
from sglang_photon.batch.summary import SOME_FAILED, Summary
from sglang_photon.batch.survey import Defaults, InputError, Rules, Survey, survey
from sglang_photon.batch.table import Table

DEFAULT_MODEL = "demo"


def run(options: argparse.Namespace) -> int:
    """Run a job, or what is left of it; returns its exit code.

    Raises:
        PhotonError: the job could not run, or not to its end.
    """
    began = time.monotonic()
    service = _service(options)
    schema = None if options.schema is None else answers.read_schema(options.schema)
    derived = options.keep_order or options.to != "jsonl"
    paths = Paths.of(options.output, errors=options.errors, derived=derived)
    make_folder(paths.output)
    source = _source(options, schema)
    root = _media_root(options)
    if options.overwrite:
        # What is there is not given up for an input that will be refused.
        survey(source, store=None, root=root, rules=Rules())
    shown = display(quiet=options.quiet, as_json=options.json_progress)
    with Store(paths=paths, form=options.form, overwrite=options.overwrite) as store:
        rules = Rules(changed=options.changed, retry_failed=options.retry_failed)
        try:
            found = survey(source, store=store, root=root, rules=rules)
        except InputError:
            store.abandon()
            raise
        _say_what_was_found(shown, found, source)
        store.begin(found.again)
        tally = Tally(total=found.rows, skipped=found.done + found.failed)
        with _ordered(options, paths) as ordered:
            running = Running(
                source=source,
                survey=found,
                store=store,
                service=service,
                root=root,
                pictures=_picture_bounds(options),
                tally=tally,
                shown=shown,
                ordered=ordered,
                checker=Checker(schema) if options.validate else None,
                bounds=JobBounds(ahead_bytes=options.ahead_mb << 20, grace_s=options.grace),
                deadline_s=options.deadline,
                began=began,
            )
            stopped = running.run()
            if options.to != "jsonl":
                columns = Columns.of(schema, checked=options.validate, embeddings=found.embeddings)
                order = None if ordered is None else ordered.spans()
                convert(paths.results, paths.output, to=options.to, columns=columns, order=order)
        summary = Summary.of(
            tally=tally, survey=found, store=store, blank=source.blank, stopped=stopped
        )
        summary.show(options, store)
    return summary.exit_code


def dry_run(options: argparse.Namespace) -> int:
    """Look at every row and send nothing; returns the exit code.

    Raises:
        PhotonError: the job could not run.
    """
    from sglang_photon.batch.dry_run import look, tokenizer_of

    schema = None if options.schema is None else answers.read_schema(options.schema)
    source = _source(options, schema)
    root = _media_root(options)
    survey(source, store=None, root=root, rules=Rules())
    model = options.model_path or (None if options.url else DEFAULT_MODEL)
    tokenizer = None if model is None else tokenizer_of(model)
    found = look(source, root=root, bounds=_picture_bounds(options), tokenizer=tokenizer)
    print(found.report())
    return SOME_FAILED if found.bad else 0


def _service(options: argparse.Namespace) -> Service:
    return Service(
        urls=tuple(options.url or ()),
        arguments=("--model-path", options.model_path or DEFAULT_MODEL, *options.server_flags),
        replicas=options.replicas,
        api_key=api_key(options.api_key_env),
        below=options.priority == "below",
        in_flight=options.in_flight,
        timeout_s=options.timeout,
        wait_s=options.wait_server,
        allow_private=options.allow_private,
    )


def _source(options: argparse.Namespace, schema: dict[str, Any] | None) -> Source:
    source: Source
    if options.command == "run":
        beside = Path.cwd() if options.output is None else options.output.absolute().parent
        source = JsonLines(options.input, beside=beside)
    elif options.command == "images":
        source = Folder(options.folder, prompt=options.prompt, options=_sampling(options))
    else:
        source = Table(
            options.table,
            template=options.prompt_template,
            image_column=options.image_column,
            id_column=options.id_column,
            options=_sampling(options),
        )
    wanted = None if schema is None else answers.response_format(schema)
    return Defaults(source, model=options.model, response_format=wanted)


def _sampling(options: argparse.Namespace) -> dict[str, Any]:
    given = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    return {name: value for name, value in given.items() if value is not None}


def _media_root(options: argparse.Namespace) -> MediaRoot:
    return MediaRoot(options.folder if options.command == "images" else options.media_root)


def _picture_bounds(options: argparse.Namespace) -> Bounds:
    pixels = int(options.max_megapixels * 1e6)
    return Bounds(file_bytes=options.max_picture_mb << 20, pixels=pixels)


@contextmanager
def _ordered(options: argparse.Namespace, paths: Paths) -> Iterator[Ordered | None]:
    if not options.keep_order:
        yield None
        return
    copy = paths.output if options.to == "jsonl" else None
    ordered = Ordered(results=paths.results, output=copy)
    try:
        yield ordered
    finally:
        ordered.close()


def _say_what_was_found(shown: Display, found: Survey, source: Source) -> None:
    shown.say(f"{found.rows} rows, {found.pictures} pictures")
    if found.done or found.failed:
        shown.say(f"Resuming: {found.done} rows have a result, {found.failed} have failed for good")
    if found.changed:
        shown.say(f"{len(found.changed)} rows have changed and are run again")
    if found.dropped:
        shown.say(f"{len(found.dropped)} rows of earlier runs are not in the input any more")
    if source.blank:
        shown.say(f"{source.blank} blank lines")
