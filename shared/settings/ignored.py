"""Settings that are set and have no effect any more."""

from collections.abc import Iterator

from pydantic import BaseModel


def ignored_settings(settings: BaseModel, above: str = "") -> Iterator[str]:
    """Yield the dotted keys of ignored settings that differ from their defaults."""
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{above}{name}"
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("ignored") and value != field.default:
            yield key
        if isinstance(value, BaseModel):
            yield from ignored_settings(value, f"{key}.")
