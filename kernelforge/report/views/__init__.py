"""Views: the data of each report, computed from records."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict

from kernelforge.records.base import Documented


class View(Documented):
    """Base of every view: plain data computed from records, JSON by ``model_dump_json``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @classmethod
    def of(cls, *sources: object, **values: Any) -> Self:
        """A view of ``values``, and of equally named attributes of the sources for all other fields.

        The first source that has the attribute counts. A field without any keeps its default, and is None if it has
        none, as where its source is None.
        """
        for name in cls.model_fields.keys() - values.keys():
            source = next((source for source in sources if hasattr(source, name)), None)
            if source is not None:
                values[name] = getattr(source, name)
            elif cls.model_fields[name].is_required():
                values[name] = None
        return cls(**values)
