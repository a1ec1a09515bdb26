"""Refused plans: hostile texts, mistakes, and limits. Each is an error with a line, never a traceback."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kernelforge.candidate import PlanLimits, parse_plan
from kernelforge.errors import PlanError
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((6, 4), DType.FLOAT32)
TAIL = "    k[1, 1](x, out)\n    return out\n"


def refusal(text: str, *inputs: Any, limits: PlanLimits | None = None) -> PlanError:
    with pytest.raises(PlanError) as caught:
        parse_plan(text).resolve(inputs or (X,), {"a": X}, {"n": 1}, limits=limits, library=("topk",))
    return caught.value


def body(*lines: str) -> str:
    return "def forward(x):\n    out = empty_like(x)\n" + "".join(f"    {line}\n" for line in lines) + TAIL


HOSTILE = {
    "dunder class": body("a = x.__class__"),
    "dunder of shape": body("a = x.shape.__class__.__bases__"),
    "dunder of dtype": body("a = x.dtype.__init__.__globals__"),
    "dtype value": body("a = x.dtype.value"),
    "import function": body("a = __import__('os')"),
    "import statement": "import os\n" + body("a = 1"),
    "import in forward": body("from os import system"),
    "open": body("a = open('/etc/passwd')"),
    "eval": body("eval('1')"),
    "exec": body("exec('1')"),
    "compile": body("compile('1', '', 'eval')"),
    "getattr": body("a = getattr(x, 'storage')"),
    "type": body("a = type(x)"),
    "globals": body("a = globals()"),
    "vars": body("a = vars(x)"),
    "print": body("print(1)"),
    "breakpoint": body("breakpoint()"),
    "builtins by name": body("a = __builtins__"),
    "internal slot": body("a = x.storage"),
    "lambda": body("a = lambda: 1"),
    "lambda in default": "def forward(x, f=(lambda: 1)):\n    out = empty_like(x)\n" + TAIL,
    "walrus": body("a = (b := 1)"),
    "f-string attribute": body("a = f'{x.__class__}'"),
    "f-string of a tensor": body("a = f'{x}'"),
    "f-string spec": body("a = f'{1:>1000000000}'"),
    "f-string nested spec": body("a = f'{1:{2}}'"),
    "f-string conversion": body("a = f'{1!r}'"),
    "f-string debug": body("a = f'{out=}'"),
    "f-string call": body("a = f'{open(1)}'"),
    "f-string lambda": body("a = f'{(lambda: 1)()}'"),
    "f-string in its own quotes": body("a = f'{attrs['n']}'"),
    "f-string over lines": body("a = f'''{", "1}'''"),
    "f-string that breaks Python's tokenizer": body("a = f'{(f'{1=", "}'", "f'{:'"),
    "raw string": body("a = r'x'"),
    "long prefix": body("a = fffff'x'"),
    "format method": body("a = '{0.__class__}'.format(x)"),
    "percent format": body("a = '%s' % 1"),
    "bytes": body("a = b'x'"),
    "complex": body("a = 1j"),
    "ellipsis": body("a = x[...]"),
    "decorator": "@staticmethod\n" + body("a = 1"),
    "global": body("global a"),
    "nonlocal": body("nonlocal a"),
    "async def": "async " + body("a = 1"),
    "async comprehension": body("a = [i async for i in range(3)]"),
    "await": body("await x"),
    "class": "class A:\n    pass\n" + body("a = 1"),
    "try": body("try:", "    a = 1", "except:", "    a = 2"),
    "with": body("with x:", "    a = 1"),
    "del": body("del out"),
    "yield": body("yield 1"),
    "yield in expression": body("a = [(yield)]"),
    "while": body("while True:", "    pass"),
    "match": body("match 1:", "    case _:", "        a = 1"),
    "raise": body("raise x"),
    "type alias": body("type A = int") if sys.version_info >= (3, 12) else body("a: int = 1"),
    "annotation": "def forward(x: __import__('os')):\n    out = empty_like(x)\n" + TAIL,
    "return annotation": "def forward(x) -> open('f'):\n    out = empty_like(x)\n" + TAIL,
    "annotated variable": body("a: open('f') = 1"),
    "varargs": "def forward(*x):\n    out = empty_like(x[0])\n" + TAIL,
    "kwargs": "def forward(x, **k):\n    out = empty_like(x)\n" + TAIL,
    "default that calls": "def forward(x, y=open('f')):\n    out = empty_like(x)\n" + TAIL,
    "double star call": body("a = max(**x)"),
    "double star launch": body("k[1, 1](**x)"),
    "dictionary": body("a = {1: 2}"),
    "set": body("a = {1, 2}"),
    "closure": body("def inner():", "    return x"),
    "subscript store": body("out[0] = 1"),
    "attribute store": body("x.shape = 1"),
    "starred store of attribute": body("a, *x.shape = (1, 2)"),
    "function as value": body("a = min"),
    "function in a tuple": body("a = (min,)[0](1, 2)"),
    "rebind a function": body("min = 1"),
    "rebind a dtype": body("float32 = 1"),
    "rebind through a parameter": "def forward(empty):\n    out = empty_like(empty)\n" + TAIL,
    "rebind through a helper": "def min(a):\n    return a\n" + body("a = min(1)"),
    "dunder name": body("__a = 1"),
    "calling a variable": body("a = 1", "b = a(1)"),
    "calling a number": body("a = 1(2)"),
    "calling forward": body("a = forward(x)"),
    "kernel named like a function": body("min[1, 1](x)"),
    "kernel with dunder": body("__k[1, 1](x)"),
    "setup": "def setup(w):\n    return w\n" + body("a = prepared"),
    "top-level launch": "k[1, 1]()\n" + body("a = 1"),
    "top-level allocation": "A = empty(3)\n" + body("a = 1"),
    "top-level weight": "A = w['a']\n" + body("a = 1"),
    "top-level helper": "def f():\n    return 1\nA = f()\n" + body("a = 1"),
    "top-level if": "if True:\n    A = 1\n" + body("a = 1"),
    "homoglyph": body("а = 1"),
    "full-width name": body("ｏｐｅｎ = 1"),
    "identity of values": body("a = 1 is 1"),
    "bitwise": body("a = 1 | 2"),
    "number glued to a word": body("a = 1if 1else 2"),
    "shift": body("a = 1 << 100000000"),
    "invert": body("a = ~1"),
    "matmul": body("a = x @ x"),
    "string repeat": body("a = 'a' * 1000000000"),
    "sequence repeat": body("a = (1,) * 1000000000"),
    "string index": body("a = 'abc'[0]"),
    "string method": body("a = 'abc'.upper()"),
    "kernel name with a semicolon": body("kernel('k;')[1, 1](x)"),
    "kernel name with a quote": body("kernel('k<\"a\">')[1, 1](x)"),
    "kernel name with a brace": body("kernel('k<int>{}')[1, 1](x)"),
    "kernel name over two lines": body('kernel("""k<', '>""")[1, 1](x)'),
    "kernel name that closes": body("kernel('k<1)(2>')[1, 1](x)"),
    "empty kernel name": body("kernel('')[1, 1](x)"),
    "long kernel name": body(f"kernel('k<{'1' * 300}>')[1, 1](x)"),
    "kernel of an int": body("kernel(1)[1, 1](x)"),
    "backslash in a string": body("a = '\\x00'"),
    "NUL byte": body("a = 1\0"),
    "form feed": body("a = 1\x0c"),
    "surrogate": body("a = '\ud800'"),
    "byte order mark": "\ufeff" + body("a = 1"),
    "dollar": body("a = $"),
    "unclosed bracket": body("a = (1"),
    "unclosed string": body("a = 'x"),
    "unclosed docstring": body('"""x'),
    "bad indentation": body("a = 1", "  b = 2"),
    "tabs and spaces": "def forward(x):\n        a = 1\n\tb = 2\n",
    "empty": "",
    "only a comment": "# nothing",
    "prose": "Here is the plan you asked for!",
    "two forwards": body("a = 1") + body("b = 1"),
    "tensor as a truth": body("if x:", "    pass"),
    "tensor in a loop": body("for a in x:", "    pass"),
    "tensor compared": body("a = x == x"),
    "tensor in arithmetic": body("a = x + 1"),
    "no effect": body("x.shape"),
    "launch as a value": body("a = k[1, 1](x)"),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_the_language_lacks_is_refused(text: str) -> None:
    assert str(refusal(text))


