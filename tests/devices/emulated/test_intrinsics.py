"""The list of what runs: every family of CUDA's intrinsics, as NVRTC compiles it for each generation of GPUs.

Results are held by the tests of the instructions; here a kernel of each family only has to be executed without a fault.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tests.devices.emulated.harness import Device
from tests.devices.emulated.nvrtc import compile_ptx

HEAD = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>
DECLARATIONS
#define KEEP(place, ...) { auto kept = (__VA_ARGS__); *(decltype(kept)*)(out + 32 * (32 * place + t)) = kept; }
#define INPUTS(T, p, q, r) T p = ((const T*)in)[t], q = ((const T*)in)[t + 32], r = ((const T*)in)[t + 64];
"""
KERNEL = """extern "C" __global__ void NAME(char* out, char* in, char* scratch) {
  int t = threadIdx.x;
  INPUTS(unsigned, a, b, c) INPUTS(int, i, j, l) INPUTS(unsigned long long, m, n, o) INPUTS(long long, mm, nn, oo)
  INPUTS(float, x, y, z) INPUTS(double, p, q, r) INPUTS(float2, x2, y2, z2) INPUTS(double2, p2, q2, r2)
  INPUTS(unsigned short, us, ut, uw) INPUTS(short, ss, st, sw)
  INPUTS(__half, h, g, e) INPUTS(__half2, h2, g2, e2) INPUTS(__nv_bfloat16, w, v, d) INPUTS(__nv_bfloat162, w2, v2, d2)
  BODY
}
"""


def calls(names: str, arguments: str) -> list[str]:
    """Statements that call each name with the same arguments."""
    return [f"KEEP({name}({arguments}))" for name in names.split()]


def spell(pattern: str, **choices: str) -> str:
    """All names that a pattern with ``{key}`` stands for."""
    names = [pattern]
    for key, values in choices.items():
        names = [name.replace("{" + key + "}", value) for name in names for value in values.split(",")]
    return " ".join(names)


COMPARISONS = "eq,ne,ge,gt,le,lt"
ROUNDINGS = "rn,rz,rd,ru"

