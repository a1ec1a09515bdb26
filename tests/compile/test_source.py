"""Position of constants, and lines of diagnostics."""

import pytest

from kernelforge.compile.source import compose


def lines_before_constants(source):
    """Number of source lines before the constants."""
    lines = compose(source, {"N": 1}, []).splitlines()
    return next(number for number, line in enumerate(lines) if line.startswith("#line"))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("__global__ void k() {}", 0),
        ("#include <a>\n#include <b>\n\n__global__ void k() {}", 2),
        ("// c\n/* a\n#include <not>\n*/\n#include <a> // d\n#define X 1\nint y;\n#include <late>", 5),
        ("#ifdef A\n#include <a>\n#else\n#include <b>\n#endif\nint x;", 5),
        ("#pragma once\n#define LONG \\\n  1\n#include <a>\nint x;", 4),
        ("#define ONLY 1\nint x;", 0),
        ("# include <a>\nint x;", 1),
        ("#include <a> /* open\n still */ int x;", 0),
        ("", 0),
    ],
)
def test_constants_go_after_the_last_leading_include(source, lines):
    assert lines_before_constants(source) == lines


def test_the_rest_of_the_source_keeps_its_lines():
    text = compose("#include <a>\nint x;\nint y;", {"N": 1, "WIDE": -(2**40)}, []).splitlines()
    assert text[0] == "#include <a>"
    assert "static constexpr int N = 1;" in text[2]
    assert "static constexpr long long WIDE = -1099511627776ll;" in text[3]
    assert text[4:] == ['#line 2 "candidate.cu"', "int x;", "int y;"]


def test_without_constants_the_source_is_as_it_was():
    assert compose("int x;\nint y;", {}, []) == "int x;\nint y;\n"
