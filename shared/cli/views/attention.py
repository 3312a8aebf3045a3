"""Warnings about a worker."""

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.history import rejection_counts
from shared.cli.views.workers import own_bytes
from shared.messages.engine_status import EngineStatus
from shared.messages.worker_report import WorkerReport


def attention(worker: WorkerReport) -> list[Text]:
    """Return the warnings; empty if the worker has no problem."""
    lines = [_settings(worker), _pre_warming(worker), _memory(worker), _queue(worker)]
    lines += [_engine(engine) for engine in worker.engines]
    return [text for text in lines if text.plain]


def _settings(worker: WorkerReport) -> Text:
    """Return why the worker does not run the rolled-out settings."""
    if worker.config_problem is None:
        return Text()
    return formatting.plain_text(f"rolled back from cluster.yaml {worker.config_problem}", "red")


def _pre_warming(worker: WorkerReport) -> Text:
    """For example: warming 1/3 (big), failed 1: small: no config.json."""
    warm = worker.pre_warming
    if warm.completed >= warm.total and not warm.failed:
        return Text()
    names = f" ({', '.join(warm.in_progress)})" if warm.in_progress else ""
    text = formatting.plain_text(f"warming {warm.completed}/{warm.total}{names}", "yellow")
    if warm.failed:
        failed = [model for model in worker.models if model.state == "failed"]
        reasons = "; ".join(f"{model.id}: {model.error}" for model in failed)
        why = f": {reasons}" if reasons else ""
        text.append(", ").append_text(formatting.plain_text(f"failed {warm.failed}{why}", "red"))
    return text


def _memory(worker: WorkerReport) -> Text:
    memory = worker.memory
    if memory.pressure == "none" and not memory.refusals:
        return Text()
    held = formatting.share_of_size(own_bytes(worker), memory.hard_bytes)
    text = Text(f"memory {held}, pressure {memory.pressure}", formatting.style_of(memory.pressure))
    if memory.evictions:
        text.append(f", {formatting.count(memory.evictions, 'model')} evicted", "yellow")
    if memory.refusals:
        text.append(f", {memory.refusals} refused", "yellow")
    return text


def _queue(worker: WorkerReport) -> Text:
    counts = rejection_counts([worker])
    if not counts.rejected and not counts.dropped:
        return Text()
    queued = f"queue {worker.queued_requests}/{worker.max_queue_depth}"
    return Text(
        f"{queued}: {counts.rejected} rejected, {counts.dropped} dropped since start", "yellow"
    )


def _engine(engine: EngineStatus) -> Text:
    name = f"engine {engine.index}"
    restarts = formatting.count(engine.restarts, "restart")
    if engine.state in ("restarting", "failed"):
        after = f" after {restarts}" if engine.restarts else ""
        return Text(f"{name} {engine.state}{after}", formatting.style_of(engine.state))
    return Text(f"{name}: {restarts}", "yellow") if engine.restarts else Text()
