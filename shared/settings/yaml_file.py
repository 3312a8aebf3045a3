"""Strict parsing of YAML: rejects duplicate keys, and records the line of each key for errors."""

from pathlib import Path
from typing import Any

import yaml

from shared.errors import SettingsError

Location = tuple[str | int, ...]

_MAX_BYTES = 1024 * 1024
_MAX_VALUES = 50_000
"""With aliases, a few lines can have billions of values."""


class YamlFile:
    """A parsed file.

    Attributes:
        path: its name in errors.
        text: its content.
        values: the mapping at the top; empty for an empty file.
        lines: the line (from 1) of each key and each item of a list, by its path.
    """

    def __init__(self, path: Path | str, text: str | None = None) -> None:
        """Read a file, or the `text` of a file on another machine.

        Raises:
            SettingsError: the file is missing, unreadable, or not strict YAML.
        """
        self.path = path
        self.lines: dict[Location, int] = {}
        self._remaining = _MAX_VALUES
        self.text = _read(Path(path)) if text is None else text
        node = self._compose(self.text)
        self.values: dict[str, Any] = {}
        if node is not None:
            try:
                value = self._construct(node, ())
            except RecursionError:  # an alias inside its own value
                raise SettingsError(f"{path}: nested without an end") from None
            if not isinstance(value, dict):
                raise SettingsError(f"{path}: expected a mapping of settings at the top level")
            self.values = value

    def _compose(self, text: str) -> yaml.Node | None:
        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise self._invalid(error) from None
        except RecursionError:
            raise SettingsError(f"{self.path}: nested too deeply") from None

    def _construct(self, node: yaml.Node, location: Location) -> Any:
        self._remaining -= 1
        if self._remaining < 0:
            raise SettingsError(f"{self.path}: more than {_MAX_VALUES} values, aliases followed")
        if isinstance(node, yaml.MappingNode):
            return {
                key: self._construct(value, (*location, key))
                for key, value in self._keys(node, location)
            }
        if isinstance(node, yaml.SequenceNode):
            items = list(enumerate(node.value))
            self.lines.update({(*location, i): item.start_mark.line + 1 for i, item in items})
            return [self._construct(item, (*location, i)) for i, item in items]
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self._invalid(error, node.start_mark.line + 1) from None
        finally:
            loader.dispose()

    def _invalid(self, error: Exception, line: int | None = None) -> SettingsError:
        """Return an error with line and problem, without the text of the line: it may be a
        secret."""
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark
            line = mark.line + 1 if mark else line
            what = error.problem or error.context or "syntax error"
        else:
            what = "a value that its type does not allow"
        where = f", line {line}" if line is not None else ""
        return SettingsError(f"{self.path}{where}: no valid YAML: {what}")

    def _keys(self, node: yaml.MappingNode, location: Location) -> list[tuple[str, yaml.Node]]:
        pairs: list[tuple[str, yaml.Node]] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SettingsError(f"{self.path}, line {line}: a key must be plain text")
            key = str(key_node.value)
            if (first := self.lines.get((*location, key))) is not None:
                where = ".".join(map(str, (*location, key)))
                raise SettingsError(
                    f"{self.path}, line {line}: {where} is given twice (first in line {first})",
                    param=where,
                )
            self.lines[(*location, key)] = line
            pairs.append((key, value_node))
        return pairs


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise SettingsError(f"{path}: over {_MAX_BYTES} bytes; is it the right file?")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
