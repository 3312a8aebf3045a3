"""Types that the messages share."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
