"""Module constants are read and replaced in the text."""

from __future__ import annotations

import ast

import pytest

from kernelforge.errors import TaskError
from kernelforge.tasks import evaluate_expression, module_constants, substitute

SOURCE = '''"""Überschrift."""
A = 1024; B = A * 2  # ж
C: int = 3
D = E = 7
F, G = (5, 6)
NAME = "text"
H = B // C + 2 ** 3
'''


def constants(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(source, namespace)
    return {name: value for name, value in namespace.items() if not name.startswith("__")}


def test_constants_are_folded_in_file_order() -> None:
    result = module_constants(ast.parse(SOURCE))
    assert result == {"A": 1024, "B": 2048, "C": 3, "D": 7, "E": 7, "F": 5, "G": 6, "H": 690}


def test_a_replaced_constant_reaches_those_derived_from_it() -> None:
    changed = constants(substitute(SOURCE, {"A": 3, "G": 60}))
    assert (changed["A"], changed["B"], changed["F"], changed["G"]) == (3, 6, 5, 60)
    assert changed["H"] == 10


def test_text_beside_the_constant_stays_as_it_was_after_wide_characters() -> None:
    assert substitute("X = 'жü'; Y = 5 # note\n", {"Y": 12}) == "X = 'жü'; Y = 12 # note\n"


def test_a_derived_constant_can_be_set_itself() -> None:
    assert constants(substitute(SOURCE, {"B": 10}))["H"] == 11


def test_a_shared_assignment_needs_every_name() -> None:
    assert constants(substitute(SOURCE, {"D": 9, "E": 9}))["E"] == 9
    with pytest.raises(TaskError, match="share one assignment"):
        substitute(SOURCE, {"D": 9})


def test_an_unknown_constant_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(TaskError, match=r"no module constant 'ROWS'.*A, B, C"):
        substitute(SOURCE, {"ROWS": 1})


def test_a_constant_that_is_no_number_cannot_be_set() -> None:
    with pytest.raises(TaskError, match="NAME"):
        substitute(SOURCE, {"NAME": 1})


def test_a_constant_assigned_twice_is_refused() -> None:
    with pytest.raises(TaskError, match="more than once"):
        substitute("A = 1\nA = 2\n", {"A": 3})


@pytest.mark.parametrize("value", [3, 2.5, True, -4])
def test_values_keep_their_type(value: float) -> None:
    assert constants(substitute("A = 1\n", {"A": value}))["A"] == value


def test_expressions_are_arithmetic_over_constants() -> None:
    assert evaluate_expression("IN * KERNEL ** 2", {"IN": 4, "KERNEL": 3}) == 36


@pytest.mark.parametrize("text", ["open('x')", "IN.bit_length()", "OTHER", "1 +", "9 ** 9 ** 9", "1 // 0"])
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(TaskError):
        evaluate_expression(text, {"IN": 4})