DEEP = {
    "parentheses": "(" * 10_000,
    "balanced parentheses": "(" * 10_000 + ")" * 10_000,
    "brackets": "[" * 10_000,
    "braces": "{" * 10_000,
    "mixed brackets": "([{" * 5_000,
    "calls": "f(" * 10_000 + ")" * 10_000,
    "subscripts": "a[" * 10_000 + "]" * 10_000,
    "moderate parentheses": "(" * 200 + "1" + ")" * 200,
    "braces that backtrack": "{" * 23 + ":",
    "lambdas": "lambda: " * 5_000 + "1",
    "minus": "-" * 30_000 + "1",
    "not": "not " * 10_000 + "1",
    "sum": "1" + "+1" * 30_000,
    "power": "1" + "**1" * 20_000,
    "attributes": "x" + ".a" * 20_000,
    "conditionals": "1 if 1 else " * 4_000 + "1",
    "comparisons": "1" + "<1" * 30_000,
    "or": "1" + " or 1" * 10_000,
    "commas": "1," * 30_000,
    "f-strings": "f'" + "{" * 5_000 + "}" * 5_000 + "'",
    "f-string brackets": "f'{" + "(" * 150 + ")" * 150 + "}'",
    "f-string sum": "f'{1" + "+1" * 900 + "}'",
    "huge decimal": "9" * 60_000,
    "huge hexadecimal": "0x" + "f" * 60_000,
    "long line": "'" + "a" * 1_000_000 + "'",
    "long word": "a" * 60_000,
}


