"""Settings that were said and are read no more."""

from collections.abc import Iterator

from pydantic import BaseModel


def ignored_settings(settings: BaseModel, above: str = "") -> Iterator[str]:
    """The keys, with dots, of those that somebody set to something else than was the default."""
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{above}{name}"
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("ignored") and value != field.default:
            yield key
        if isinstance(value, BaseModel):
            yield from ignored_settings(value, f"{key}.")
