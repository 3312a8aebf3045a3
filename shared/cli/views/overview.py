"""The overview that `cluster status` prints."""

from collections.abc import Iterable

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.attention import attention
from shared.cli.views.fitted_table import flow, wrap
from shared.cli.views.models import error_lines, model_rows, model_table
from shared.cli.views.workers import sorted_workers, worker_table
from shared.messages.controller_report import ControllerReport
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport


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
    return lines + _leader_problems(health.controllers, width)


def _title(health: ClusterHealth, width: int) -> list[Text]:
    skills = [
        Text.assemble(
            (f"{formatting.printable(skill)}: ", "dim"), formatting.plain_text(", ".join(models))
        )
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
            Text(f"circuit breaker of {formatting.printable(worker)}: {state}", "red")
            for worker, state in controller.breakers.items()
        ),
        *([Text("needs a restart", "yellow")] if controller.needs_restart else []),
        Text(f"up {formatting.duration(controller.uptime_s)}"),
    ]


def _leader_problems(controllers: Iterable[ControllerReport], width: int) -> list[Text]:
    """Return why no controller leads, a line for each reason; empty if one leads."""
    if any(controller.leader for controller in controllers):
        return []
    reasons = dict.fromkeys(c.leader_problem for c in controllers if c.leader_problem)
    sections = [
        formatting.plain_text(f"no controller leads: {reason}", "yellow") for reason in reasons
    ]
    return [line for text in sections for line in wrap(text, width, hanging=2)]
