"""Where the references of a JSON schema lead."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

NOWHERE: Any = object()
"""A reference that leads to no place of its own schema, or to one that only llguidance finds."""


def target(reference: Any, root: Any) -> Any:
    """What a local reference leads to, or `NOWHERE`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return root if reference == "" else NOWHERE
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return NOWHERE
    return NOWHERE if not reference[1:].startswith("/") and reference != "#" else found


def endless(schemas: Iterable[tuple[list[str], Any]], root: Any) -> list[str] | None:
    """The path to the last of some schemas of which no value can be told, as it says nothing but
    that its values are its values; None where there is none.

    llguidance compiles these, and stops where such a value would begin.
    """
    found = [(path, schema) for path, schema in schemas if isinstance(schema, Mapping)]
    known = {id(schema) for _, schema in found}
    for path, schema in found:  # it grows
        if (leads_to := _referred(schema, root)) is not None and id(leads_to) not in known:
            known.add(id(leads_to))
            found.append((path, leads_to))
    waits: dict[int, int] = {}  # by schema, for so many of its slots
    dependents: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, schema in found:
        slots = list(_slots(schema, root))
        waits[id(schema)] = len(slots)
        for number, slot in enumerate(slots):
            for each in slot:
                dependents[id(each)].append((id(schema), number))
    told = [one for one, count in waits.items() if count == 0]
    filled: set[tuple[int, int]] = set()
    while told:
        for slot_of in dependents[told.pop()]:
            if slot_of not in filled:
                filled.add(slot_of)
                waits[slot_of[0]] -= 1
                if waits[slot_of[0]] == 0:
                    told.append(slot_of[0])
    return next((path for path, schema in reversed(found) if waits[id(schema)] > 0), None)


def _referred(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any] | None:
    found = target(schema["$ref"], root) if "$ref" in schema else None
    return found if isinstance(found, Mapping) else None


def _slots(schema: Mapping[str, Any], root: Any) -> Iterator[list[Any]]:
    """The schemas of the very value that a schema is of: of each list one has to be told."""
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
    """The keys and indices on the way to a place, as a reference to it."""
    parts = (part.replace("~", "~0").replace("/", "~1") for part in path)
    return "".join(["#", *(f"/{quote(part, safe='$~')}" for part in parts)])
