"""Values other than null by which clients leave a field unset."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class NoneAlias:
    """Annotation of an optional field: `value` is read as None."""

    value: int | str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._replaced, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": self.value}]}

    def _replaced(self, value: Any) -> Any:
        is_sentinel = type(value) is type(self.value) and value == self.value
        return None if is_sentinel else value
