"""Wrong values for every place in a message, found by its JSON Schema: none can be forgotten."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Path = tuple[str | int, ...]
Schema = dict[str, Any]

_ANY_KEY = "5"
_OF_KIND: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 7,
    "number": 0.5,
    "string": "wrong",
    "array": [1],
    "object": {"wrong": 1},
}
_NUMBERS: dict[str, Any] = {
    "negative": -(10**9),
    "huge": 10**20,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere in a message.

    Attributes:
        kinds: the JSON types that may stand there.
        words: only certain strings may.
    """

    path: Path
    kinds: frozenset[str]
    words: bool

    def wrong_values(self) -> dict[str, Any]:
        """Values that must not stand here, by a name for what they are."""
        wrong = {kind: value for kind, value in _OF_KIND.items() if kind not in self.kinds}
        if "number" in self.kinds:
            wrong.pop("integer", None)
        if self.words:
            wrong["another word"] = "nonesuch"
        if self.kinds & {"integer", "number"}:
            wrong.update(_NUMBERS)
        return wrong


class Shape:
    """What a message may look like, as its JSON Schema says."""

    def __init__(self, kind: type[BaseModel]) -> None:
        self._whole: Schema = kind.model_json_schema()
        self._definitions: dict[str, Schema] = self._whole.get("$defs", {})

    def places(self) -> list[Place]:
        """Every place a value may stand, its fields' fields and items included; but not where any
        value may."""
        found: dict[Path, list[Schema]] = {}
        for path, branch in self._walk(self._whole, ()):
            found.setdefault(path, []).append(branch)
        return [
            Place(
                path,
                frozenset(branch["type"] for branch in branches),
                all("enum" in branch or "const" in branch for branch in branches),
            )
            for path, branches in found.items()
            if path and all("type" in branch for branch in branches)
        ]

    def with_value(self, path: Path, value: Any) -> Any:
        """The smallest message that has `value` at `path` and is right elsewhere."""
        return self._put(self._whole, path, value)

    def _walk(self, schema: Schema, path: Path) -> Iterator[tuple[Path, Schema]]:
        for branch in self._branches(schema):
            yield path, branch
            for part, inner in _inner(branch).items():
                yield from self._walk(inner, (*path, part))

    def _branches(self, schema: Schema) -> list[Schema]:
        if "$ref" in schema:
            return self._branches(self._definitions[schema["$ref"].rsplit("/", 1)[1]])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return [branch for one in schema[union] for branch in self._branches(one)]
        return [schema]

    def _put(self, schema: Schema, path: Path, value: Any) -> Any:
        if not path:
            return value
        for branch in self._branches(schema):
            inner = _inner(branch).get(path[0])
            if inner is None or not self._has(inner, path[1:]):
                continue
            placed = self._put(inner, path[1:], value)
            return [placed] if path[0] == 0 else {**self._required(branch), path[0]: placed}
        raise KeyError(path)

    def _has(self, schema: Schema, path: Path) -> bool:
        return any(found == path for found, _ in self._walk(schema, ()))

    def _required(self, branch: Schema) -> dict[str, Any]:
        return {
            name: self._example(branch["properties"][name]) for name in branch.get("required", [])
        }

    def _example(self, schema: Schema) -> Any:
        branch = self._branches(schema)[0]
        match branch.get("type", "object"):
            case "string":
                return branch.get("const") or branch.get("enum", ["x"])[0]
            case "array":
                return []
            case kind:
                return _OF_KIND[kind]


def _inner(branch: Schema) -> dict[str | int, Schema]:
    """What stands one step below: fields, any key of a mapping, any item of a list."""
    inner: dict[str | int, Schema] = dict(branch.get("properties", {}))
    for schema in branch.get("patternProperties", {}).values():
        inner[_ANY_KEY] = schema
    if isinstance(branch.get("additionalProperties"), dict):
        inner[_ANY_KEY] = branch["additionalProperties"]
    if "items" in branch:
        inner[0] = branch["items"]
    return inner
