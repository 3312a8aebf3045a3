"""Resolution of references within a JSON schema."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

UNRESOLVED: Any = object()
"""Stands for the target of a reference that this module cannot resolve."""


def target(reference: Any, root: Any) -> Any:
    """Return the target of a local reference, or `UNRESOLVED`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return root if reference == "" else UNRESOLVED
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return UNRESOLVED
    return UNRESOLVED if not reference[1:].startswith("/") and reference != "#" else found


def find_circular(schemas: Iterable[tuple[list[str], Any]], root: Any) -> list[str] | None:
    """Return the path of the last of some schemas that consist of circular references only, and so
    describe no value; None if there is none.

    llguidance compiles such a schema, and stops where its value would begin.
    """
    found = [(path, schema) for path, schema in schemas if isinstance(schema, Mapping)]
    known = {id(schema) for _, schema in found}
    for path, schema in found:  # grows during the loop
        if (leads_to := _referred(schema, root)) is not None and id(leads_to) not in known:
            known.add(id(leads_to))
            found.append((path, leads_to))
    unmet: dict[int, int] = {}  # number of unmet dependencies, by id of the schema
    dependents: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, schema in found:
        dependencies = list(_dependencies(schema, root))
        unmet[id(schema)] = len(dependencies)
        for number, alternatives in enumerate(dependencies):
            for each in alternatives:
                dependents[id(each)].append((id(schema), number))
    resolved = [schema_id for schema_id, count in unmet.items() if count == 0]
    met: set[tuple[int, int]] = set()
    while resolved:
        for dependency in dependents[resolved.pop()]:
            if dependency not in met:
                met.add(dependency)
                unmet[dependency[0]] -= 1
                if unmet[dependency[0]] == 0:
                    resolved.append(dependency[0])
    return next((path for path, schema in reversed(found) if unmet[id(schema)] > 0), None)


def _referred(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any] | None:
    found = target(schema["$ref"], root) if "$ref" in schema else None
    return found if isinstance(found, Mapping) else None


def _dependencies(schema: Mapping[str, Any], root: Any) -> Iterator[list[Any]]:
    """Yield lists of schemas for the same value; one schema of each list must describe a value."""
    if (found := _referred(schema, root)) is not None:
        yield [found]
    for key in ("allOf", "anyOf", "oneOf"):
        members = schema.get(key)
        if not isinstance(members, list) or not members:
            continue
        if key == "allOf":
            yield from ([each] for each in members if isinstance(each, Mapping))
        elif all(isinstance(each, Mapping) for each in members):
            yield members


def pointer(path: list[str]) -> str:
    """Return a path of keys and indices as a reference."""
    parts = (part.replace("~", "~0").replace("/", "~1") for part in path)
    return "".join(["#", *(f"/{quote(part, safe='$~')}" for part in parts)])