SIMD = [
    *calls(spell("__v{op}{n}", op="abs,absss,neg,negss", n="2,4"), "a"),
    *calls(spell("__v{op}{n}", n="2,4", op="absdiffs,absdiffu,add,addss,addus,avgs,avgu,haddu,maxs,maxu,mins,minu,sads,"
                 "sadu,sub,subss,subus"), "a, b"),
    *calls(spell("__v{set}{op}{n}", n="2,4", set="cmp,set",
                 op="eq,ne,ges,geu,gts,gtu,les,leu,lts,ltu"), "a, b"),
]  # fmt: skip
DPX = [
    *calls(spell("__vi{op}_{kind}{relu}", op="addmax,addmin,max3,min3", kind="s32,s16x2", relu=",_relu"), "a, b, c"),
    *calls(spell("__vi{op}_{kind}", op="addmax,addmin,max3,min3", kind="u32,u16x2"), "a, b, c"),
    *calls(spell("__vi{op}_{kind}_relu", op="max,min", kind="s32,s16x2"), "a, b"),
    *[f"{{ bool f; KEEP(__vib{op}_{kind}({operands}, &f)) KEEP((int)f) }}" for op in ("max", "min")
      for kind, operands in (("s32", "i, j"), ("u32", "a, b"))],
    *[f"{{ bool f, e; KEEP(__vib{op}_{kind}(a, b, &f, &e)) KEEP((int)f + e) }}" for op in ("max", "min")
      for kind in ("s16x2", "u16x2")],
]  # fmt: skip
INTEGERS = [
    *calls("__brev __clz __ffs __popc", "a"), *calls("__brevll __clzll __ffsll __popcll", "m"),
    *calls("__byte_perm __funnelshift_l __funnelshift_lc __funnelshift_r __funnelshift_rc __usad __dp4a __fns",
           "a, b, c"),
    *calls("__dp4a __sad __dp2a_lo __dp2a_hi", "i, j, l"),
    "KEEP(__dp2a_lo(make_short2(us, ut), make_char4(1, -2, 3, -4), i))",
    "KEEP(__dp2a_hi(make_ushort2(us, ut), make_uchar4(1, 2, 3, 4), a))",
    *calls("__hadd __mul24 __mulhi __rhadd min max", "i, j"),
    *calls("__umul24 __umulhi __uhadd __urhadd min max", "a, b"), *calls("__umul64hi min max", "m, n"),
    *calls("__mul64hi min max", "mm, nn"), *calls("abs", "i"), *calls("llabs", "mm"),
    "KEEP(a << (b & 63))", "KEEP(i >> (j & 31))", "KEEP(m >> (n & 63))",
    "KEEP(i / (j | 1))", "KEEP(i % (j | 1))", "KEEP(mm / (nn | 1))", "KEEP(m % (n | 1))", "KEEP(us / (ut | 1))",
    "KEEP((signed char)i)", "KEEP((int)(signed char)i * 2)", "KEEP((int)(a << 5) >> 17)", "KEEP(__ffs(a & -a))",
    "__builtin_assume(a > 3);",
]  # fmt: skip
WIDE = [
    "{ __int128 g = (__int128)mm * nn + oo; KEEP(g) }",
    "{ unsigned __int128 g = (unsigned __int128)m * n; KEEP((unsigned long long)(g >> 64)) KEEP(g >> (a & 127)) }",
    "{ unsigned __int128 g = ((unsigned __int128)m << 64 | n) - o; KEEP(g < o) KEEP(g << 3) KEEP(g * g) }",
    "{ __int128 g = (__int128)mm << 3; KEEP(g / (nn | 1)) KEEP(g % (nn | 1)) KEEP((double)g) KEEP((float)g) }",
    "{ KEEP((__int128)p) KEEP((unsigned __int128)x) }",
]
SINGLE = [
    *calls(spell("__f{op}_{r}", op="add,mul,sub,div", r=ROUNDINGS), "x, y"),
    *calls(spell("__f{op}_{r}", op="rcp,sqrt", r=ROUNDINGS), "x"),
    *calls(spell("__fmaf_{ieee}{r}", ieee=",ieee_", r=ROUNDINGS), "x, y, z"),
    *calls("__cosf __exp10f __expf __log10f __log2f __logf __saturatef __sinf __tanf __frsqrt_rn", "x"),
    *calls("__fdividef __powf", "x, y"), "{ float f, e; __sincosf(x, &f, &e); KEEP(f) KEEP(e) }",
    *calls("acosf acoshf asinf asinhf atanf atanhf cbrtf ceilf cosf coshf cospif cyl_bessel_i0f cyl_bessel_i1f erfcf "
           "erfcinvf erfcxf erff erfinvf exp10f exp2f expf expm1f fabsf floorf ilogbf j0f j1f lgammaf llrintf llroundf "
           "log10f log1pf log2f logbf logf lrintf lroundf nearbyintf normcdff normcdfinvf rcbrtf rintf roundf rsqrtf "
           "sinf sinhf sinpif sqrtf tanf tanhf tgammaf truncf y0f y1f isnan isinf isfinite signbit", "x"),
    *calls("atan2f copysignf fdimf fmaxf fminf fmodf hypotf nextafterf powf remainderf rhypotf", "x, y"),
    *calls("fmaf norm3df rnorm3df", "x, y, z"), "KEEP(jnf(3, x))", "KEEP(ynf(3, x))", "KEEP(ldexpf(x, 3))",
    "KEEP(scalblnf(x, 3))", "{ int f; KEEP(frexpf(x, &f)) KEEP(f) }", "{ float f; KEEP(modff(x, &f)) KEEP(f) }",
    "{ int f; KEEP(remquof(x, y, &f)) KEEP(f) }", "{ float f, e; sincosf(x, &f, &e); KEEP(f) KEEP(e) }",
    "{ float f, e; sincospif(x, &f, &e); KEEP(f) KEEP(e) }",
]  # fmt: skip
DOUBLE = [
    *calls(spell("__d{op}_{r}", op="add,mul,sub,div", r=ROUNDINGS), "p, q"),
    *calls(spell("__d{op}_{r}", op="rcp,sqrt", r=ROUNDINGS), "p"), *calls(spell("__fma_{r}", r=ROUNDINGS), "p, q, r"),
    *calls("acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10 exp2 "
           "expm1 fabs floor ilogb j0 lgamma llrint llround log log10 log1p log2 logb nearbyint normcdf normcdfinv "
           "rcbrt rint round rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc y0 isnan isinf isfinite signbit", "p"),
    *calls("atan2 copysign fdim fmax fmin fmod hypot nextafter pow remainder", "p, q"), "KEEP(fma(p, q, r))",
    "{ double f, e; sincos(p, &f, &e); KEEP(f) KEEP(e) }", "{ int f; KEEP(frexp(p, &f)) }",
]  # fmt: skip
CASTS = [
    *calls(spell("__float2{kind}_{r}", kind="int,uint,ll,ull", r=ROUNDINGS), "x"),
    *calls(spell("__double2{kind}_{r}", kind="int,uint,ll,ull,float", r=ROUNDINGS), "p"),
    *calls(spell("__int2float_{r}", r=ROUNDINGS), "i"), *calls(spell("__uint2float_{r}", r=ROUNDINGS), "a"),
    *calls(spell("__ll2{kind}_{r}", kind="float,double", r=ROUNDINGS), "mm"),
    *calls(spell("__ull2{kind}_{r}", kind="float,double", r=ROUNDINGS), "m"),
    "KEEP(__int2double_rn(i))", "KEEP(__uint2double_rn(a))", "KEEP(__double2hiint(p))", "KEEP(__double2loint(p))",
    "KEEP(__hiloint2double(i, j))", "KEEP(__double_as_longlong(p))", "KEEP(__float_as_int(x))", "KEEP((char)x)",
    "KEEP((unsigned char)p)", "KEEP((short)x)", "KEEP((float)us)", "KEEP((double)ss)", "KEEP((float)(signed char)i)",
]  # fmt: skip


