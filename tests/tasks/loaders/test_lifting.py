"""Inline extents become module constants; the rest of a text stays as it is."""

from __future__ import annotations

import pytest

from kernelforge.errors import TaskError
from kernelforge.tasks import module_constants, parse_task_file, substitute
from kernelforge.tasks.loaders.source_rewrite import lift
from tests.support import kernelbench_files as files


def constants(text: str) -> dict[str, int | float | bool]:
    return parse_task_file(text, "t").constants


def test_literals_of_the_generators_are_lifted_and_named_after_what_they_are_for() -> None:
    text = lift(files.INLINE, "t")
    assert constants(text) == {"X": 1024, "X_1": 4096, "IN_FEATURES": 4096, "OUT_FEATURES": 512}
    assert "torch.rand(X, X_1, device=None)" in text
    assert '{"in_features": IN_FEATURES, "out_features": OUT_FEATURES, "bias": True}' in text
    assert "manual_seed(42)" in text


def test_elements_of_tuples_and_lists_at_module_level_are_lifted() -> None:
    head = "shape = (512, 256)\nlayers = [1024, 7]\nkernel = (3, 5)\n"
    text = lift(head + files.SOFTMAX, "t")
    assert {"SHAPE": 512, "SHAPE_1": 256, "LAYERS": 1024}.items() <= constants(text).items()
    assert "shape = (SHAPE, SHAPE_1)" in text
    assert "layers = [LAYERS, 7]" in text
    assert "kernel = (3, 5)" in text


def test_of_a_list_that_is_repeated_the_element_is_an_extent_and_the_times_are_not() -> None:
    text = lift("layers = [1024] * 16\n" + files.ARGMAX.replace("return [1]", "return [16 * [64]]"), "t")
    assert "layers = [LAYERS] * 16" in text
    assert "return [16 * [INIT]]" in text


def test_a_file_with_its_extents_in_constants_stays_as_it_is() -> None:
    assert lift(files.GROUP_NORM, "t") == files.GROUP_NORM


def test_constants_stand_behind_the_docstring_and_the_future_and_take_no_name_that_is_there() -> None:
    text = lift('"""Title ä."""\nfrom __future__ import annotations\nX = 2\n' + files.INLINE, "t")
    assert parse_task_file(text, "t").title == "Title ä."
    assert text.splitlines()[1] == "from __future__ import annotations"
    assert constants(text)["X"] == 2
    assert constants(text)["X_1"] == 1024
    compile(text, "t", "exec")


def test_a_lifted_constant_can_be_set_by_a_size() -> None:
    text = substitute(lift(files.INLINE, "t"), {"X_1": 33, "IN_FEATURES": 33})
    assert "X_1 = 33\n" in text


def test_indices_are_no_extents() -> None:
    text = files.SOFTMAX.replace("torch.randn(batch_size, dim)", "torch.randn(batch_size, dim)[:, 8:]")
    assert lift(text, "t") == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (files.BROKEN, "line 2"),
        ("x = 1", "no `class Model"),
        (files.SOFTMAX.replace("def get_inputs", "def inputs"), "no `def get_inputs"),
        ("a\0b", "null bytes"),
    ],
)
def test_a_text_that_is_no_task_is_refused(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        lift(text, "t")


def test_module_constants_are_found_in_lifted_texts() -> None:
    import ast

    assert module_constants(ast.parse(lift(files.ARGMAX, "t"))) == {"INPUT": 16, "INPUT_1": 256, "INPUT_2": 255}
