"""Builds with equivalent PTX have one hash, independent of names; any other change gives another."""

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.ptx_text import ptx_hash
from kernelforge.records import Build

PLAIN = """
#include <cuda_fp16.h>
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __noinline__ float help(float a, float b) { return a * b + sinf(a); }
template <class T> __global__ void second(const T* x, T* out, int n) {
  __shared__ T tile[64];
  extern __shared__ float rest[];
  tile[threadIdx.x] = x[threadIdx.x];
  rest[threadIdx.x] = table[n & 3];
  __syncthreads();
  #pragma unroll 1
  for (int i = 0; i < n; i++) out[i] = help(tile[63 - threadIdx.x], rest[i]);
  asm volatile("{ .reg .f32 q; .reg .pred P; setp.gt.f32 P, %0, 0f00000000; @P mov.f32 q, %0; }" :: "f"(x[0]));
}
__global__ void first(float* x) { x[threadIdx.x] = atomicAdd(x, 1.0f); }
"""
RENAMED = """
// Another author, another layout.
#include <cuda_fp16.h>
__constant__ float zoo[4] = {1, 2, 3, 4};
__device__ __noinline__ float a_helper(float p, float q) { /* the same */ return p * q + sinf(p); }
template <class Element>
__global__ void alpha(const Element* source, Element* target, int count)
{
  __shared__ Element buffer[64];
  extern __shared__ float dynamic[];

  buffer[threadIdx.x] = source[threadIdx.x];
  dynamic[threadIdx.x] = zoo[count & 3];
  __syncthreads();
  #pragma unroll 1
  for (int k = 0; k < count; k++)
    target[k] = a_helper(buffer[63 - threadIdx.x], dynamic[k]);
  asm volatile("{ .reg .f32 Z; .reg .pred go; setp.gt.f32 go, %0, 0f00000000; @go mov.f32 Z, %0; }" :: "f"(source[0]));
}
__global__ void zeta(float* data) { data[threadIdx.x] = atomicAdd(data, 1.0f); }
"""


def built(compiler: Compiler, source: str, *names: str, **options: str) -> str:
    artifact = compiler.build(source, names, **options)
    assert isinstance(artifact, Artifact), artifact
    assert artifact.build.ptx_hash is not None
    return artifact.build.ptx_hash


@pytest.fixture(scope="module")
def plain(compiler):
    return built(compiler, PLAIN, "second<float>", "first")


@pytest.mark.slow
def test_names_comments_and_layout_do_not_count(compiler, plain):
    assert built(compiler, RENAMED, "alpha<float>", "zeta") == plain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a * b + sinf(a)", "a * b - sinf(a)"),
        ("{1, 2, 3, 4}", "{1, 2, 3, 5}"),
        ("tile[63 - threadIdx.x]", "tile[62 - threadIdx.x]"),
        ("tile[64]", "tile[65]"),
        ("__syncthreads();", "__syncwarp();"),
        ("atomicAdd(x, 1.0f)", "atomicMax((int*)x, 1)"),
        ("@P mov", "@!P mov"),
        ("void first", "void __launch_bounds__(64) first"),
    ],
)
def test_what_the_code_does_counts(compiler, plain, old, new):
    assert old in PLAIN
    assert built(compiler, PLAIN.replace(old, new), "second<float>", "first") != plain


def test_the_architecture_counts(compiler, plain):
    assert built(compiler, PLAIN, "second<float>", "first", arch="sm_80") != plain


def test_which_of_two_names_is_used_counts():
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n.global .b32 a;\n.global .b32 b;\n"
    kernel = ".visible .entry k()\n{{\n.reg .b32 %r<3>;\nld.global.u32 %r1, [{}];\nst.global.u32 [{}], %r1;\nret;\n}}\n"
    once, other = (ptx_hash((head + kernel.format(*names)).encode()) for names in (("a", "b"), ("b", "a")))
    assert once != other


@pytest.mark.parametrize(
    "line",
    [
        ".loc 1 2 3 add.s32 %r1, %r1, 1;",
        ".loc 1 2 3, function_name $L__info_string0, inlined_at 1 2 3 add.s32 %r1, %r1, 1;",
        '.file 1 "a.cu" add.s32 %r1, %r1, 1;',
        "/* */ add.s32 %r1, %r1, 1; // comment",
    ],
)
def test_code_cannot_hide_behind_what_is_left_out(line):
    with_code = f".entry k()\n{{\n.reg .b32 %r<2>;\n{line}\nret;\n}}\n"
    assert ptx_hash(with_code.encode()) != ptx_hash(with_code.replace("add.s32 %r1, %r1, 1;", "").encode())
    assert ptx_hash(with_code.encode()) == ptx_hash(b".entry k(){.reg .b32 %r<2>;add.s32 %r1,%r1,1;ret;}")


def test_an_opcode_is_not_a_name_even_where_a_variable_is_called_like_it():
    text = ".global .b32 ret;\n.entry k()\n{{\n{};\n}}\n"
    renamed = text.replace("b32 ret", "b32 other")
    assert ptx_hash(text.format("ret").encode()) == ptx_hash(renamed.format("ret").encode())
    assert ptx_hash(text.format("ret").encode()) != ptx_hash(text.format("exit").encode())


def test_tables_of_addresses_and_operands_in_braces_follow_their_names():
    text = ".global .b32 {a};\n.global .u64 table[2] = {{{a}, 0}};\n.entry k()\n{{\n.reg .b32 {a}1, {a}2;\n"
    text += ".reg .b64 %rd<2>;\nmov.b64 %rd1, {{{a}1, {a}2}};\n$L__{a}:\nbra $L__{a};\n}}\n"
    assert ptx_hash(text.format(a="x").encode()) == ptx_hash(text.format(a="y").encode())


@pytest.mark.slow
def test_a_build_from_the_cache_has_its_hash(tmp_path):
    source = "__global__ void k(float* x) { x[0] = 1; }"
    with Compiler(tmp_path) as first:
        fresh = first.build(source, ["k"])
    with Compiler(tmp_path) as second:
        cached = second.build(source, ["k"])
    assert cached.build.cached
    assert not fresh.build.cached
    assert cached.build.ptx_hash == fresh.build.ptx_hash is not None


def test_a_source_that_does_not_compile_has_none(compiler):
    failed = compiler.build("__global__ void k(float* x) { x[0] = ; }", ["k"])
    assert isinstance(failed, Build)
    assert failed.ptx_hash is None