def halves(two: str, name: str, a: str, b: str, c: str) -> list[str]:
    """The functions that f16 and bf16 have alike, on single values and on pairs."""
    packed = f"{a}2, {b}2"
    names = "__hadd __hadd_rn __hadd_sat __hdiv __hmul __hmul_rn __hmul_sat __hsub __hsub_rn __hsub_sat __hmax __hmin "
    pairs = "__hadd2 __hadd2_rn __hadd2_sat __h2div __hmul2 __hmul2_rn __hmul2_sat __hsub2 __hsub2_rn __hsub2_sat "
    math = "ceil,cos,exp,exp10,exp2,floor,log,log10,log2,rcp,rint,rsqrt,sin,sqrt,tanh,tanh_approx,trunc"
    integers = f"__{name}2{{kind}}_{{r}}"
    return [
        *calls(names + "__hmax_nan __hmin_nan", f"{a}, {b}"), *calls("__habs __hneg __hisinf __hisnan", a),
        *calls(pairs + "__hmax2 __hmin2 __hmax2_nan __hmin2_nan", packed), *calls("__habs2 __hneg2 __hisnan2", a + "2"),
        *calls("__hfma __hfma_relu __hfma_sat", f"{a}, {b}, {c}"),
        *calls("__hfma2 __hfma2_relu __hfma2_sat __hcmadd", f"{packed}, {c}2"),
        *calls(spell("__h{op}{u}", op=COMPARISONS, u=",u"), f"{a}, {b}"),
        *calls(spell("__h{op}{u}2{mask}", op=COMPARISONS, u=",u", mask=",_mask"), packed),
        *calls(spell("__hb{op}{u}2", op=COMPARISONS, u=",u"), packed),
        *calls(spell("h{op}", op=math), a), *calls(spell("h2{op}", op=math), a + "2"),
        *calls(spell(integers, kind="int,uint,short,ushort,ll,ull", r=ROUNDINGS), a),
        *calls(f"__{name}2char_rz __{name}2uchar_rz", a),
        *calls(spell(f"__{{kind}}2{name}_{{r}}", kind="int,uint,short,ushort,ll,ull", r=ROUNDINGS), "i"),
        *calls(spell(f"__float2{name}_{{r}}", r=ROUNDINGS), "x"), f"KEEP(__double2{name}(p))",
        f"KEEP(__float2{two}_rn(x))", f"KEEP(__floats2{two}_rn(x, y))", f"KEEP(__low2float({a}2))",
        f"KEEP(__high2float({a}2))", f"KEEP(__lowhigh2highlow({a}2))",
        *calls(spell("__shfl_{op}sync", op=",up_,down_,xor_"), f"~0u, {a}, 3"),
        *calls(spell("__shfl_{op}sync", op=",up_,down_,xor_"), f"~0u, {a}2, 3"),
    ]  # fmt: skip


