"""Records of operators, which come from a process that runs code of others."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kernelforge.prediction import Operator, OperatorTrace

PLAIN: dict[str, Any] = {"name": "relu", "kind": "pointwise", "dtype": "float32", "write_bytes": 4, "flops": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a b"},
        {"name": "x" * 81},
        {"kind": "magic"},
        {"write_bytes": -1},
        {"flops": 2**62},
        {"geometry": {"secret": 1}},
        {"geometry": {"elements": -1}},
        {"calls": 0},
        {"reads": [{"bytes": 1, "producer": None}] * 257},
    ],
)
def test_an_operator_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    Operator.model_validate(PLAIN)
    with pytest.raises(ValidationError):
        Operator.model_validate({**PLAIN, **change})


def test_an_operator_reads_only_what_was_written_before() -> None:
    reader = {**PLAIN, "reads": [{"bytes": 4, "producer": 0}]}
    OperatorTrace.model_validate({"size": "full", "operators": [PLAIN, reader]})
    with pytest.raises(ValidationError, match="later one"):
        OperatorTrace.model_validate({"size": "full", "operators": [reader, PLAIN]})