@pytest.mark.parametrize("expression", DEEP.values(), ids=DEEP.keys())
def test_deep_and_long_text_is_refused_without_reaching_pythons_limits(expression: str) -> None:
    refusal(body("a = " + expression))


def test_deep_statements_are_refused() -> None:
    nested = "".join("    " * (level + 1) + "if True:\n" for level in range(90)) + "    " * 91 + "pass\n"
    refusal("def forward(x):\n" + nested + "    out = empty_like(x)\n" + TAIL)


def test_a_megabyte_of_newlines_or_comments_is_refused() -> None:
    refusal("\n" * 1_000_000)
    refusal("#\n" * 500_000)


def test_a_long_elif_chain_is_read() -> None:
    chain = ["if x.ndim == 9:", "    a = 0"]
    for number in range(300):
        chain += [f"elif x.ndim == {number + 10}:", f"    a = {number}"]
    with pytest.raises(PlanError, match="too deeply"):
        parse_plan(body(*chain)).resolve([X], {}, {})
    assert parse_plan(body(*chain[:200])).resolve([X], {}, {}).launches


BOMBS = {
    "nested loops": ["for i in range(60000):", "    for j in range(60000):", "        pass"],
    "long range": ["for i in range(10 ** 18):", "    pass"],
    "negative range": ["for i in range(0, -10 ** 18, -1):", "    pass"],
    "range of ranges": ["a = [range(65536) for i in range(65536)]", "b = [j for i in a for j in i]"],
    "comprehension": ["a = [0 for i in range(60000) for j in range(60000)]"],
    "filtered comprehension": ["a = [0 for i in range(60000) for j in range(60000) if False]"],
    "list doubling": ["a = [1]", "for i in range(64):", "    a = a + a"],
    "list doubling in place": ["a = [1]", "for i in range(64):", "    a += a"],
    "star doubling": ["a = (1,)", "for i in range(64):", "    a = (*a, *a)"],
    "string doubling": ["a = 'a'", "for i in range(64):", "    a = a + a"],
    "f-string doubling": ["a = 'a'", "for i in range(64):", "    a = f'{a}{a}'"],
    "results again and again": ["a = [empty(1) for i in range(64)]", "for i in range(2000):",
                                "    library('topk', 3, out=a)"],
    "nested doubling compared": ["a = (1,)", "for i in range(60):", "    a = (a, a)", "b = a == (a, a)"],
    "shared doubling compared": ["a = b = (1,)", "for i in range(14):", "    a, b = (a, a), (b, b)", "c = 0",
                                 "for i in range(1000):", "    c = a == b"],
    "squaring": ["a = 3", "for i in range(64):", "    a = a * a"],
    "power": ["a = 10 ** 10 ** 10"],
    "power of negative": ["a = (-10) ** 1000000"],
    "float power": ["a = 10.0 ** 400"],
    "complex power": ["a = (-1) ** 0.5"],
    "zero power": ["a = 0 ** -1"],
    "int of inf": ["a = int(inf)"],
    "int of nan": ["a = int(inf - inf)"],
    "next_pow2": ["a = next_pow2(2 ** 62 * 2)", "b = next_pow2(a * 2)"],
    "sum of a long range again and again": ["for i in range(60000):", "    a = sum(range(65536))"],
    "membership": ["for i in range(60000):", "    a = -1 in range(65536)"],
    "zip": ["for i in range(60000):", "    a = zip(range(65536), range(65536))"],
    "slices": ["a = tuple(range(65536))", "for i in range(60000):", "    b = a[1:]"],
    "unpacking": ["a = tuple(range(65536))", "for i in range(60000):", "    b, *c = a"],
    "launches": ["for i in range(60000):", "    k[1, 1](x)"],
    "memsets": ["for i in range(60000):", "    a = zeros((1,))"],
    "arguments": ["a = [out for i in range(5000)]", "k[1, 1](*a)"],
    "arguments again and again": ["a = [out for i in range(4000)]", "for i in range(20000):", "    k[1, 1](*a)"],
    "workspace": ["a = [zeros((1 << 0, 10 ** 9)) for i in range(18)]"],
    "workspace at once": ["a = [empty(10 ** 9) for i in range(18)]", "k[1, 1](*a)"],
    "two terabytes": ["a = empty((500000, 1000000))"],
    "beyond memory": ["a = empty((10 ** 18, 10 ** 18))"],
    "many dimensions": ["a = empty([1 for i in range(100)])"],
    "view of many dimensions": ["a = x.view(*[1 for i in range(100)])"],
}  # fmt: skip


