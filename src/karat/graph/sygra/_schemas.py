"""The answer schema that SyGra brings along, for `structured_output.schema` and for imports."""

from __future__ import annotations

from pydantic import BaseModel, Field


class SimpleResponse(BaseModel):
    """A text, and whether it worked."""

    message: str = Field(description="the answer")
    success: bool = Field(default=True, description="whether it could be given")
