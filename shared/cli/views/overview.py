"""The whole cluster at a glance, as `cluster status` prints it."""

from collections.abc import Iterable

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.attention import attention
from shared.cli.views.fitted_table import flowed, wrapped
from shared.cli.views.models import error_lines, model_rows, model_table
from shared.cli.views.workers import in_order, worker_table
from shared.messages.controller_report import ControllerReport
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport


def overview(health: ClusterHealth, width: int) -> list[Text]:
    """The lines, none longer than `width`: workers, what is wrong with them, models,
    controllers."""
    workers = in_order(health.workers, "name")
    lines = _title(health, width)
    if workers:
        lines += [Text(), *worker_table(workers, width), *_attention(workers, width)]
    else:
        lines += [Text(), *wrapped(Text("No worker has joined.", "yellow"), width)]
    if models := model_rows(workers):
        lines += [Text(), *model_table(models, width)]
        told = {worker.id for worker in workers if worker.pre_warming.failed}
        untold = [row for row in models if row.model.state != "failed" or row.worker not in told]
        lines += error_lines(untold, width)
    lines.append(Text())
    for controller in health.controllers:
        lines += flowed(_controller(controller), width, gap="  ")
    return lines + _nobody_leads(health.controllers, width)


def _title(health: ClusterHealth, width: int) -> list[Text]:
    skills = [
        Text.assemble((f"{figures.printable(skill)}: ", "dim"), figures.words(", ".join(models)))
        for skill, models in health.skills.items()
    ]
    return flowed([Text.assemble("Cluster ", figures.state(health.status)), *skills], width)


def _attention(workers: Iterable[WorkerReport], width: int) -> list[Text]:
    return [
        line
        for worker in workers
        for text in attention(worker)
        for line in wrapped(Text.assemble((f"{worker.id}: ", "bold"), text), width, hanging=2)
    ]


def _controller(controller: ControllerReport) -> list[Text]:
    name = Text.assemble("controller ", (controller.id, "bold"), " ")
    name.append_text(figures.state(controller.state))
    waiting = controller.waiting_requests
    return [
        name.append(", leads", "green") if controller.leader else name,
        Text(f"{controller.active_requests} active"),
        Text(f"{controller.completed_requests} completed"),
        *([Text(f"{rejected} rejected")] if (rejected := controller.rejected_requests) else []),
        Text(f"{controller.failed_requests} failed", "red" if controller.failed_requests else ""),
        *([Text(f"{waiting} wait for room", "yellow")] if waiting else []),
        *(
            Text(f"{figures.printable(worker)} failed often: {state}", "red")
            for worker, state in controller.breakers.items()
        ),
        *([Text("has to be started again", "yellow")] if controller.needs_restart else []),
        Text(f"up {figures.duration(controller.uptime_s)}"),
    ]


def _nobody_leads(controllers: Iterable[ControllerReport], width: int) -> list[Text]:
    """Why, in a line for each reason; none where one leads, or nothing is wrong."""
    if any(controller.leader for controller in controllers):
        return []
    reasons = dict.fromkeys(c.leader_problem for c in controllers if c.leader_problem)
    texts = [figures.words(f"no controller leads: {reason}", "yellow") for reason in reasons]
    return [line for text in texts for line in wrapped(text, width, hanging=2)]