def narrow(bits: str, kinds: list[str], rounding: str) -> list[str]:
    """Conversions to and from floats of 8, 6 or 4 bits."""
    sources = {"float": "x", "double": "p", "halfraw": "(__half_raw)h", "bfloat16raw": "(__nv_bfloat16_raw)w"}
    pairs = {"float2": "x2", "double2": "p2", "halfraw2": "(__half2_raw)h2", "bfloat16raw2": "(__nv_bfloat162_raw)w2"}
    result = []
    for kind in kinds:
        last = [kind, rounding]
        for source, value in sources.items():
            result.append(f"KEEP(__nv_cvt_{source}_to_fp{bits}({', '.join([value, *last])}))")
        for source, value in pairs.items():
            result.append(f"KEEP(__nv_cvt_{source}_to_fp{bits}x2({', '.join([value, *last])}))")
        result.append(f"KEEP(__nv_cvt_fp{bits}_to_halfraw((__nv_fp{bits}_storage_t)us, {kind}).x)")
        result.append(f"KEEP(__nv_cvt_fp{bits}x2_to_halfraw2((__nv_fp{bits}x2_storage_t)us, {kind}).x)")
    return result


def with_saturation(statements: list[str]) -> list[str]:
    """Conversions to fp8 take a mode of saturation, between the value and the kind."""
    result = []
    for statement in statements:
        if "_to_fp8" in statement:
            head, kind, _ = statement.rsplit(", ", 2)
            result += [f"{head}, {mode}, {kind}))" for mode in ("__NV_SATFINITE", "__NV_NOSAT")]
        else:
            result.append(statement)
    return result


NARROW = [
    *with_saturation(narrow("8", ["__NV_E4M3", "__NV_E5M2"], "cudaRoundNearest")),
    *narrow("6", ["__NV_E2M3", "__NV_E3M2"], "cudaRoundNearest"), *narrow("4", ["__NV_E2M1"], "cudaRoundNearest"),
    *[f"KEEP(__nv_cvt_{s}_to_e8m0({value}, __NV_{sat}, cudaRound{mode}))" for sat in ("SATFINITE", "NOSAT")
      for s, value in (("float", "x"), ("double", "p"), ("bfloat16raw", "(__nv_bfloat16_raw)w"))
      for mode in ("Zero", "PosInf")],
    *[f"KEEP(__nv_cvt_{s}_to_e8m0x2({value}, __NV_{sat}, cudaRound{mode}))" for sat in ("SATFINITE", "NOSAT")
      for s, value in (("float2", "x2"), ("double2", "p2"), ("bfloat162raw", "(__nv_bfloat162_raw)w2"))
      for mode in ("Zero", "PosInf")],
    "KEEP(__nv_cvt_e8m0_to_bf16raw(us).x)", "KEEP(__nv_cvt_e8m0x2_to_bf162raw(us).x)",
    "KEEP((float)__nv_fp8_e4m3(x))", "KEEP((float)__nv_fp8_e5m2(x))", "KEEP(__nv_fp8x4_e4m3(make_float4(x, y, z, x)))",
    "KEEP((float4)__nv_fp8x4_e5m2(make_float4(x, y, z, x)))", "KEEP((float)__nv_fp4_e2m1(x))",
    "KEEP((float4)__nv_fp4x4_e2m1(make_float4(x, y, z, x)))", "KEEP((float)__nv_fp6_e3m2(x))",
]  # fmt: skip

