"""Below interactive traffic: the priority that a job's requests ask for.

SGLang serves higher values first, or lower ones with `--schedule-low-priority-values-first`. A
request without a value gets `--default-priority-value`; where that is not set, it comes last of
all, and nothing can be below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DISTANCE = 100
"""More than SGLang's preemption threshold of 10: a chat may take a row's place."""
HOW = "start it with --enable-priority-scheduling --default-priority-value 0"


@dataclass(frozen=True, kw_only=True)
class Priority:
    """What to send, or why nothing is sent.

    Attributes:
        value: the field `priority` of each request; None leaves it out, as a server without
            priorities may refuse requests that have one.
        note: for the person, where the job cannot be put below others.
    """

    value: int | None
    note: str = ""


def below_others(info: Any) -> Priority:
    """The priority for a server with this `/server_info`."""
    if not isinstance(info, dict) or "enable_priority_scheduling" not in info:
        return Priority(value=None, note="the server does not tell whether it has priorities")
    if not info["enable_priority_scheduling"]:
        note = f"the server has no priorities, requests of this job queue like all others; {HOW}"
        return Priority(value=None, note=note)
    default = info.get("default_priority_value")
    if not isinstance(default, int):
        note = f"on this server nothing is below a request without a priority; {HOW}"
        return Priority(value=None, note=note)
    low_first = bool(info.get("schedule_low_priority_values_first"))
    return Priority(value=default + DISTANCE if low_first else default - DISTANCE)
