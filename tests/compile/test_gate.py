"""The policy gate on real compilations and on forged output."""

import pytest

from kernelforge.compile import Artifact
from kernelforge.compile.policy_gate import check, declared_kernels
from kernelforge.compile.ptx_text import without_comments

KERNEL = "__global__ void k(int* x) { x[0] = 1; }\n"


def refusal(compiler, source, expressions=("k",), **options):
    result = compiler.build(source, list(expressions), **options)
    assert not isinstance(result, Artifact), "the gate let it through"
    assert result.refused, result
    return result.refused


@pytest.mark.parametrize(
    "read",
    [
        "x[0] = clock();",
        "x[0] = (int)clock64();",
        'asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));',
        'asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(x[0]));',
        'asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(x[0]));',
        'asm volatile("mov.u32 %0, %%pm0;" : "=r"(x[0]));',
        r'asm volatile(".pragma \"a\\\"; mov.u32 %0, %%clock; .pragma \"b\";" : "=r"(x[0]));',
        'asm volatile("/* */ mov.u32 %0, /* */ %%clock /* */;" : "=r"(x[0]));',
    ],
)
def test_reading_a_clock_is_refused(compiler, read):
    source = f"__global__ void k(int* x) {{ long long t = 0; {read} x[1] = (int)t; }}"
    assert "must not read the time" in refusal(compiler, source)


@pytest.mark.parametrize(
    "register", ["smid", "nsmid", "warpid", "nwarpid", "gridid", "total_smem_size", "aggr_smem_size"]
)
def test_asking_where_it_runs_is_refused(compiler, register):
    kind = "l" if register == "gridid" else "r"
    move = f'asm volatile("mov.u{64 if kind == "l" else 32} %0, %%{register};" : "={kind}"(where));'
    source = f"__global__ void k(int* x) {{ {'long long' if kind == 'l' else 'int'} where; {move} x[0] = (int)where; }}"
    assert f"must not ask where it runs: %{register}" in refusal(compiler, source)


@pytest.mark.parametrize(
    ("use", "opcode"),
    [
        ("x[0] = tex1Dfetch<int>((cudaTextureObject_t)t, 3);", "tex"),
        ("x[0] = (int)tex2D<float>((cudaTextureObject_t)t, 0.5f, 0.5f);", "tex"),
        ("x[0] = (int)tex2Dgather<float4>((cudaTextureObject_t)t, 0.5f, 0.5f).x;", "tld4"),
        ("x[0] = surf1Dread<int>((cudaSurfaceObject_t)t, 4);", "suld"),
        ("surf2Dwrite(1.0f, (cudaSurfaceObject_t)t, 0, 0);", "sust"),
        ('asm volatile("txq.width.b32 %0, [%1];" : "=r"(x[0]) : "l"(t));', "txq"),
        (
            'asm volatile("{.reg .pred q; setp.eq.u64 q, %1, 1; @q suq.width.b32 %0, [%1];}" : "=r"(x[0]) : "l"(t));',
            "suq",
        ),
        (
            'asm volatile("{.reg .f32 a<4>; tex /* at */ .1d.v4.f32.s32 {a0, a1, a2, a3}, [%0, {%1}];}"'
            ' :: "l"(t), "r"(0));',
            "tex",
        ),
    ],
)
def test_textures_and_surfaces_are_refused(compiler, use, opcode):
    result = refusal(compiler, f"__global__ void k(int* x, long long t) {{ {use} }}")
    assert result == (
        f"a kernel must not use textures or surfaces ({opcode}), for no plan can make one; read the tensor itself"
    )


def test_the_words_of_textures_are_names_like_others(compiler):
    source = """
    extern "C" __device__ const int tex[4] = {1, 2, 3, 4};
    extern "C" __global__ void suld(int* txq, cudaTextureObject_t sust) {
        asm volatile("sured: // tex.1d");
        txq[threadIdx.x] = tex[threadIdx.x] + (sust == 5);
    }
    """
    assert isinstance(compiler.build(source, ["suld"]), Artifact)


@pytest.mark.parametrize(
    "mention",
    [
        "// %clock",
        'asm volatile("// mov.u32 %%r9999, %%clock;");',
        "int clock64_ = 3; x[0] = clock64_;",
        "/* %globaltimer */",
    ],
)
def test_naming_a_clock_is_not_reading_it(compiler, mention):
    assert isinstance(compiler.build(f"__global__ void k(int* x) {{\n{mention}\nx[1] = 2; }}", ["k"]), Artifact)


