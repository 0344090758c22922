"""How a job ended: in a few lines for people, as an object for programs, and as an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sglang_photon.batch.job import Stop
from sglang_photon.batch.progress import Tally
from sglang_photon.batch.rows import Usage
from sglang_photon.batch.store import Store
from sglang_photon.batch.survey import Survey

SOME_FAILED = 3
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run has done, and how the job stands.

    Attributes:
        rows: of the input.
        results: of them, with a result now.
        new: of these, by this run.
        failed: without one, for good unless `--retry-failed` is given.
        unserved: without one, tried again by the same command.
        invalid: results that `--validate` has found wanting, in this run and before.
        dropped: rows on disk that the input does not have any more.
        blank: lines of the input without anything.
        retries: attempts beyond the first.
        codes: error rows of this run by code.
        run_usage, usage: tokens of this run, and of all results.
        elapsed_s: of this run, without the server's start and stop.
        stopped: why it ended early.
    """

    rows: int
    results: int
    new: int
    failed: int
    unserved: int
    invalid: int
    dropped: int
    blank: int
    retries: int
    codes: Mapping[str, int]
    run_usage: Usage
    usage: Usage
    elapsed_s: float
    stopped: Stop | None

    @classmethod
    def of(
        cls, *, tally: Tally, survey: Survey, store: Store, blank: int, stopped: Stop | None
    ) -> Summary:
        """From all that was counted."""
        return cls(
            rows=survey.rows,
            results=survey.done + tally.done,
            new=tally.done,
            failed=survey.failed + tally.failed,
            unserved=tally.unserved,
            invalid=store.invalid,
            dropped=len(survey.dropped),
            blank=blank,
            retries=tally.retries,
            codes=dict(tally.codes),
            run_usage=tally.usage,
            usage=store.usage,
            elapsed_s=tally.elapsed_s,
            stopped=stopped,
        )

    @property
    def exit_code(self) -> int:
        """0, 3 or 130."""
        if self.stopped is Stop.CANCELLED:
            return INTERRUPTED
        return SOME_FAILED if self.failed or self.unserved or self.invalid else 0

    def report(self) -> dict[str, Any]:
        """As an object."""
        return {
            "event": "summary",
            "rows": self.rows,
            "results": self.results,
            "new": self.new,
            "failed": self.failed,
            "unserved": self.unserved,
            "invalid": self.invalid,
            "dropped": self.dropped,
            "blank_lines": self.blank,
            "retries": self.retries,
            "errors": dict(self.codes),
            "prompt_tokens": self.run_usage.prompt,
            "completion_tokens": self.run_usage.completion,
            "all_prompt_tokens": self.usage.prompt,
            "all_completion_tokens": self.usage.completion,
            "elapsed_s": round(self.elapsed_s, 3),
            "rows_per_s": round(self.new / self.elapsed_s, 3) if self.elapsed_s > 0 else None,
            "stopped": None if self.stopped is None else self.stopped.value,
            "exit_code": self.exit_code,
        }

    def words(self, store: Store, output: object) -> str:
        """For a person."""
        rate = f" ({self.new / self.elapsed_s:.1f} rows/s)" if self.new else ""
        lines = [
            f"{self.results} of {self.rows} rows have a result: {output}",
            f"this run: {self.new} results in {self.elapsed_s:.1f} s{rate}",
            f"tokens of this run: {self.run_usage.prompt} in, {self.run_usage.completion} out",
        ]
        if self.failed or self.unserved:
            kinds = ", ".join(f"{code} {count}" for code, count in sorted(self.codes.items()))
            what = f" (this run: {kinds})" if kinds else ""
            count = self.failed + self.unserved
            lines.append(f"without a result: {count}{what}: {store.paths.errors}")
        if self.failed:
            lines.append(f"{self.failed} of them failed for good; --retry-failed tries them again")
        if self.invalid:
            lines.append(f"results that are not what the schema asks for: {self.invalid}")
        if self.dropped:
            lines.append(
                f"rows of earlier runs that the input does not have any more: {self.dropped} "
                "(left as they are)"
            )
        if self.unserved or self.stopped is not None:
            lines.append("The same command goes on where this one ended.")
        return "\n".join(lines)

    def show(self, options: argparse.Namespace, store: Store) -> None:
        """On stdout, in the form that was asked for."""
        if options.json_progress:
            print(orjson.dumps(self.report()).decode(), flush=True)
        elif not options.quiet:
            print(self.words(store, options.output), flush=True)
