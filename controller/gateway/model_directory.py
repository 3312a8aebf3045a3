"""Which skills and models the cluster has, as its controllers say."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.client import Cluster
from shared.errors import ClusterError, RequestError, Unavailable
from shared.ids import ModelId, SkillName
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ABILITIES, Batching, ModelStatus

logger = logging.getLogger(__name__)

_REFRESH_S = 2.0
_STALE_S = 10.0
_SERVING = ("starting", "warming", "ready")
_DEFAULT_SKILL = SkillName("chat")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """What may stand as `model`.

    Attributes:
        skills: that it serves.
        created: since when it is known here, in seconds since 1970.
        context_tokens: of its model, or the first of its skill; None while no worker knows.
        abilities: of the same, on any worker; of `events.ABILITIES`.
        warnings: likewise; what was assumed or left out when it was loaded.
        batching: of the same: `alone` where that is so on any worker, and why; None while no worker
            knows.
    """

    name: str
    skills: list[SkillName]
    created: int
    context_tokens: int | None
    abilities: list[str]
    warnings: list[str]
    batching: Batching | None
    batching_reason: str | None


class ModelDirectory:
    """Knows what was said last.

    Args:
        aliases: names that programs insist on → a model or a skill.
    """

    def __init__(self, cluster: Cluster, aliases: Mapping[ModelId, str]) -> None:
        self._cluster = cluster
        self._aliases = aliases
        self._health: ClusterHealth | None = None
        self._heard_at = 0.0
        self._created: dict[str, int] = {}

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await self._refresh()
            await asyncio.sleep(_REFRESH_S)

    @property
    def unavailability(self) -> ClusterError | None:
        """Why no request can be served now, if so."""
        if self._health is None or time.monotonic() - self._heard_at > _STALE_S:
            return Unavailable("no controller answers", code="no_controller")
        if not self._served(self._health):
            return Unavailable("no worker is ready, or starts", code="no_worker")
        return None

    async def listed(self, allowed: Collection[str] | None = None) -> dict[str, ListedModel]:
        """All that may stand as `model`, by name: models that a worker has, skills and aliases.

        Args:
            allowed: the names of which the caller may know; None for all.

        Raises:
            Unavailable: no controller answers.
        """
        health = await self._known()
        served = self._served(health)
        statuses: defaultdict[ModelId, list[ModelStatus]] = defaultdict(list)
        for status in _statuses(health):
            statuses[status.id].append(status)
        skills: dict[str, list[SkillName]] = {}
        models: dict[str, ModelId] = {}
        for skill, having in served.items():
            for model in having:
                skills.setdefault(model, []).append(skill)
                models[model] = model
        for skill, having in served.items():
            skills.setdefault(skill, [skill])
            models.setdefault(skill, having[0])
        for alias, meant in self._aliases.items():
            if alias not in skills and meant in skills:
                skills[alias], models[alias] = skills[meant], models[meant]
        return {
            name: self._listed(name, serves, statuses[models[name]])
            for name, serves in skills.items()
            if allowed is None or {name, self.meaning(name)} & set(allowed)
        }

    def _listed(
        self, name: str, skills: list[SkillName], known: Sequence[ModelStatus]
    ) -> ListedModel:
        contexts = [one.max_context_tokens for one in known if one.max_context_tokens is not None]
        told = (one for one in known if one.batching is not None)
        judged = min(told, key=lambda one: one.batching != "alone", default=None)
        can = {ability for one in known for ability in one.abilities or ()}
        return ListedModel(
            name,
            skills,
            self._created.setdefault(name, int(time.time())),
            max(contexts, default=None),
            [ability for ability in ABILITIES if ability in can],
            list(dict.fromkeys(warning for one in known for warning in one.warnings)),
            judged.batching if judged else None,
            judged.batching_reason if judged else None,
        )

    def meaning(self, name: str) -> str:
        """What an alias stands for; of other names themselves."""
        return self._aliases.get(ModelId(name), name)

    async def preferred(self) -> str:
        """What stands for a model where a caller names none.

        Raises:
            Unavailable: no controller answers.
        """
        skills = await self._skills()
        return _DEFAULT_SKILL if _DEFAULT_SKILL in skills else next(iter(skills), "")

    async def resolve(
        self, name: str, allowed: Collection[str] | None = None
    ) -> tuple[SkillName, ModelId | None]:
        """The skill to ask, and the model where the name is not the skill's own.

        Args:
            allowed: the names of which the caller may know; None for all.

        Raises:
            RequestError: there is nothing of that name.
            Unavailable: no controller answers.
        """
        skills = await self._skills()
        meant = self.meaning(name)
        having = [skill for skill, models in skills.items() if meant in models]
        if having:
            return (_DEFAULT_SKILL if _DEFAULT_SKILL in having else having[0]), ModelId(meant)
        if meant in skills:
            return SkillName(meant), None
        known = ", ".join(sorted(await self.listed(allowed) or allowed or ["none now"]))
        raise RequestError(
            f"model: there is no {name!r}; there are: {known}", code="unknown_model", param="model"
        )

    def _served(self, health: ClusterHealth) -> dict[SkillName, list[ModelId]]:
        """The models of each skill that a worker has, which takes requests or starts; without
        skills of which none has any."""
        there = {status.id for status in _statuses(health)}
        found = {
            skill: [model for model in models if model in there]
            for skill, models in health.skills.items()
        }
        return {skill: models for skill, models in found.items() if models}

    async def _skills(self) -> Mapping[SkillName, list[ModelId]]:
        return (await self._known()).skills

    async def _known(self) -> ClusterHealth:
        if self._health is None:
            await self._refresh()
        if self._health is None:
            raise Unavailable(
                "no controller answers; is `controller` running?", code="no_controller"
            )
        return self._health

    async def _refresh(self) -> None:
        try:
            self._health = await self._cluster.health()
            self._heard_at = time.monotonic()
        except ClusterError as error:
            logger.debug("the cluster's health is not known: %s", error.message)


def _statuses(health: ClusterHealth) -> Iterable[ModelStatus]:
    """Of all models that did not fail, on each worker that takes requests or starts."""
    return (
        status
        for worker in health.workers
        if worker.state in _SERVING
        for status in worker.models
        if status.state != "failed"
    )