WARP = [
    *calls(spell("__reduce_{op}_sync", op="add,min,max"), "~0u, i"), *calls("__activemask", ""),
    *calls(spell("__reduce_{op}_sync", op="add,min,max,and,or,xor"), "~0u, a"),
    *calls("__ballot_sync __all_sync __any_sync __uni_sync", "~0u, i > 3"),
    *calls(spell("__shfl_{op}sync", op=",up_,down_,xor_"), "~0u, m, 3"), "KEEP(__match_any_sync(~0u, a))",
    *calls(spell("__shfl_{op}sync", op=",up_,down_,xor_"), "~0u, p, b & 31, 8"), "KEEP(__match_any_sync(~0u, m))",
    "{ int f; KEEP(__match_all_sync(~0u, a, &f)) KEEP(f) }", "{ int f; KEEP(__match_all_sync(~0u, p, &f)) KEEP(f) }",
    "__syncwarp();", "KEEP(__syncthreads_count(i > 0))", "KEEP(__syncthreads_and(i > 0))",
    "KEEP(__syncthreads_or(i > 0))",
]  # fmt: skip

MEMORY = [
    *[f"KEEP(__ld{hint}(({kind}*)in + t))" for hint in ("g", "ca", "cg", "cs", "cv", "lu")
      for kind in ("char", "unsigned short", "int", "unsigned long long", "float", "double", "float4", "double2",
                   "uchar4", "__half2", "__nv_bfloat16")],
    *[f"__st{hint}(({kind}*)scratch + t, ({kind})(i));" for hint in ("wb", "cg", "cs", "wt")
      for kind in ("char", "unsigned short", "int", "unsigned long long", "float", "double")],
    *[f"__st{hint}((float4*)scratch + t, make_float4(x, y, z, x));" for hint in ("wb", "cg", "cs", "wt")],
    "__threadfence();", "__threadfence_block();", "__threadfence_system();", "__nanosleep(20);", "__prof_trigger(1);",
    "KEEP(__isGlobal(in))", "KEEP(__isShared(in))", "KEEP(__isLocal(in))", "KEEP(__isConstant(in))",
    "KEEP(__cvta_generic_to_global(in))", "KEEP(__ldg((const int2*)in + t))", "KEEP(clock())", "KEEP(clock64())",
    "{ __shared__ int f[32]; f[t] = i; __syncthreads(); KEEP(f[31 - t]) KEEP(__isShared(f)) }",
    *[f'asm volatile("{code}" :: "l"(in) : "memory");' for code in (
        "prefetch.global.L1 [%0];", "prefetch.global.L2 [%0];", "prefetchu.L1 [%0];",
        "prefetch.global.L2::evict_last [%0];", "applypriority.global.L2::evict_normal [%0], 128;")],
    *[f'{{ unsigned f; asm volatile("{code} %0, [%1];" : "=r"(f) : "l"(in + 4 * t) : "memory"); KEEP(f) }}'
      for code in (
        "ld.acquire.gpu.global.u32", "ld.relaxed.sys.global.u32", "ld.volatile.global.u32", "ld.weak.global.u32",
        "ld.global.nc.L1::no_allocate.u32", "ld.global.L1::evict_last.u32", "ld.global.L2::128B.u32",
        "ld.global.nc.L2::256B.u32", "ld.acquire.cta.u32")],
    *[f'asm volatile("{code} [%0], %1;" :: "l"(scratch + 4 * t), "r"(a) : "memory");' for code in (
        "st.release.gpu.global.u32", "st.relaxed.sys.global.u32", "st.volatile.global.u32",
        "st.global.L1::no_allocate.u32",
        "st.release.cta.u32")],
    *[f'asm volatile("{code};" ::: "memory");' for code in (
        "fence.sc.gpu", "fence.acq_rel.cta", "fence.acq_rel.sys", "membar.gl", "membar.cta", "membar.sys")],
]  # fmt: skip
POLICIES = [
    *[f"""{{ unsigned long long f; unsigned e; asm volatile("{code}" : "=l"(f)); asm volatile(
      "ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(e) : "l"(in + 4 * t), "l"(f)); KEEP(e) asm volatile(
      "st.global.L2::cache_hint.u32 [%0], %1, %2;" :: "l"(scratch + 4 * t), "r"(e), "l"(f) : "memory"); }}"""
      for code in (
        "createpolicy.fractional.L2::evict_last.b64 %0, 1.0;", "createpolicy.fractional.L2::evict_first.b64 %0;",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %0, 0.25;",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %0, [policies], 64, 128;")],
    """{ unsigned long long f; asm volatile("createpolicy.cvt.L2.b64 %0, 0x10000000;" : "=l"(f)); KEEP(f) unsigned e;
      asm volatile("{.reg .v4 .u32 x; ld.global.v4.L2::cache_hint.u32 {%0,_,_,_}, [%1], %2;}"
                   : "=r"(e) : "l"(in + 16 * t), "l"(f)); }""".replace(".reg .v4 .u32 x; ", ""),
    """{ unsigned long long f; asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(f)); asm volatile(
      "red.global.add.L2::cache_hint.u32 [%0], %1, %2;" :: "l"(scratch + 4 * t), "r"(a), "l"(f) : "memory");
      unsigned e;
      asm volatile("atom.global.add.L2::cache_hint.u32 %0, [%1], %2, %3;"
                   : "=r"(e) : "l"(scratch), "r"(a), "l"(f));}""",
    'asm volatile("discard.global.L2 [%0], 128;" :: "l"(scratch) : "memory");',
]  # fmt: skip
ATOMICS = [
    *[f"KEEP(atomic{op}{scope}(({kind}*)scratch + t, ({kind})i))" for scope in ("", "_block", "_system")
      for op, kinds in (("Add", "int,unsigned,unsigned long long,float,double"), ("Sub", "int,unsigned"),
                        ("Exch", "int,unsigned,unsigned long long,float"),
                        ("Min", "int,unsigned,long long,unsigned long long"),
                        ("Max", "int,unsigned,long long,unsigned long long"), ("Inc", "unsigned"), ("Dec", "unsigned"),
                        *((op, "int,unsigned,unsigned long long") for op in ("And", "Or", "Xor")))
      for kind in kinds.split(",")],
    *[f"KEEP(atomicCAS(({kind}*)scratch + t, ({kind})i, ({kind})j))"
      for kind in ("int", "unsigned", "unsigned long long", "unsigned short")],
    "KEEP(atomicAdd((__half2*)scratch + t, h2))", "KEEP(atomicAdd((__half*)scratch + t, h))",
    "KEEP(atomicAdd((__nv_bfloat162*)scratch + t, w2))", "KEEP(atomicAdd((__nv_bfloat16*)scratch + t, w))",
    *[f"atomic{op}((int*)scratch + (t & 3), i);" for op in ("Add", "Min", "And", "Xor")],
    "atomicAdd((float*)scratch, x);",
    "{ __shared__ int f[4]; __shared__ float e[4]; f[t & 3] = 0; e[t & 3] = 0; __syncthreads();"
    " KEEP(atomicAdd(f + (t & 3), i)) atomicMax(f, j); atomicAdd(e, x);"
    " __syncthreads(); KEEP(f[t & 3]) KEEP(e[t & 3]) }",
    *[f"KEEP(__nv_atomic_fetch_{op}(({kind}*)scratch + t, ({kind})i, {order}, __NV_THREAD_SCOPE_DEVICE))"
      for op in ("add", "min", "max", "and", "or", "xor") for kind in ("int", "unsigned long long")
      for order in ("__NV_ATOMIC_RELAXED", "__NV_ATOMIC_ACQ_REL")],
    "{ int f; __nv_atomic_load((int*)scratch + t, &f, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM); KEEP(f) }",
    "__nv_atomic_store_n((int*)scratch + t, i, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_BLOCK);",
    "KEEP(__nv_atomic_exchange_n((int*)scratch + t, i, __NV_ATOMIC_SEQ_CST, __NV_THREAD_SCOPE_DEVICE))",
]  # fmt: skip
ATOMICS_90 = [
    "KEEP(atomicAdd((float4*)scratch + t, make_float4(x, y, z, x)))",
    "KEEP(atomicAdd((float2*)scratch + t, x2))",
    "atomicAdd((float4*)scratch, make_float4(x, y, z, x));",
    "atomicAdd((float2*)scratch, x2);",
    "{ __int128 f = mm, e = nn; KEEP((long long)atomicCAS((__int128*)scratch + t, f, e)) }",
    "{ __int128 f = mm; KEEP((long long)atomicExch((__int128*)scratch + t, f)) }",
    *[
        f'asm volatile("red.global.{code}" :: "l"(scratch + 32 * t), "r"(a), "r"(b), "r"(c), "r"(a) : "memory");'
        for code in (
            "add.noftz.v2.f16x2 [%0], {%1, %2};",
            "add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};",
            "min.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};",
            "max.noftz.v2.bf16x2 [%0], {%1, %2};",
        )
    ],
    'asm volatile("red.global.v4.f32.add [%0], {%1, %2, %3, %1};" :: "l"(scratch + 16 * t), "f"(x), "f"(y), "f"(z));',
]
CONTROL = [
    "switch (a & 15) { case 0: KEEP(x * y) break; case 1: KEEP(x + y) break; case 2: KEEP(sinf(x)) break;"
    " case 3: KEEP(a) break; case 4: KEEP(i * j) break; case 5: KEEP(p) break;"
    " case 6: KEEP(x - z) break; case 9: KEEP(m) break; }",
    'if (a == 12345) asm volatile("trap;");',
    "if (a == 12345) __trap();",
    "if (a == 12345) __brkpt();",
    'printf("%d %f\\n", i, x);',
    "assert(t < 32);",
    "KEEP(recursive(t & 7))",
    "KEEP(table[t & 3](i))",
    "KEEP(choose(t & 1 ? twice : thrice, i))",
    "{ Circle f; Square e; Shape* g = t & 1 ? (Shape*)&f : (Shape*)&e; KEEP(g->area(i)) }",
    "{ int f[16]; for (int e = 0; e < 16; e++) f[e] = i * e; KEEP(f[a & 15]) KEEP(__isLocal(f)) }",
    "KEEP(mutual(t & 7))",
    "{ int (*f)(int) = t & 1 ? twice : thrice; KEEP(f(i)) }",
    "KEEP(big(Big{i, j, x, {p, q}}).y[1])",
]
DECLARATIONS = """
__device__ __noinline__ int recursive(int f) { return f < 2 ? 1 : f * recursive(f - 1); }
__device__ int mutual(int f);
__device__ __noinline__ int other(int f) { return f < 1 ? 3 : mutual(f - 1) * 2; }
__device__ __noinline__ int mutual(int f) { return f < 1 ? 5 : other(f - 1) + 1; }
__device__ __noinline__ int twice(int f) { return 2 * f; }
__device__ __noinline__ int thrice(int f) { return 3 * f; }
__device__ __noinline__ int square(int f) { return f * f; }
__device__ __noinline__ int next(int f) { return f + 1; }
__device__ int (*const table[])(int) = {twice, thrice, square, next};
__device__ __noinline__ int choose(int (*f)(int), int e) { return f(e) + f(e + 1); }
struct Shape { __device__ virtual int area(int f) = 0; };
struct Circle : Shape { __device__ __noinline__ int area(int f) override { return 3 * f * f; } };
struct Square : Shape { __device__ __noinline__ int area(int f) override { return f * f; } };
struct Big { int a, b; float x; double y[2]; };
__device__ __noinline__ Big big(Big f) { return Big{f.b, f.a, f.x * 2, {f.y[1], f.y[0]}}; }
__device__ char policies[128];
"""
HALF = halves("half2", "half", "h", "g", "e")
BRAIN = halves("bfloat162", "bfloat16", "w", "v", "d")

