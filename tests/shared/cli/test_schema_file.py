"""Schemas in files."""

import json
from pathlib import Path

import pytest

from shared.cli.run import read_schema
from shared.errors import SettingsError

SCHEMA = {"type": "object", "properties": {"Stadt": {"const": "Köln"}}}


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "city.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_schema_is_read(tmp_path: Path, encoding: str) -> None:
    text = json.dumps(SCHEMA, ensure_ascii=False, indent=2)
    assert read_schema(written(tmp_path, text.encode(encoding))) == SCHEMA
    assert read_schema(written(tmp_path, "{}")) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1, column 1: not valid JSON: Expecting value"),
        ('{\n  "type": "object"\n  "x": 1\n}', "line 3, column 3: not valid JSON: Expecting ','"),
        ('{"a": 1} {"b": 2}', "line 1, column 10: not valid JSON: Extra data"),
        (b'{\n"a": "\xff"}', "line 2: not UTF-8"),
        ('{"minimum": NaN}', "NaN is no JSON"),
        ("[1]", "a schema must be an object, not a list"),
        ('"object"', "a schema must be an object, not a string"),
        ("true", "a schema must be an object, not a boolean"),
        ("null", "a schema must be an object, not null"),
        ("7", "a schema must be an object, not a number"),
        ("[" * 100_000, "nested too deep"),
        ('{"items":' * 70 + "{}" + "}" * 70, "levels at items.items"),
        ('{"const": 1' + "0" * 30 + "}", "a number or a character beyond JSON's"),
        ('{"const": 1' + "0" * 5000 + "}", "digits"),
        (json.dumps({"enum": ["x" * 300_000]}), ": 300013 bytes; at most 262144 are allowed"),
        (" " * 3_000_000, "the file has more than 2097152 bytes"),
    ],
    ids=range(16),
)
def test_what_is_no_schema_is_refused_with_file_and_place(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_schema(file)
    assert caught.value.message.startswith(f"--schema: {file}: ")
    assert says in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.json: No such file or directory"):
        read_schema(tmp_path / "missing.json")
    with pytest.raises(SettingsError, match="Is a directory"):
        read_schema(tmp_path)
    with pytest.raises(SettingsError, match="null"):
        read_schema(tmp_path / "a\0b")
