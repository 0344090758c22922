"""What SGLang counts around a step: for its watchdog, its profiler, its metrics and its log."""

from __future__ import annotations

import time
from typing import Any


class _NoEvent:
    """Stands where SGLang records its event: the lane has its own, reused ones."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


NO_EVENT = _NoEvent()


def count_launch(scheduler: Any, batch: Any) -> tuple[int, float, bool]:
    """What SGLang's `run_batch` keeps count of before the forward.

    Returns:
        Number and time of the launch, and whether the scheduler was idle before it; also noted on
        the batch.
    """
    scheduler.metrics_reporter.record_scheduler_active(time.monotonic_ns())
    scheduler.forward_ct += 1
    batch.forward_iter = scheduler.forward_ct
    batch.launch_ts = time.monotonic()
    batch.after_idle_gap = scheduler._sched_idled
    scheduler._sched_idled = False
    if batch.extend_num_tokens:
        scheduler.processed_tokens_counter += batch.extend_num_tokens
    scheduler.profiler_manager._profile_batch_predicate(batch)
    if scheduler.forward_sleep_time is not None:
        time.sleep(scheduler.forward_sleep_time)
    return batch.forward_iter, batch.launch_ts, batch.after_idle_gap


def leave_out(zombies: int, result: Any) -> None:
    """Have a result count the tokens that clients see."""
    if zombies:
        count = result.get_num_generated_tokens
        result.get_num_generated_tokens = lambda rows: count(rows) - zombies


def count_step(
    scheduler: Any, batch: Any, result: Any, *, launch: tuple[int, float, bool], tokens: int
) -> None:
    """What SGLang's `process_batch_result` counts of a decode step beside its requests.

    Args:
        scheduler: whose step it was.
        batch: who decoded.
        result: what came of it.
        launch: of the step, from `count_launch`: the batch may have been launched again since.
        tokens: that clients see.
    """
    batch.forward_iter, batch.launch_ts, batch.after_idle_gap = launch
    snapshot = scheduler.publish_load_snapshot()
    scheduler.load_publisher.publish_load_stat(
        scheduler.load_inquirer.get_loads, force=False, snapshot=snapshot
    )
    reporter = scheduler.metrics_reporter
    reporter.num_generated_tokens += tokens
    if scheduler.metrics_reporter.enable_metrics:
        scheduler.batch_result_processor.metrics_collector.increment_decode_cuda_graph_pass(
            value=result.can_run_cuda_graph
        )
    reporter.forward_ct_decode = (reporter.forward_ct_decode + 1) % (1 << 30)
    reporter.report_decode_stats(
        result.can_run_cuda_graph, running_batch=batch, num_generated_tokens=tokens
    )
    scheduler.tree_cache.flush_pending_backups()
    scheduler._record_step_counters(batch, result)
    reporter.log_batch_result_stats(batch, result)
    scheduler.maybe_send_health_check_signal()
    reporter.update_device_timer()
