"""An engine without a process: what it measured is set by hand, and its orders are kept."""

from shared.ids import ModelId
from shared.settings.worker import EnginesSettings
from worker.engine_process.process import EngineProcess
from worker.link.facts import BatchMeasurements, EngineMeasured, EngineStarted, Fact
from worker.link.orders import Order

_NO_PID = 2**22  # above what Linux and macOS give
_PLENTY_BYTES = 10**15


async def _ignore_fact(_: EngineProcess, __: Fact) -> None:
    pass


async def _ignore_loss(_: EngineProcess, __: str) -> None:
    pass


class RecordingEngine(EngineProcess):
    """It runs, as far as the agent knows."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(
            index,
            EnginesSettings(),
            [],
            1,
            retry_after_failure_s=1,
            on_fact=_ignore_fact,
            on_lost=_ignore_loss,
        )
        self.life = 0
        self.orders: list[Order] = []
        self.state = "running"
        self.started = EngineStarted("", "cpu", "", 1, _PLENTY_BYTES, {})

    @property
    def pid(self) -> int | None:
        """Of no process, and another one in each life."""
        return _NO_PID + 64 * self.life + self.index

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def measures(
        self,
        *,
        active_bytes: int = 0,
        spare_bytes: int = 0,
        kv_bytes: int = 0,
        limits: dict[ModelId, int] | None = None,
        step_ms: float = 0.0,
        prefill_tokens_per_s: float = 0.0,
        line: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """`limits` are those of the batches, by model; they are all as fast. `line`: milliseconds
        of a step, and for each row."""
        batches = [
            BatchMeasurements(
                model, 0, 0, limit, step_ms, 1.0, [], step_ms, prefill_tokens_per_s, *line
            )
            for model, limit in (limits or {}).items()
        ]
        self.measured = EngineMeasured(0, active_bytes, spare_bytes, kv_bytes, 0, 0, 0.0, batches)