@pytest.mark.parametrize("lines", BOMBS.values(), ids=BOMBS.keys())
def test_nothing_grows_or_runs_without_bound(lines: list[str]) -> None:
    refusal(body(*lines))


def test_nested_results_are_flattened_at_a_price() -> None:
    text = "def forward(x):\n    k[1, 1](x)\n    a = (x,)\n    for i in range(60):\n        a = (a, a)\n    return a\n"
    assert "nested" in str(refusal(text))


def test_helpers_that_double_are_bounded_by_steps() -> None:
    helpers = "def h0():\n    return 1\n" + "".join(
        f"def h{i}():\n    return h{i - 1}() + h{i - 1}()\n" for i in range(1, 23)
    )
    assert "steps" in str(refusal(helpers + body("a = h22()")))


def test_a_long_chain_of_helpers_is_refused() -> None:
    helpers = "def h0():\n    return 1\n" + "".join(f"def h{i}():\n    return h{i - 1}()\n" for i in range(1, 40))
    assert "24 deep" in str(refusal(helpers + body("a = h39()")))


def test_deep_expressions_in_deep_helpers_do_not_overflow_pythons_stack() -> None:
    deep = "-(0 + " * 22 + "h{}(a)" + ")" * 22
    helpers = "def h0(a):\n    return a\n" + "".join(
        f"def h{i}(a):\n    return {deep.format(i - 1)}\n" for i in range(1, 23)
    )
    assert "too deeply" in str(refusal(helpers + body("a = h22(1)")))


@pytest.mark.parametrize(
    "helpers",
    [
        "def f(a):\n    return f(a)\n",
        "def f(a):\n    return g(a)\ndef g(a):\n    return f(a)\n",
        "def f(a):\n    return [g(b) for b in range(2)]\ndef g(a):\n    return h(a)\ndef h(a):\n    return f(a)\n",
    ],
)
def test_recursion_is_named_before_anything_runs(helpers: str) -> None:
    with pytest.raises(PlanError, match="helpers cannot call themselves: f ->"):
        parse_plan(helpers + body("a = 1"))


