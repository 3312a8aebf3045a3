"""Which models serve a skill."""

from collections.abc import Mapping

from shared.errors import RequestError
from shared.ids import ModelId, SkillName
from shared.messages.dispatch import Dispatch

Skills = Mapping[SkillName, list[ModelId]]


def models_of(skill: SkillName, named: str | None, skills: Skills) -> list[ModelId]:
    """Return the models that can serve a request, in the order of preference.

    Raises:
        RequestError: there is no such skill, or it does not have the model.
    """
    if skill not in skills:
        known = ", ".join(sorted(skills))
        raise RequestError(f"no skill {skill!r}; there are: {known}", code="unknown_skill")
    models = skills[skill]
    if named is None:
        return models
    if named not in models:
        raise RequestError(
            f"model: the skill {skill!r} has no model {named!r}; it has: {', '.join(models)}",
            code="unknown_model",
            param="model",
        )
    return [ModelId(named)]


def models_for_dispatch(dispatch: Dispatch, skills: Skills) -> list[ModelId]:
    """Return the models that can serve a request which another leader accepted; the model of the
    dispatch if the skill was removed since."""
    try:
        return list(models_of(dispatch.skill, dispatch.request.model, skills))
    except RequestError:
        return [dispatch.model]
