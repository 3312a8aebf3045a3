"""The skills and models of the cluster, as the controllers report them."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.gateway.health_poller import HealthPoller
from shared.errors import ClusterError, RequestError, Unavailable
from shared.ids import ModelId, SkillName
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ABILITIES, Batching, ModelStatus

_STALE_S = 10.0
_SERVING_STATES = ("starting", "warming", "ready")
_DEFAULT_SKILL = SkillName("chat")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A valid value of a request's `model`: a model, a skill or an alias.

    For a skill, all but `skills` and `created` describe the skill's first model.

    Attributes:
        skills: the skills that the model serves.
        created: when this gateway first saw the name, in seconds since 1970.
        context_tokens: the largest context length on any worker; None while no worker knows it.
        abilities: those of `events.ABILITIES` that the model has on any worker.
        warnings: what workers assumed or left out when they loaded the model.
        batching: `alone` if it is so on any worker; None while no worker knows it.
        batching_reason: why `batching` is `alone`.
    """

    name: str
    skills: list[SkillName]
    created: int
    context_tokens: int | None
    abilities: list[str]
    warnings: list[str]
    batching: Batching | None
    batching_reason: str | None


class ModelResolver:
    """Resolves names of models with the cluster's health.

    Args:
        aliases: names that programs send → a model or a skill.
    """

    def __init__(self, poller: HealthPoller, aliases: Mapping[ModelId, str]) -> None:
        self._poller = poller
        self._aliases = aliases
        self._created: dict[str, int] = {}

    @property
    def unavailability(self) -> ClusterError | None:
        """Return why no request can be served now; None if requests can be served."""
        health = self._poller.health
        if health is None or time.monotonic() - self._poller.refreshed_at > _STALE_S:
            return Unavailable("no controller answers", code="no_controller")
        if not self._served(health):
            return Unavailable("no worker is ready or starting", code="no_worker")
        return None

    async def list_models(self, allowed: Collection[str] | None = None) -> dict[str, ListedModel]:
        """Return all valid values of `model`, by name: models that a worker has, skills, aliases.

        Args:
            allowed: the names that the caller may see; None: all.

        Raises:
            Unavailable: no controller answers.
        """
        health = await self._poller.current()
        served = self._served(health)
        statuses: defaultdict[ModelId, list[ModelStatus]] = defaultdict(list)
        for status in _statuses(health):
            statuses[status.id].append(status)
        skills: dict[str, list[SkillName]] = {}
        models: dict[str, ModelId] = {}
        for skill, skill_models in served.items():
            for model in skill_models:
                skills.setdefault(model, []).append(skill)
                models[model] = model
        for skill, skill_models in served.items():
            skills.setdefault(skill, [skill])
            models.setdefault(skill, skill_models[0])
        for alias, target in self._aliases.items():
            if alias not in skills and target in skills:
                skills[alias], models[alias] = skills[target], models[target]
        return {
            name: self._listed_model(name, model_skills, statuses[models[name]])
            for name, model_skills in skills.items()
            if allowed is None or {name, self.resolve_alias(name)} & set(allowed)
        }

    def _listed_model(
        self, name: str, skills: list[SkillName], statuses: Sequence[ModelStatus]
    ) -> ListedModel:
        contexts = [
            status.max_context_tokens
            for status in statuses
            if status.max_context_tokens is not None
        ]
        with_verdict = (status for status in statuses if status.batching is not None)
        verdict = min(with_verdict, key=lambda status: status.batching != "alone", default=None)
        abilities = {ability for status in statuses for ability in status.abilities or ()}
        return ListedModel(
            name,
            skills,
            self._created.setdefault(name, int(time.time())),
            max(contexts, default=None),
            [ability for ability in ABILITIES if ability in abilities],
            list(dict.fromkeys(warning for status in statuses for warning in status.warnings)),
            verdict.batching if verdict else None,
            verdict.batching_reason if verdict else None,
        )

    def resolve_alias(self, name: str) -> str:
        """Return what an alias stands for; other names as they are."""
        return self._aliases.get(ModelId(name), name)

    async def default_model(self, skill: SkillName = _DEFAULT_SKILL) -> str:
        """Return the value of `model` for requests without one: this skill, else any.

        Raises:
            Unavailable: no controller answers.
        """
        skills = await self._skills()
        return skill if skill in skills else next(iter(skills), "")

    async def resolve(
        self, name: str, allowed: Collection[str] | None = None
    ) -> tuple[SkillName, ModelId | None]:
        """Return the skill of the request, and the model unless the name is a skill.

        Args:
            allowed: the names that the caller may see; None: all.

        Raises:
            RequestError: no model, skill or alias has this name.
            Unavailable: no controller answers.
        """
        skills = await self._skills()
        target = self.resolve_alias(name)
        candidates = [skill for skill, models in skills.items() if target in models]
        if candidates:
            skill = _DEFAULT_SKILL if _DEFAULT_SKILL in candidates else candidates[0]
            return skill, ModelId(target)
        if target in skills:
            return SkillName(target), None
        available = ", ".join(sorted(await self.list_models(allowed) or allowed or ["none now"]))
        raise RequestError(
            f"model: there is no {name!r}; there are: {available}",
            code="unknown_model",
            param="model",
        )

    def _served(self, health: ClusterHealth) -> dict[SkillName, list[ModelId]]:
        """Return the models of each skill that a serving or starting worker has, without skills
        that have no such model."""
        available = {status.id for status in _statuses(health)}
        served = {
            skill: [model for model in models if model in available]
            for skill, models in health.skills.items()
        }
        return {skill: models for skill, models in served.items() if models}

    async def _skills(self) -> Mapping[SkillName, list[ModelId]]:
        return (await self._poller.current()).skills


def _statuses(health: ClusterHealth) -> Iterable[ModelStatus]:
    """Return the models of all serving or starting workers, except failed ones."""
    return (
        status
        for worker in health.workers
        if worker.state in _SERVING_STATES
        for status in worker.models
        if status.state != "failed"
    )