def test_debugging_aids_are_refused_in_scored_builds_only(compiler):
    for code, name in (('printf("%d", x[0]);', "printf"), ("assert(x[0] > 0);", "assert")):
        source = f"__global__ void k(int* x) {{ {code} }}"
        assert f"{name} is not allowed in a scored kernel" in refusal(compiler, source)
        assert isinstance(compiler.build(source, ["k"], scored=False), Artifact)


def test_device_malloc_is_refused_everywhere(compiler):
    source = "__global__ void k(int** x) { x[0] = (int*)malloc(4); }"
    assert "external symbol malloc" in refusal(compiler, source)
    assert "external symbol malloc" in refusal(compiler, source, scored=False)


def test_an_undefined_function_is_not_linked(compiler):
    result = compiler.build("extern __device__ int f(int); __global__ void k(int* x) { x[0] = f(1); }", ["k"])
    assert not isinstance(result, Artifact)


SMUGGLED = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
    .reg .b32 %r<2>;
    HERE
    ret;
}
"""


@pytest.mark.parametrize(
    "text",
    [
        '.pragma "nounroll;"; exit;',
        '.pragma "a\nb;c"; exit;',
        '# 1 "other.cu"\nmov.b32 %r1, 1;',
        "mov.b32 %r1, 1; /* and no end",
        'mov.b32 %r1, 1; .pragma "and no end;',
        '.pragma "a\\"; exit;',
        "mov.b32 %r1, 1; \x0b exit;",
    ],
)
def test_text_that_only_the_assembler_can_read_is_refused(compiler, text):
    artifact = compiler.build('extern "C" ' + KERNEL, ["k"])
    result = check(SMUGGLED.replace("HERE", text).encode(), artifact.cubin, KERNEL, [("k", "k")])
    assert result.refused
    assert "is nothing that a compiled kernel holds; remove it from the inline assembly" in result.refused


def test_comments_and_strings_within_each_other_are_read_as_the_assembler_does():
    """ptxas 13 builds the same code from each text on the left as from the one on the right."""
    for text, code in (
        ('.pragma "/*"; exit; .pragma "*/";', '.pragma "/*"; exit; .pragma "*/";'),
        ('/* " */ exit; /* " */', "        exit;        "),
        ('// "\nexit; // "', "    \nexit;     "),
        ("/* /* */ exit; /* */", "         exit;      "),
        ("/*/ exit; /*/", "             "),
        ("// a\r exit;\nret;", "           \nret;"),
        ('.pragma "a\nb"; exit;', '.pragma "a\nb"; exit;'),
    ):
        assert without_comments(text) == code


@pytest.mark.parametrize(
    "breakout",
    ["ret; } .visible .entry evil() { ", "} .visible .entry evil() { ret; } .func f() { ", "} .entry evil() { "],
)
def test_an_entry_point_out_of_inline_ptx_is_refused(compiler, breakout):
    source = f'__global__ void k(int* x) {{ x[0] = 1; asm volatile("{breakout}"); }}'
    assert "evil" in refusal(compiler, source)


def test_a_module_variable_out_of_inline_ptx_is_refused(compiler):
    source = '__global__ void k(int* x) { asm volatile("{ .global .u32 q; st.global.u32 [q], %0; }" :: "r"(x[0])); }'
    assert "inline PTX declares .global" in refusal(compiler, source)


FORGED_PTX = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
    // begin inline asm
    ret; } .visible .entry evil() {
    // end inline asm
    ret;
}
"""
HIDDEN_PTX = FORGED_PTX.replace("ret; }", "// end inline asm\n ret; }")


@pytest.mark.parametrize("ptx", [FORGED_PTX, HIDDEN_PTX], ids=["plain", "with a forged end marker"])
def test_a_hidden_entry_point_is_named(compiler, ptx):
    artifact = compiler.build('extern "C" ' + KERNEL, ["k"])
    result = check(ptx.encode(), artifact.cubin, KERNEL, [("k", "k")])
    assert "evil" in result.refused


