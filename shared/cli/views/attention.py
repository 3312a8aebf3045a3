"""What somebody should know about a worker that is not as it should be."""

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.history import rejection_counts
from shared.cli.views.workers import own_bytes
from shared.messages.engine_status import EngineStatus
from shared.messages.worker_report import WorkerReport


def attention(worker: WorkerReport) -> list[Text]:
    """A text for each thing; none where all is well."""
    texts = [_settings(worker), _pre_warming(worker), _memory(worker), _queue(worker)]
    texts += [_engine(engine) for engine in worker.engines]
    return [text for text in texts if text.plain]


def _settings(worker: WorkerReport) -> Text:
    """Why it does not run what was rolled out to it."""
    if worker.config_problem is None:
        return Text()
    return figures.words(f"left cluster.yaml {worker.config_problem}", "red")


def _pre_warming(worker: WorkerReport) -> Text:
    """Warming 1/3 (big), failed 1: the model and why."""
    warm = worker.pre_warming
    if warm.completed >= warm.total and not warm.failed:
        return Text()
    names = f" ({', '.join(warm.in_progress)})" if warm.in_progress else ""
    text = figures.words(f"warming {warm.completed}/{warm.total}{names}", "yellow")
    if warm.failed:
        failed = [model for model in worker.models if model.state == "failed"]
        reasons = "; ".join(f"{model.id}: {model.error}" for model in failed)
        why = f": {reasons}" if reasons else ""
        text.append(", ").append_text(figures.words(f"failed {warm.failed}{why}", "red"))
    return text


def _memory(worker: WorkerReport) -> Text:
    memory = worker.memory
    if memory.pressure == "none" and not memory.refusals:
        return Text()
    held = figures.share_of_size(own_bytes(worker), memory.hard_bytes)
    text = Text(f"memory {held}, pressure {memory.pressure}", figures.style_of(memory.pressure))
    if memory.evictions:
        text.append(f", {figures.count(memory.evictions, 'model')} evicted", "yellow")
    if memory.refusals:
        text.append(f", {memory.refusals} refused", "yellow")
    return text


def _queue(worker: WorkerReport) -> Text:
    counts = rejection_counts([worker])
    if not counts.rejected and not counts.dropped:
        return Text()
    queued = f"queue {worker.queued_requests}/{worker.max_queue_depth}"
    return Text(f"{queued}: {counts.rejected} rejected, {counts.dropped} dropped so far", "yellow")


def _engine(engine: EngineStatus) -> Text:
    name = f"engine {engine.index}"
    restarts = figures.count(engine.restarts, "restart")
    if engine.state in ("restarting", "failed"):
        after = f" after {restarts}" if engine.restarts else ""
        return Text(f"{name} {engine.state}{after}", figures.style_of(engine.state))
    return Text(f"{name}: {restarts}", "yellow") if engine.restarts else Text()
