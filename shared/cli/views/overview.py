"""The overview that `cluster status` prints."""

from collections.abc import Iterable

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import flow, wrap
from shared.cli.views.history import rejection_counts
from shared.cli.views.models import error_lines, model_rows, model_table
from shared.cli.views.workers import own_bytes, sorted_workers, worker_table
from shared.messages.controller_report import ControllerReport
from shared.messages.engine_status import EngineStatus
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport
from shared.terminal_text import printable


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


def overview(health: ClusterHealth, width: int) -> list[Text]:
    """Return lines of at most `width` columns: workers, their warnings, models, controllers."""
    workers = sorted_workers(health.workers, "name")
    lines = _title(health, width)
    if workers:
        lines += [Text(), *worker_table(workers, width), *_attention(workers, width)]
    else:
        lines += [Text(), *wrap(Text("No worker has joined.", "yellow"), width)]
    if models := model_rows(workers):
        lines += [Text(), *model_table(models, width)]
        warned = {worker.id for worker in workers if worker.pre_warming.failed}
        rows = [row for row in models if row.model.state != "failed" or row.worker not in warned]
        lines += error_lines(rows, width)
    lines.append(Text())
    for controller in health.controllers:
        lines += flow(_controller(controller), width, gap="  ")
    lines += _leader_problems(health.controllers, width)
    return lines + [line for text in _left_out(health) for line in wrap(text, width, hanging=2)]


def _title(health: ClusterHealth, width: int) -> list[Text]:
    skills = [
        Text.assemble((f"{printable(skill)}: ", "dim"), formatting.plain_text(", ".join(models)))
        for skill, models in health.skills.items()
    ]
    return flow([Text.assemble("Cluster ", formatting.state_text(health.status)), *skills], width)


def _attention(workers: Iterable[WorkerReport], width: int) -> list[Text]:
    return [
        line
        for worker in workers
        for text in attention(worker)
        for line in wrap(Text.assemble((f"{worker.id}: ", "bold"), text), width, hanging=2)
    ]


def _controller(controller: ControllerReport) -> list[Text]:
    name = Text.assemble("controller ", (controller.id, "bold"), " ")
    name.append_text(formatting.state_text(controller.state))
    waiting = controller.waiting_requests
    return [
        name.append(", leads", "green") if controller.leader else name,
        Text(f"{controller.active_requests} active"),
        Text(f"{controller.completed_requests} completed"),
        *([Text(f"{rejected} rejected")] if (rejected := controller.rejected_requests) else []),
        Text(f"{controller.failed_requests} failed", "red" if controller.failed_requests else ""),
        *([Text(f"{waiting} waiting for a worker", "yellow")] if waiting else []),
        *(
            Text(f"circuit breaker of {printable(worker)}: {state}", "red")
            for worker, state in controller.breakers.items()
        ),
        *([Text("needs a restart", "yellow")] if controller.needs_restart else []),
        Text(f"up {formatting.duration(controller.uptime_s)}"),
    ]


def _left_out(health: ClusterHealth) -> list[Text]:
    """Return which processes take no part in the cluster, and what helps."""
    lines = []
    for process in health.ignored:
        what = "it" if process.protocol < health.protocol else "the rest of the cluster"
        lines.append(
            f"{process.kind} {printable(process.id)} speaks protocol "
            f"{process.protocol}, this cluster {health.protocol}: upgrade {what}"
        )
    lines += [
        f"worker {printable(worker.id)} accepts no work: it was claimed in term "
        f"{worker.term}, of which no controller knows; restart it"
        for worker in health.unclaimed
    ]
    return [formatting.plain_text(line, "yellow") for line in lines]


def _leader_problems(controllers: Iterable[ControllerReport], width: int) -> list[Text]:
    """Return why no controller leads, a line for each reason; empty if one leads."""
    if any(controller.leader for controller in controllers):
        return []
    reasons = dict.fromkeys(c.leader_problem for c in controllers if c.leader_problem)
    sections = [
        formatting.plain_text(f"no controller leads: {reason}", "yellow") for reason in reasons
    ]
    return [line for text in sections for line in wrap(text, width, hanging=2)]