def test_an_entry_the_cubin_has_and_the_ptx_has_not_is_refused(compiler):
    two = compiler.build('extern "C" ' + KERNEL + 'extern "C" __global__ void other(int* x) {}', ["k", "other"])
    built = compiler.build('extern "C" ' + KERNEL, ["k"])
    assert "other is not in both" in check(built.ptx, two.cubin, KERNEL, [("k", "k")]).refused
    assert "other is not in both" in check(two.ptx, built.cubin, KERNEL, [("k", "k")]).refused


def test_a_declared_kernel_may_go_unlaunched_at_this_size(compiler):
    source = (
        KERNEL
        + "template <int N> __global__ void t(int* x) {}\n__global__ void __launch_bounds__(256) other(int* x) {}\n"
    )
    assert isinstance(compiler.build(source, ["k"]), Artifact)
    assert isinstance(compiler.build(source, ["k", "t<3>"]), Artifact)


def test_a_plan_that_launches_what_the_build_lacks_is_refused(compiler):
    artifact = compiler.build(KERNEL, ["k"])
    result = check(artifact.ptx, artifact.cubin, KERNEL, [("k", artifact.symbol("k")), ("ghost", "ghost")])
    assert "ghost, which is not a kernel" in result.refused


def test_module_variables_of_the_candidate_are_reported(compiler):
    source = """
    __device__ int table[4];
    namespace deep { __device__ float hidden; }
    __device__ const float weights[2] = {1, 2};
    __global__ void k(int* x) { static int calls; table[x[0]] = 1; deep::hidden = weights[x[1]]; x[0] = ++calls; }
    """
    artifact = compiler.build(source, ["k"])
    assert isinstance(artifact, Artifact)
    remarks = [d.message for d in artifact.build.diagnostics if d.severity == "remark"]
    assert {message.split()[2].rstrip(":") for message in remarks} == {"table", "hidden", "calls"}


@pytest.mark.slow
def test_variables_of_headers_and_constants_are_not_reported(compiler):
    source = """
    #include <cuda/std/type_traits>
    constexpr int NONE = 0;
    __device__ const float zeros[2] = {0, 0};
    __device__ float first(const float* x) { return x[NONE]; }
    __global__ void k(float* x) { float value = first(x); x[1] = value + zeros[FLAG]; }
    """
    artifact = compiler.build(source, ["k"], constants={"FLAG": 0})
    assert isinstance(artifact, Artifact)
    assert all(name in artifact.ptx.decode() for name in ("5valueE;", "NONE;", "zeros", "FLAG;"))
    assert artifact.build.diagnostics == ()


def test_dynamic_shared_memory_and_library_tables_pass(compiler):
    source = """
    extern __shared__ float tile[];
    __global__ void k(float* x) { tile[threadIdx.x] = sinf(x[0]); __syncthreads(); x[1] = tile[threadIdx.x ^ 1]; }
    """
    artifact = compiler.build(source, ["k"])
    assert isinstance(artifact, Artifact)
    assert artifact.build.diagnostics == ()


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "zeros"])
def test_output_that_cannot_be_read_is_refused(compiler, damage):
    artifact = compiler.build('extern "C" ' + KERNEL, ["k"])
    cubin = {
        "empty": b"",
        "cut": artifact.cubin[: len(artifact.cubin) // 2],
        "text": b"not an ELF" * 100,
        "zeros": artifact.cubin[:64] + bytes(len(artifact.cubin) - 64),
    }[damage]
    assert "cannot be read" in check(artifact.ptx, cubin, KERNEL, [("k", "k")]).refused


@pytest.mark.parametrize("ptx", [b"\xff\xfe", b".visible .entry k() {", b""])
def test_ptx_that_cannot_be_read_is_refused(compiler, ptx):
    artifact = compiler.build('extern "C" ' + KERNEL, ["k"])
    assert check(ptx, artifact.cubin, KERNEL, [("k", "k")]).refused


def test_declared_kernels_are_found_through_attributes_and_templates():
    source = """
    // __global__ void commented(int);
    /* __global__ void also(int); */
    const char* s = "__global__ void quoted(int)";
    __global__ void plain(int);
    extern "C" __global__ __launch_bounds__(256, 2) void bounded(int);
    template <class T> __global__ void __launch_bounds__(N * (2 + 1)) deep(const T* __restrict__ x);
    static __global__ void
    split
    (int);
    __global__ void __cluster_dims__(2, 1, 1) clustered(int);
    """
    assert declared_kernels(source) == {"plain", "bounded", "deep", "split", "clustered"}
