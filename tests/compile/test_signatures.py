"""The plan's arguments match the kernel's parameters, or the build names the argument that differs."""

import pytest

from kernelforge.compile import Artifact, LaunchSignature
from kernelforge.errors import CandidateError


def check(compiler, parameters, *args, head="", kernel="k", expression=None, template=""):
    source = f"{head}\n{template} __global__ void {kernel}({parameters}) {{}}\n"
    name = expression or kernel
    return compiler.build(source, [name], signatures=[LaunchSignature(name, args)])


FITS = [
    ("const float* x, float4* y, void* z", ["tensor:float32"] * 3),
    ("const float* __restrict__ x, float2* y, const volatile float* z", ["tensor:float32"] * 3),
    ("double* x, const double2* y", ["tensor:float64"] * 2),
    ("long long* x, int64_t* y, const unsigned long long* z, long* w", ["tensor:int64"] * 4),
    ("int* x, uint32_t* y, const int4* z", ["tensor:int32"] * 3),
    ("short* x, const uint16_t* y", ["tensor:int16"] * 2),
    ("signed char* x, int8_t* y, char4* z", ["tensor:int8"] * 3),
    ("unsigned char* x, uchar4* y", ["tensor:uint8"] * 2),
    ("bool* x, const unsigned char* y", ["tensor:bool"] * 2),
    ("int a, unsigned b, const int c", ["i32"] * 3),
    ("long long a, int64_t b, size_t c, long d", ["i64"] * 4),
    ("float a, double b", ["f32", "f64"]),
    ("", []),
]


@pytest.mark.parametrize(("parameters", "args"), FITS, ids=[f"{p} <- {', '.join(a)}" for p, a in FITS])
def test_matching_types_build(compiler, parameters, args):
    assert isinstance(check(compiler, parameters, *args), Artifact)


def test_half_types_match_by_pointer_pair_and_value(compiler):
    head = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>"
    parameters = "const __half* a, half2* b, __nv_bfloat16* c, const __nv_bfloat162* d, half e, __nv_bfloat16 f"
    args = ["tensor:float16"] * 2 + ["tensor:bfloat16"] * 2 + ["f16", "bf16"]
    assert isinstance(check(compiler, parameters, *args, head=head), Artifact)


DIFFERS = [
    ("const float* x, int n", ["tensor:float32", "i64"], 2, "i64 (long long)", "int"),
    ("const float* x", ["tensor:float64"], 1, "a float64 tensor (double*)", "const float *"),
    ("int* x", ["tensor:int64"], 1, "a int64 tensor (long long*)", "int *"),
    ("float x", ["tensor:float32"], 1, "a float32 tensor (float*)", "float"),
    ("float* x", ["f32"], 1, "f32 (float)", "float *"),
    ("float x", ["f64"], 1, "f64 (double)", "float"),
    ("long long n", ["i32"], 1, "i32 (int)", "long long"),
]


@pytest.mark.parametrize(("parameters", "args", "number", "passed", "taken"), DIFFERS)
def test_a_type_that_differs_is_a_build_error_in_plain_words(compiler, parameters, args, number, passed, taken):
    build = check(compiler, parameters, *args)
    message = f"argument {number} of k: the plan passes {passed}, the kernel takes {taken}"
    assert [diagnostic.message for diagnostic in build.errors] == [message]


@pytest.mark.parametrize(("args", "passed"), [(["tensor:float32"], 1), (["tensor:float32", "i32", "i32"], 3)])
def test_a_count_that_differs_is_a_build_error_in_plain_words(compiler, args, passed):
    build = check(compiler, "float* x, int n", *args)
    plural = "" if passed == 1 else "s"
    message = f"k: the plan passes {passed} argument{plural}, the kernel takes 2"
    assert [diagnostic.message for diagnostic in build.errors] == [message]


def test_every_wrong_argument_is_named(compiler):
    build = check(compiler, "float* a, float* b, int c", "tensor:int32", "tensor:float32", "f32")
    assert [d.message[:16] for d in build.errors] == ["argument 1 of k:", "argument 3 of k:"]


def test_template_instances_are_checked_by_their_own_types(compiler):
    template, parameters, name = "template <class T, int N>", "const T* x, int n", "k<double, 4>"
    assert isinstance(
        check(compiler, parameters, "tensor:float64", "i32", template=template, expression=name), Artifact
    )
    build = check(compiler, parameters, "tensor:float32", "i32", template=template, expression=name)
    assert [d.message for d in build.errors] == [
        "argument 1 of k<double, 4>: the plan passes a float32 tensor (float*), the kernel takes const double *"
    ]


def test_a_missing_kernel_is_said_once(compiler):
    build = compiler.build("__global__ void k() {}", ["nope"], signatures=[LaunchSignature("nope", ("i32",))])
    assert [d.message for d in build.errors] == ["the plan launches nope, but the source has no such kernel"]


def test_errors_of_the_source_come_first_and_keep_their_lines(compiler):
    source = "__global__ void k(float* x) {\n  x[0] = y;\n}\n"
    build = compiler.build(source, ["k"], signatures=[LaunchSignature("k", ("i32",))])
    assert [(d.line, d.message.split(":")[0]) for d in build.errors] == [
        (2, 'identifier "y" is undefined'),
        (None, "argument 1 of k"),
    ]


def test_an_unknown_argument_type_is_refused(compiler):
    with pytest.raises(CandidateError, match="'tensor:complex64' is not a type"):
        check(compiler, "float* x", "tensor:complex64")


def test_a_source_cannot_hide_its_end_from_the_check(compiler):
    for tail in ("/*", "#if 0", 'R"(', "// \\"):
        build = compiler.build(
            f"__global__ void k(float* x) {{}}\n{tail}", ["k"], signatures=[LaunchSignature("k", ("i32",))]
        )
        assert not isinstance(build, Artifact), tail