FAMILIES: dict[str, tuple[int, list[str]]] = {
    "simd": (70, SIMD), "dpx": (70, DPX), "integers": (70, INTEGERS), "wide": (70, WIDE), "single": (70, SINGLE),
    "double": (70, DOUBLE), "casts": (70, CASTS), "half": (70, HALF), "brain": (80, BRAIN), "narrow": (70, NARROW),
    "warp": (80, WARP), "memory": (70, MEMORY), "policies": (80, POLICIES), "atomics": (70, ATOMICS),
    "atomics_90": (90, ATOMICS_90), "control": (70, CONTROL),
}  # fmt: skip


STATEMENTS = 16
"""Statements of a kernel. What differs between two generations of GPUs is often a few of a family."""


def kernel_of(name: str, statements: list[str]) -> str:
    """A kernel of these statements; each ``KEEP`` gets its own place in the output."""
    places = itertools.count()
    body = re.sub(r"KEEP\(", lambda match: f"KEEP({next(places)}, ", "\n".join(statements))
    return KERNEL.replace("NAME", name).replace("BODY", body)


def source(statements: list[str]) -> str:
    """A program of kernels that have :data:`STATEMENTS` statements each."""
    starts = range(0, len(statements), STATEMENTS)
    kernels = [kernel_of(f"k{start}", statements[start : start + STATEMENTS]) for start in starts]
    return HEAD.replace("DECLARATIONS", DECLARATIONS) + "".join(kernels)