MISTAKES = [
    (["k[0, 32](x, out)"], "the grid of k is (0, 1, 1): x must be at least 1"),
    (["k[(1, 70000), 32](x, out)"], "the grid of k is (1, 70000, 1): y must be at most 65,535"),
    (["k[(1, 1, 1, 1), 32](x, out)"], "the grid of k has 4 dimensions; it takes 1 to 3"),
    (["k[-1, 32](x, out)"], "the grid of k is (-1, 1, 1)"),
    (["k['a', 32](x, out)"], "the grid of k must be an int, got a string"),
    (["k[1, 0](x, out)"], "the block of k is (0, 1, 1): x must be at least 1"),
    (["k[1, (1, 1, 65)](x, out)"], "z must be at most 64"),
    (["k[1, (32, 33)](x, out)"], "1056 threads; the limit is 1024"),
    (["k[1, 32, -4](x, out)"], "k asks for -4 bytes of dynamic shared memory"),
    (["k[1, 32, 232449](x, out)"], "a block can have 0 to 232,448"),
    (["k[1](x, out)"], "k[...] takes grid, block and optionally bytes of dynamic shared memory; it got 1"),
    (["k[1, 2, 3, 4](x, out)"], "it got 4"),
    (["k[1:2, 3](x, out)"], "the plan language has no slices here"),
    (["k[3, 32](x, out, cluster=2)"], "the grid (3, 1, 1) of k is not a multiple of its cluster (2, 1, 1)"),
    (["k[16, 32](x, out, cluster=16)"], "16 blocks; the limit is 8"),
    (["k[1, 32](x, out, cooperative=1)"], "cooperative of k is True or False, not 1"),
    (["k[1, 32](x, out, stream=1)"], "a launch has no option 'stream'"),
    (["k[1, 32](x, 3)"], "argument 2 of k is a bare int, 3; say its type: i32(3)"),
    (["k[1, 32](x, 0.5)"], "argument 2 of k is a bare float, 0.5; say its type: f32(0.5)"),
    (["k[1, 32](x, True)"], "argument 2 of k is a bare bool, True; say its type: i32(1)"),
    (["k[1, 32](None)"], "argument 1 of k is None"),
    (["k[1, 32](x.shape)"], "argument 1 of k is a sequence"),
    (["k[1, 32](x.dtype)"], "argument 1 of k is a dtype"),
    (["a = i32(2147483648)"], "2147483648 does not fit i32: -2147483648 to 2147483647"),
    (["a = i64(2 ** 63)"], "does not fit i64"),
    (["a = i32(1.5)"], "the value of i32(...) must be an int, got the float 1.5; use // for whole division or int("),
    (["a = f32(1e39)"], "1e+39 does not fit f32"),
    (["a = f16(65520)"], "65520.0 does not fit f16"),
    (["a = bf16(3.4e38)"], "does not fit bf16"),
    (["a = i32(i32(1))"], "i32(...) of a value that is i32(...) already"),
    (["a = i32(1) + 1"], "+ cannot join a typed scalar and an int"),
    (["a = f32('1')"], "the value of f32(...) must be a number, got a string"),
    (["a = 1 // 0"], "division by zero: 1 // 0"),
    (["a = 1 / 0.0"], "division by zero: 1 / 0.0"),
    (["a = 1 % 0"], "division by zero: 1 % 0"),
    (["a = ceil_div(1, 0)"], "division by zero: ceil_div(1, 0)"),
    (["a = sqrt(-1)"], "sqrt of -1"),
    (["a = log2(0)"], "log2 of 0"),
    (["a = (1, 2)[2]"], "index 2 is out of range: the sequence has 2 items"),
    (["a = (1, 2)['a']"], "an index must be an int, got a string"),
    (["a = x.shape[5]"], "index 5 is out of range: the sequence has 2 items"),
    (["a = x[6]"], "index 6 is out of range: dimension 0 has 6 elements"),
    (["a = x[0, 0, 0]"], "3 indices for a tensor with 2 dimensions"),
    (["a = x[::2]"], "slices of a tensor have no step"),
    (["a = x[:, 0:2]"], "this slice is not contiguous"),
    (["a = x.view(5, 5)"], "24 elements cannot be viewed as (5, 5)"),
    (["a = x.view(-1, 7)"], "24 elements cannot be viewed as (-1, 7)"),
    (["a = x.view(-1, -1)"], "at most one -1"),
    (["a = x.size(2)"], "dimension 2 of a tensor with 2 dimensions"),
    (["a = empty((-1, 2))"], "the shape (-1, 2) has a negative extent"),
    (["a = empty((1.0, 2))"], "an extent of a shape must be an int, got the float 1.0"),
    (["a = empty((2,), dtype='float32')"], "dtype takes a name such as float32 or x.dtype, not a string"),
    (["a = empty((2,), float32, dtype=float32)"], "the dtype is given twice"),
    (["a = empty(2, device='cuda')"], "empty has no argument 'device'"),
    (["a = empty()"], "empty takes at least 1, got 0"),
    (["a = empty(2, dtype=float16, dtype=float32)"], "the argument 'dtype' is given twice"),
    (["k[1, 32](x, out, cluster=1, cluster=2)"], "the argument 'cluster' is given twice"),
    (["a = empty_like(3)"], "empty_like and zeros_like take a tensor, not an int"),
    (["a, b = (1, 2, 3)"], "3 values cannot be unpacked into 2 names"),
    (["a, *b, c = (1,)"], "1 values cannot be unpacked into 3 names"),
    (["a, b = 3"], "unpacking needs a sequence, got an int"),
    (["for a in 3:", "    pass"], "for needs a sequence, got an int"),
    (["for a in x:", "    pass"], "for i in range(x.shape[0])"),
    (["a = b"], "unknown name 'b'"),
    (["if x.ndim == 3:", "    b = 1", "a = b"], "'b' has no value yet"),
    (["a = min()"], "min takes at least 1, got 0"),
    (["a = min(())"], "min of an empty sequence"),
    (["a = max('a')"], "max needs a sequence, got a string"),
    (["a = range(1, 2, 0)"], "range with a step of 0"),
    (["a = zip((1,), (1, 2))"], "zip of sequences of different lengths: 1, 2"),
    (["a = 1 < 'a'"], "< compares numbers, not a string"),
    (["a = -x"], "the operand of - must be a number, got a tensor"),
    (["a = w['b']"], "w has no 'b'; it has 'a'"),
    (["a = w[0]"], "w[...] takes a name such as w['fc.weight'], not an int"),
    (["a = w[0:]"], "w[...] takes a name such as w['fc.weight'], not a slice"),
    (["*a = (1, 2)"], "a starred name stands among others"),
    (["a = [1 for *b in ((1,),)]"], "a starred name stands among others"),
    (["a = attrs['m']"], "attrs has no 'm'; it has 'n'"),
    (["assert False, 3"], "the message of assert is a string, not an int"),
    (["a = x.stride"], "the plan language has no attribute 'stride'; call it: .stride(...)"),
    (["a = x.shape()"], "the plan language has no method 'shape'"),
    (["x()"], "'x' is a variable, not a function; a kernel is launched as name[grid, block](arguments)"),
    (["out.append(x)"], "sequences never change; write outs += [value]"),
    (["x[1, 1](out)"], "only a kernel can be launched, this is a tensor; tensors are indexed, not launched"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_line(lines: list[str], message: str) -> None:
    error = refusal(body(*lines))
    assert message in str(error)
    assert error.line is not None
    assert str(error).startswith(f"line {error.line}: ")


def test_the_line_is_the_innermost_one_and_is_shown() -> None:
    text = "def half(n):\n\n    return 1 // n\n\n" + body("a = half(0)")
    error = refusal(text)
    assert error.line == 3
    assert str(error) == "line 3: division by zero: 1 // 0\n    return 1 // n"


RETURNS = [
    ("return x", "forward returns x, which it was given"),
    ("return x[1:]", "forward returns x, which it was given"),
    ("return w['a']", "forward returns w['a'], which it was given"),
    ("return out, out", "forward returns the same memory twice, in out"),
    ("return out[0:3], out[2:]", "forward returns the same memory twice, in out"),
    ("return", "forward returned nothing"),
    ("pass", "forward returned nothing"),
    ("return ()", "forward returned no tensor"),
    ("return 3", "forward returns tensors, not an int"),
    ("return out, None", "forward returns tensors, not None"),
]


@pytest.mark.parametrize(("statement", "message"), RETURNS)
def test_forward_returns_its_own_tensors(statement: str, message: str) -> None:
    text = f"def forward(x):\n    out = empty_like(x)\n    k[1, 1](x, out)\n    {statement}\n"
    assert message in str(refusal(text))


def test_a_plan_without_a_launch_is_refused() -> None:
    assert "launches no kernel" in str(refusal("def forward(x):\n    return zeros_like(x)\n"))


def test_a_plan_without_forward_is_refused() -> None:
    assert "no 'def forward(...)'" in str(refusal("def run(x):\n    return x\n"))


@pytest.mark.parametrize("signature", ["f(a, a)", "f(a, a=1)", "f(a, b, a)", "f(a=1, a=2)"])
def test_a_parameter_that_repeats_is_refused(signature: str) -> None:
    """Python's parser lets it through; only its compiler, which is not used, would refuse it."""
    error = refusal(f"def {signature}:\n    return a\n" + body("b = f(1)"))
    assert "f has two parameters 'a'" in str(error)
    assert error.line == 1


@pytest.mark.parametrize("inputs", [(X, X), ()])
def test_the_number_of_inputs_must_match(inputs: tuple[TensorSpec, ...]) -> None:
    text = "def forward(x):\n    out = empty_like(x)\n" + TAIL
    with pytest.raises(PlanError, match=rf"forward takes 1 arguments \(x\), the task gives {len(inputs)}"):
        parse_plan(text).resolve(inputs, {}, {})


def test_weights_are_no_parameter_of_forward() -> None:
    with pytest.raises(PlanError, match="w and attrs can be used without being parameters"):
        parse_plan("def forward(x, w, attrs):\n    out = empty_like(x)\n" + TAIL).resolve((X,), {}, {})


FIVES = "# tune: A = 1 | 2 | 3 | 4 | 5\n# tune: B = 1 | 2 | 3 | 4 | 5\n"
EIGHTS = "".join(f"# tune: {name} = 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8\n" for name in "ABCD")
TUNES = [
    ("# tune: A = ", "a tune line reads"),
    ("# tune: A = 1 | x", "a tune line reads"),
    ("# tune: A = 1.5", "a tune line reads"),
    ("# tune: A | B = 1", "a tune line reads"),
    ("# tune: 1A = 1", "a tune line reads"),
    ("# tune: A = 99999999999999999999999", "a tune line reads"),
    ("# tune: A = 1 | 1", "the values of A repeat"),
    ("# tune: A = 2147483648", "must fit an int of 32 bits"),
    ("# tune: A = 1\n# tune: A = 2", "A has two tune lines"),
    ("# tune: A = 1\nA = 2", "a tune name cannot be assigned"),
    ("# tune: min = 1 | 2", "'min' is a name of the plan language"),
    (EIGHTS + "# tune: E = 1 | 2", "8,192 combinations; the limit is 4,096"),
    ("# tune: A = 1 | 2\nassert A > 1, f'A is {A}'", "line 2: the first values break this assert: A is 1"),
    ("assert 1 > 2", "line 1: the first values break this assert: 1 > 2"),
    (
        EIGHTS + "# tune: E = 1 | 2\nassert A < 8",
        "the asserts allow 7,168 of 8,192 combinations of # tune: values; the limit is 4,096",
    ),
    (EIGHTS + "# tune: E = 1 | 2 | 3\nassert A < 2", "12,288 combinations; the limit is 8,192"),
    (FIVES + "X = sum(range(60000))\nassert A < 2", "takes more than 400,000 steps"),
    ("A = 2 ** 31", "the constant A = 2147483648 does not fit the constexpr int"),
    ("A = 1 // 0", "division by zero"),
    ("A = B\nB = 1", "'B' has no value yet"),
]


@pytest.mark.parametrize(("line", "message"), TUNES)
def test_malformed_tune_lines_and_constants_are_refused(line: str, message: str) -> None:
    assert message in str(refusal(line + "\n" + body("a = 1")))


def test_a_scalar_input_beyond_64_bits_is_refused() -> None:
    refusal("def forward(x):\n    k[1, 1](i64(x))\n    return empty(1)\n", 2**80)


def test_two_terabytes_of_workspace_are_refused_by_size_and_limit() -> None:
    message = str(refusal(body("big = empty((500000, 1000000))")))
    assert "asks for 2.0 TB of workspace; the limit is 68.7 GB" in message


def test_workspace_is_counted_together() -> None:
    lines = ["a = empty(10 ** 9)", "b = empty((2, 10 ** 9))", "k[1, 1](a, b)"]
    error = refusal(body(*lines), limits=PlanLimits(workspace_bytes=10 * 10**9))
    assert "the plan asks for 12.0 GB of workspace; the limit is 10.0 GB; the largest tensor is b with 8.0 GB" in str(
        error
    )
    assert error.line == 4
