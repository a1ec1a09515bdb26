"""Views: the data of each report, computed from records."""

from __future__ import annotations

from pydantic import ConfigDict

from kernelforge.records.base import Documented


class View(Documented):
    """Base of every view: plain data computed from records, JSON by ``model_dump_json``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