def split(ptx: str) -> tuple[str, dict[str, str]]:
    """PTX without its kernels, and the kernels by their names."""
    parts = re.split(r"^(?=\.visible \.entry |\.func |\.visible \.func |\t\.file)", ptx, flags=re.MULTILINE)
    kernels = {entry[1]: part for part in parts if (entry := re.match(r"\.visible \.entry (\w+)", part))}
    return "".join(part for part in parts if part not in kernels.values()), kernels


def code(ptx: str) -> str:
    """PTX without lines that name its compiler, its target, and places in the source."""
    return re.sub(r"^(//|\.version |\.target |\t\.loc|\t\.file|\$L__tmp).*$", "", ptx, flags=re.MULTILINE)


HAS_RUN: set[tuple[str, str]] = set()
"""Kernels that ran, each with what its program has besides kernels: those of several compilers and targets may be the
same."""


@pytest.mark.slow
@pytest.mark.one_in(40)
@pytest.mark.parametrize(
    ("cuda", "arch"), [(13, 75), (13, 89), (13, 90), (13, 120), (12, 70), (12, 75), (12, 89), (12, 90), (12, 120)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_intrinsics_runs(family: str, cuda: int, arch: int) -> None:
    first, statements = FAMILIES[family]
    if arch < first:
        pytest.skip(f"needs compute capability {first / 10}")
    name = f"compute_{arch}{'a' if arch >= 90 else ''}"
    ptx = compile_ptx(source(statements), "--device-int128", arch=name, cuda=cuda)
    shared, kernels = split(ptx)
    assert len(kernels) == -(-len(statements) // STATEMENTS)
    keys = {kernel: (code(shared), code(text)) for kernel, text in kernels.items()}
    new = [kernel for kernel, key in keys.items() if key not in HAS_RUN]
    if not new:
        return
    device = Device(shared + "".join(kernels[kernel] for kernel in new))
    numbers = np.random.default_rng(7).integers(0x3F000000, 0x40000000, 8192).astype(np.uint32)
    for kernel in new:
        out, scratch = np.zeros((STATEMENTS * 2 + 64) * 1024, np.uint8), np.zeros(1 << 14, np.uint8)
        device.run(1, 32, out, numbers.view(np.uint8), scratch, kernel=kernel)
        start = int(kernel[1:])
        assert out.any() == any("KEEP" in statement for statement in statements[start : start + STATEMENTS])
        HAS_RUN.add(keys[kernel])
