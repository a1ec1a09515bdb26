"""References of the suite papers against plain loops, closed forms and identities in float64, at the ``tiny`` size."""

from __future__ import annotations

import cmath
import math
from collections import Counter
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tasks import reference_cases
from tests.tasks.reference_cases import softmax

module_of = partial(reference_cases.module_of, "papers")
run = partial(reference_cases.run, "papers")


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def log_bessel(kind: str, v: Any, x: Any) -> Any:
    return run(f"log_bessel_{kind}", torch.as_tensor(v), torch.as_tensor(x))[2][0]


X = np.array([0.1, 0.3, 1.0, 2.5, 7.0, 13.0, 30.0])


def test_second_kind_bessel_functions_of_half_orders_have_a_closed_form() -> None:
    # K_(1/2) and K_(3/2) are elementary, K_(v+1) = K_(v-1) + 2 v / x K_v is stable upwards (DLMF 10.29, 10.39).
    want = [np.log(math.pi / (2 * X)) / 2 - X, np.log(math.pi / (2 * X)) / 2 - X + np.log1p(1 / X)]
    for order in range(1, 39):
        want.append(want[-1] + np.log(2 * (order + 0.5) / X + np.exp(want[-2] - want[-1])))
    v, x = (each.ravel() for each in np.meshgrid(np.arange(40) + 0.5, X, indexing="ij"))
    np.testing.assert_allclose(log_bessel("k", v, x), np.concatenate(want), rtol=1e-12, atol=1e-12)


def test_both_kinds_of_bessel_functions_satisfy_their_wronskian() -> None:
    # I_v K_(v+1) + I_(v+1) K_v = 1 / x (DLMF 10.28.2).
    low, x = (each.ravel() for each in np.meshgrid([0.0, 0.25, 1.0, 3.7, 17.9, 38.5], X, indexing="ij"))
    first = log_bessel("i", low, x) + log_bessel("k", low + 1, x)
    second = log_bessel("i", low + 1, x) + log_bessel("k", low, x)
    np.testing.assert_allclose(np.exp(first) + np.exp(second), 1 / x, rtol=1e-11)


def exact_log_bessel(kind: str, v: float, x: float) -> float:
    """The logarithm by mpmath: K_v with as many digits more as it loses there, as a difference of first kinds."""
    with mpmath.workdps(40 if kind == "i" else 40 + int(math.hypot(v, x))):
        return float(mpmath.log(mpmath.re((mpmath.besseli if kind == "i" else mpmath.besselk)(v, x))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["i", "k"])
def test_bessel_functions_of_all_orders_are_mpmath_s(kind: str) -> None:
    # Both sides of the bound between series or integral and expansion, 36, and far beyond it.
    directions = [(0.0, 1.0), (0.02, 1.0), (0.7, 0.7), (1.0, 0.3), (1.0, 1e-3)]
    magnitudes = [1.0, 4.0, 20.0, 35.9, 36.1]
    points = [(m * a, m * b) for m in magnitudes for a, b in directions]
    if kind == "i":
        points += [(m * a, m * b) for m in (90.0, 2500.0, 2e4) for a, b in directions]
    v, x = (torch.tensor(values, dtype=torch.float64).unsqueeze(0) for values in zip(*points, strict=True))
    got = run(f"log_bessel_orders_{kind}", v, x)[2][0][0]
    want = np.array([exact_log_bessel(kind, *point) for point in points])
    np.testing.assert_allclose(got, want, rtol=3e-15, atol=3e-15)


def test_bessel_functions_of_large_orders_satisfy_their_wronskian() -> None:
    v, x = (torch.tensor([values], dtype=torch.float64) for values in ((400.0, 9e3, 2e4), (900.0, 30.0, 2e4)))
    i, following_i = (run("log_bessel_orders_i", order, x)[2][0] for order in (v, v + 1))
    k, following_k = (run("log_bessel_orders_k", order, x)[2][0] for order in (v, v + 1))
    np.testing.assert_allclose(np.exp(i + following_k) + np.exp(following_i + k), 1 / x, rtol=3e-10)


@pytest.mark.parametrize("size", ["hidden_tiny", "hidden_odd", "hidden_quad"])
def test_im2win_is_a_convolution(size: str) -> None:
    task, (x, filters), (got,) = run("im2win_convolution", size=size)
    columns = torch.from_numpy(filters).view(task.OUT_CHANNELS, task.IN_CHANNELS, task.KERNEL, task.KERNEL)
    want = F.conv2d(torch.from_numpy(x), columns.transpose(2, 3), stride=task.STRIDE)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-11)


def test_lstm_step_works_head_by_head() -> None:
    task, (wx, h, c), (h_next, c_next, gates) = run("flashrnn_lstm_step")
    recurrent, bias = task.w["recurrent"], task.w["bias"]
    for n in range(task.BATCH):
        for a in range(task.HEADS):
            i, f, z, o = (wx[n, a, q] + h[n, a] @ recurrent[a, q] + bias[a, q] for q in range(4))
            state = sigmoid(f) * c[n, a] + sigmoid(i) * np.tanh(z)
            np.testing.assert_allclose(c_next[n, a], state)
            np.testing.assert_allclose(h_next[n, a], sigmoid(o) * np.tanh(state))
            np.testing.assert_allclose(gates[n, a], [sigmoid(i), sigmoid(f), np.tanh(z), sigmoid(o)])


def test_gated_linear_attention_is_attention_with_decay() -> None:
    task, (q, k, v, logits, state), (got, last) = run("gated_linear_attention")
    decay = np.cumsum(np.log(sigmoid(logits)) / task.GATE_NORMALISER, axis=1)
    for head in range(task.HEADS):
        for t in range(task.CHUNK):
            want = (q[head, t] * np.exp(decay[head, t])) @ state[head]
            for s in range(t + 1):
                score = (q[head, t] * k[head, s] * np.exp(decay[head, t] - decay[head, s])).sum()
                want = want + score * v[head, s]
            np.testing.assert_allclose(got[head, t], want / math.sqrt(task.KEY_WIDTH))
        end = np.exp(decay[head, -1])[:, None] * state[head]
        for s in range(task.CHUNK):
            end += np.outer(k[head, s] * np.exp(decay[head, -1] - decay[head, s]), v[head, s])
        np.testing.assert_allclose(last[head], end)


def test_lstm_over_a_sequence_is_its_step_again_and_again() -> None:
    task, (wx, h, c), (hidden, cells, gates) = run("flashrnn_lstm")
    for n in range(task.BATCH):
        for a in range(task.HEADS):
            state, cell = h[n, a], c[n, a]
            for t in range(task.STEPS):
                before = (wx[n, t, a, q] + state @ task.w["recurrent"][a, q] + task.w["bias"][a, q] for q in range(4))
                i, f, z, o = before
                i, f, z, o = sigmoid(i), sigmoid(f), np.tanh(z), sigmoid(o)
                cell = f * cell + i * z
                state = o * np.tanh(cell)
                np.testing.assert_allclose(gates[n, t, a], [i, f, z, o])
                np.testing.assert_allclose(cells[n, t, a], cell)
                np.testing.assert_allclose(hidden[n, t, a], state)


def test_pararnn_solves_its_cell_linearised_about_the_states_so_far() -> None:
    task, (x, first), (got,) = run("pararnn_newton")
    inputs, a = torch.from_numpy(x), torch.from_numpy(task.w["recurrent"])

    def cell(h: torch.Tensor, t: int) -> torch.Tensor:
        z, r = torch.sigmoid(a[0] * h + inputs[:, t, 0]), torch.sigmoid(a[1] * h + inputs[:, t, 1])
        return (1 - z) * h + z * torch.tanh(a[2] * (r * h) + inputs[:, t, 2])

    states = [torch.zeros(task.BATCH, task.WIDTH, dtype=torch.float64)] * task.STEPS
    for _ in range(task.ITERATIONS):
        solved = [torch.from_numpy(first)]
        for t in range(task.STEPS):
            before = torch.from_numpy(first) if t == 0 else states[t - 1]
            value, change = torch.func.jvp(partial(cell, t=t), (before,), (solved[-1] - before,))[:2]
            solved.append(value + change)
        states = solved[1:]
    np.testing.assert_allclose(got, torch.stack(states, dim=1).numpy(), atol=1e-12)
    # As many iterations as steps are enough for the cell itself.
    task.model.iterations = task.STEPS
    h = torch.from_numpy(first)
    want = []
    for t in range(task.STEPS):
        h = cell(h, t)
        want.append(h)
    np.testing.assert_allclose(task.run(*task.tensors)[0], torch.stack(want, dim=1).numpy(), atol=1e-12)


def test_gated_linear_attention_over_chunks_is_a_recurrence() -> None:
    task, (q, k, v, logits, state), (got, last) = run("gated_linear_attention_chunks")
    assert task.LENGTH > 2 * task.CHUNK
    for t in range(task.LENGTH):
        gate = sigmoid(logits[:, t]) ** (1 / task.GATE_NORMALISER)
        state = gate[:, :, None] * state + k[:, t, :, None] * v[:, t, None, :]
        want = np.einsum("hk,hkv->hv", q[:, t], state) / math.sqrt(task.KEY_WIDTH)
        np.testing.assert_allclose(got[:, t], want, atol=1e-12)
    np.testing.assert_allclose(last, state, atol=1e-12)


def test_long_convolution_is_causal_and_squashes_its_filter() -> None:
    task, (u, k, skip), (got,) = run("flashbutterfly")
    squashed = np.sign(k) * np.maximum(np.abs(k) - task.LAMBDA, 0)
    for b in range(task.BATCH):
        for c in range(task.CHANNELS):
            for index in range(task.LENGTH):
                past = sum(squashed[c, j] * u[b, c, index - j] for j in range(index + 1))
                np.testing.assert_allclose(got[b, c, index], past + skip[c] * u[b, c, index], atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_dfloat11_decodes_a_stream_read_bit_by_bit(seed: int) -> None:
    task, (stream, first_bit, packed, _, _), (got,) = run("dfloat11_decode", seed=seed)
    lengths = task.code_lengths().tolist()
    assert sum(2.0**-length for length in lengths) == 1.0, "the code is complete"
    book, code, width = {}, 0, lengths[0]
    for length, exponent in zip(lengths, task.exponents().tolist(), strict=True):
        code, width = code << (length - width), length
        book[format(code, f"0{length}b")] = exponent
        code += 1
    text = "".join(format(byte, "08b") for byte in stream.tolist())
    index = 0
    for block in range(task.BLOCKS):
        assert first_bit[block] == index
        for element in range(task.PER_BLOCK):
            length = next(n for n in range(2, task.LONGEST + 1) if text[index : index + n] in book)
            exponent = book[text[index : index + length]]
            index += length
            rest = int(packed[block, element])
            assert got[block, element].item() & 0xFFFF == (rest >> 7) << 15 | exponent << 7 | rest & 127
    assert index <= len(text) - 16, "the reader never looks beyond the stream"
    assert len(book) == len(set(book.values())) == len(lengths)


def test_dfloat11_bits_are_those_of_bfloat16() -> None:
    _, (_, _, packed, _, _), (got,) = run("dfloat11_decode", size="small")
    weights = torch.from_numpy(got).view(torch.bfloat16).double()
    finite = torch.isfinite(weights)
    assert (~finite).any()
    assert (weights.signbit().numpy() == (packed >= 128)).all()
    assert set(torch.frexp(weights[finite & (weights != 0)])[1].tolist()) <= set(range(-140, 129))


def codes_of(task: Any) -> dict[str, int]:
    """The exponent behind each code of the DFloat11 tasks with a hierarchy of tables, written out as bits."""
    book, code, width = {}, 0, task.SHORTEST
    for length, exponent in zip(task.code_lengths().tolist(), task.exponents().tolist(), strict=True):
        code, width = code << (length - width), length
        book[format(code, f"0{length}b")] = exponent
        code += 1
    assert code == 2**task.LONGEST, "the code is complete"
    assert len(book) == len(set(book.values()))
    return book


def decoded(task: Any, stream: Any, count: int) -> list[tuple[int, int]]:
    """The first bits of a stream's codes with their exponents, read bit by bit."""
    book, text, index, read = codes_of(task), "".join(format(byte, "08b") for byte in stream), 0, []
    for _ in range(count):
        length = next(n for n in range(task.SHORTEST, task.LONGEST + 1) if text[index : index + n] in book)
        read.append((index, book[text[index : index + length]]))
        index += length
    assert index <= len(text) - 64
    return read


@pytest.mark.parametrize("seed", range(3))
def test_two_phase_decoding_is_that_of_a_stream_read_bit_by_bit(seed: int) -> None:
    task, (stream, gaps, first, packed, tables, _), (got,) = run("dfloat11_two_phase", seed=seed)
    read = decoded(task, stream.tolist(), task.WEIGHTS)
    for (_, exponent), rest, bits in zip(read, packed.tolist(), got.tolist(), strict=True):
        assert bits & 0xFFFF == (rest >> 7) << 15 | exponent << 7 | rest & 127
    # A thread's gap leads to a code that begins in its bytes, and a block's first weight is the first of these.
    begins = [bit for bit, _ in read]
    for block, thread in np.ndindex(gaps.shape):
        start = 64 * (block * task.THREADS + thread)
        later = [bit for bit in begins if bit >= start]
        assert not later or start + int(gaps[block, thread]) == later[0]
        assert thread or first[block] == task.WEIGHTS - len(later)
    assert len(tables) > 3


def test_dfloat11_product_is_that_of_the_decoded_rows() -> None:
    task, (x, stream, _, packed, _, _), (got,) = run("dfloat11_gemv")
    for row in range(task.OUT):
        read = decoded(task, stream[row].tolist(), task.IN)
        want = 0.0
        for (_, exponent), rest, value in zip(read, packed[row].tolist(), x.tolist(), strict=True):
            # No exponent is 0 but that of subnormal numbers.
            size = math.ldexp((rest & 127) + 128 * (exponent > 0), max(exponent, 1) - 134)
            want += (-size if rest >> 7 else size) * value
        np.testing.assert_allclose(got[row], want, rtol=1e-12)


def spectrum(frame: Any) -> list[complex]:
    """One frame's discrete Fourier transform under a periodic Hann window."""
    points = len(frame)
    shaped = [(0.5 - 0.5 * math.cos(2 * math.pi * n / points)) * frame[n] for n in range(points)]
    return [
        sum(shaped[n] * cmath.exp(-2j * math.pi * k * n / points) for n in range(points))
        for k in range(points // 2 + 1)
    ]


def test_stft_is_the_transform_of_each_windowed_frame() -> None:
    task, (x,), (real, imaginary) = run("stft")
    frames = (task.SAMPLES - task.FRAME) // task.HOP + 1
    assert real.shape == imaginary.shape == (task.BATCH, frames, task.FRAME // 2 + 1)
    for b in range(task.BATCH):
        for t in range(frames):
            want = np.array(spectrum(x[b, t * task.HOP : t * task.HOP + task.FRAME]))
            # The window is stored in float32.
            np.testing.assert_allclose(real[b, t] + 1j * imaginary[b, t], want, atol=1e-6)


def test_mel_spectrogram_reflects_its_ends_and_adds_up_triangles() -> None:
    task, (x,), (got,) = run("mel_spectrogram")
    margin, half = task.FRAME // 2, task.RATE / 2
    top = 2595 * math.log10(1 + half / 700)
    edges = [700 * (10 ** (top * m / (task.MELS + 1) / 2595) - 1) for m in range(task.MELS + 2)]
    for b in range(task.BATCH):
        padded = [*x[b, margin:0:-1], *x[b], *x[b, -2 : -2 - margin : -1]]
        for t in range(got.shape[2]):
            power = [abs(value) ** 2 for value in spectrum(padded[t * task.HOP : t * task.HOP + task.FRAME])]
            for m in range(task.MELS):
                low, centre, high = edges[m : m + 3]
                total = 0.0
                for k, strength in enumerate(power):
                    f = half * k / (len(power) - 1)
                    total += max(min((f - low) / (centre - low), (high - f) / (high - centre)), 0.0) * strength
                np.testing.assert_allclose(got[b, m, t], math.log10(max(total, 1e-10)), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_block_sparse_attention_sees_its_blocks_alone(seed: int) -> None:
    task, (q, k, v, seen), (got,) = run("block_sparse_attention", seed=seed)
    for head in range(task.HEADS):
        for i in range(task.QUERY_BLOCKS * task.BLOCK):
            keys = [j for j in range(task.KEY_BLOCKS * task.BLOCK) if seen[head, i // task.BLOCK, j // task.BLOCK]]
            powers = [math.exp(q[head, i] @ k[head, j] / math.sqrt(task.WIDTH)) for j in keys]
            want = sum((p * v[head, j] for p, j in zip(powers, keys, strict=True)), np.zeros(task.WIDTH))
            np.testing.assert_allclose(got[head, i], want / (sum(powers) or 1.0))


def nibbles(packed: Any) -> Any:
    both = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1).astype(np.int64)
    return np.where(both > 7, both - 16, both)


def kept_by_sale(task: Any, head: int, q4: Any, k4: Any, q_exponent: Any, k_exponent: Any) -> list[list[int]]:
    """Key blocks that each block of queries sees, by loops over pairs of places."""
    q, k = nibbles(q4[head]), nibbles(k4[head])

    def estimate(i: int, j: int) -> float:
        return math.ldexp(int(q[i] @ k[j]), int(q_exponent[head, i]) + int(k_exponent[head, j]))

    kept = []
    for own in range(task.BLOCKS):
        always = {block for block in range(own + 1) if block < task.SINK or block > own - task.LOCAL}
        seen = set(always)
        for i in range(own * task.BLOCK, (own + 1) * task.BLOCK):
            scores = {j: estimate(i, j) for j in range(i + 1)}
            level = max(score for j, score in scores.items() if j // task.BLOCK in always)
            seen |= {j // task.BLOCK for j, score in scores.items() if score >= level - task.THRESHOLD}
        kept.append(sorted(seen))
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_sale_quantises_places_without_their_mean(seed: int) -> None:
    task = run("sale_quantisation", seed=seed)[0]
    drawn = task.module.get_inputs()
    *quantised, offset = (output.numpy() for output in task.module.Model()(*drawn))
    halves, means = 0, []
    for x, packed, exponents in zip(drawn, quantised[:2], quantised[2:], strict=True):
        for head, numbers in enumerate(x.double().numpy()):
            # Whole multiples of 2^-24: Python's integers add them exactly.
            sums = [sum(int(value * 2**24) for value in column) for column in numbers.T]
            means.append(np.array([total / 2**24 / task.LENGTH for total in sums], dtype=np.float32))
            smooth = numbers.astype(np.float32) - means[-1]
            for i, row in enumerate(smooth.tolist()):
                most = max(2.0**-60, *map(abs, row))
                exponent = next(e for e in range(-70, 20) if most <= 7 * 2.0**e)
                assert exponents[head, i] == exponent
                # Python rounds halves to even.
                scaled = [value * 2.0**-exponent for value in row]
                assert nibbles(packed[head, i]).tolist() == [round(value) for value in scaled]
                halves += sum(value % 1 == 0.5 for value in scaled)
            if x is drawn[1]:
                np.testing.assert_allclose(offset[head], smooth @ means[head], rtol=1e-5, atol=1e-5)
    assert halves
    assert quantised[2][0, 0] == -62


def test_sale_estimates_scores_from_4_bits_and_an_offset() -> None:
    task, (q, k), (q4, k4, q_exponent, k_exponent, offset) = run("sale_quantisation", size="hidden_quad")
    for head in range(task.HEADS):
        q_numbers, k_numbers = (
            nibbles(packed[head]) * 2.0 ** exponents[head][:, None].astype(float)
            for packed, exponents in ((q4, q_exponent), (k4, k_exponent))
        )
        estimate = q_numbers @ k_numbers.T + offset[head]
        exact = q[head] @ (k[head] - k[head].mean(axis=0)).T
        # Of 4 bits half a step is 1/14 of the largest number of a place, or 1/7 where the power of two is above it.
        bound = np.outer(abs(q[head]).max(axis=1), abs(k[head]).max(axis=1)) * task.WIDTH / 7
        assert (abs(estimate - exact) < bound).mean() > 0.99
        assert np.corrcoef(estimate.ravel(), exact.ravel())[0, 1] > 0.98


def test_sale_keeps_the_blocks_whose_estimate_comes_near_the_sink_s() -> None:
    task, inputs, (index, counts) = run("sale_selection")
    numbers = set()
    for head in range(task.HEADS):
        for own, kept in enumerate(kept_by_sale(task, head, *inputs)):
            assert index[head, own].tolist() == kept + [-1] * (task.BLOCKS - len(kept))
            assert counts[head, own] == len(kept)
            numbers.add(own + 1 - len(kept))
    assert len(numbers) > 2


def test_sale_attends_to_the_blocks_that_it_keeps() -> None:
    task, (q, k, v, *quantised), (got,) = run("sale_attention")
    for head in range(task.HEADS):
        kept = kept_by_sale(task, head, *quantised)
        for i in range(task.BLOCKS * task.BLOCK):
            keys = [j for j in range(i + 1) if j // task.BLOCK in kept[i // task.BLOCK]]
            weights = softmax(k[head, keys] @ q[head, i] / math.sqrt(task.WIDTH))
            np.testing.assert_allclose(got[head, i], weights @ v[head, keys], atol=1e-12)


@pytest.mark.parametrize("size", ["hidden_tiny", "hidden_quad"])
def test_bleu_counts_are_those_of_counters(size: str) -> None:
    task, (candidates, lengths, references, reference_lengths), (matches, totals, closest) = run(
        "bleu_counts", size=size
    )

    def ngrams(tokens: list[int], order: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))

    for b in range(task.BATCH):
        candidate = candidates[b, : lengths[b]].tolist()
        texts = [references[b, r, : reference_lengths[b, r]].tolist() for r in range(task.REFERENCES)]
        for order in range(1, 5):
            own = ngrams(candidate, order)
            most: Counter[tuple[int, ...]] = Counter()
            for text in texts:
                most |= ngrams(text, order)
            assert matches[b, order - 1] == (own & most).total()
            assert totals[b, order - 1] == own.total()
        assert closest[b] == min((len(text) for text in texts), key=lambda n: (abs(n - len(candidate)), n))
    assert matches[:, 3].any()


def test_splats_are_composited_front_to_back() -> None:
    task, (centre, root, logit, colour), (colours, remaining) = run("splat_compositing")
    for tile in range(task.TILES):
        for row in range(task.TILE):
            for column in range(task.TILE):
                light, seen = 1.0, np.zeros(3)
                for s in range(task.SPLATS):
                    r00, r10, r11 = root[tile, s]
                    lower = np.array([[r00, 0.0], [r10, r11]])
                    covariance = lower @ lower.T + task.BLUR * np.eye(2)
                    away = np.array([column + 0.5, row + 0.5]) - centre[tile, s]
                    power = away @ np.linalg.inv(covariance) @ away
                    alpha = min(0.99, sigmoid(logit[tile, s]) * math.exp(-power / 2))
                    after = light * (1 - alpha)
                    seen += colour[tile, s] * (max(light, task.FLOOR) - max(after, task.FLOOR))
                    light = after
                np.testing.assert_allclose(colours[tile, row * task.TILE + column], seen, atol=1e-12)
                np.testing.assert_allclose(remaining[tile, row * task.TILE + column], max(light, task.FLOOR))


def test_hash_encoding_interpolates_the_eight_corners() -> None:
    points = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task = module_of("hash_encoding")
    tables = torch.randn(task.LEVELS, task.SLOTS, task.FEATURES, generator=torch.Generator().manual_seed(1))
    _, (points, tables), (got,) = run("hash_encoding", points, tables)
    for n in range(task.POINTS):
        for level in range(task.LEVELS):
            index = points[n] * math.floor(task.COARSEST * 2 ** (level / 4))
            want = np.zeros(task.FEATURES)
            for corner in np.ndindex(2, 2, 2):
                slot, weight = 0, 1.0
                for axis in range(3):
                    cell = math.floor(index[axis])
                    slot ^= (cell + corner[axis]) * task.PRIMES[axis] % 2**32
                    weight *= 1 - abs(index[axis] - cell - corner[axis])
                want += weight * tables[level, slot % task.SLOTS]
            np.testing.assert_allclose(got[n, level * task.FEATURES : (level + 1) * task.FEATURES], want, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_averaged_and_their_maximum_is_taken(seed: int) -> None:
    task, (features, neighbours), (mean, largest) = run("neighbour_gather", seed=seed)
    for node in range(task.NODES):
        rows = [features[other] for other in neighbours[node] if other >= 0] or [np.zeros(task.WIDTH)]
        np.testing.assert_allclose(mean[node], np.mean(rows, axis=0), atol=1e-12)
        np.testing.assert_allclose(largest[node], np.max(rows, axis=0))


@pytest.mark.parametrize("seed", [0, 1])
def test_every_sample_of_an_edge_moves_both_of_its_rows(seed: int) -> None:
    task, (vertex, context, source, other), (loss,) = run("node_embedding_step", seed=seed)
    near, far, want = vertex.copy(), context.copy(), np.zeros(task.EDGES)
    for e, j in np.ndindex(other.shape):
        score, y = vertex[source[e]] @ context[other[e, j]], float(j == 0)
        want[e] -= math.log(sigmoid(score) if y else sigmoid(-score))
        near[source[e]] -= task.RATE * (sigmoid(score) - y) * context[other[e, j]]
        far[other[e, j]] -= task.RATE * (sigmoid(score) - y) * vertex[source[e]]
    assert len(set(source)) < task.EDGES
    np.testing.assert_allclose(loss, want, rtol=1e-9)
    np.testing.assert_allclose(task.after[0], near, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(task.after[1], far, rtol=1e-9, atol=1e-12)


def pcg(value: int) -> int:
    state = (value * 747796405 + 2891336453) % 2**32
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 % 2**32
    return (word >> 22) ^ word


def test_negative_samples_are_drawn_by_degree_to_three_quarters() -> None:
    task, (threshold, alias, seed), (out,) = run("negative_samples")
    for e, j in np.ndindex(out.shape):
        first = pcg(e * task.NEGATIVES + j + int(seed[0]))
        slot = first * task.NODES // 2**32
        assert out[e, j] == (slot if pcg(first) // 256 / 2**24 < threshold[slot] else alias[slot])
    degree = torch.tensor([1.0, 2.0, 5.0, 20.0], dtype=torch.float64)
    weight = degree**0.75
    tables = task._alias_table(weight)
    drawn = task.Model(20_000, 4)(*tables, torch.tensor([3]))
    share = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    np.testing.assert_allclose(share, weight / weight.sum(), atol=0.006)  # over three standard deviations of each


def affine_alignment(first: Any, second: Any, scores: Any, gap_open: int, gap_extend: int) -> int:
    """The best local alignment's score, by the three recurrences."""
    h = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    e, f = h - 10**6, h - 10**6
    for i, a in enumerate(first, 1):
        for j, b in enumerate(second, 1):
            e[i, j] = max(h[i, j - 1] - gap_open, e[i, j - 1] - gap_extend)
            f[i, j] = max(h[i - 1, j] - gap_open, f[i - 1, j] - gap_extend)
            h[i, j] = max(0, h[i - 1, j - 1] + scores[a, b], e[i, j], f[i, j])
    return int(h.max())


@pytest.mark.parametrize("size", ["hidden_tiny", "small"])
def test_alignment_scores_are_those_of_gotoh_s_recurrences(size: str) -> None:
    task, (first, second, lengths, scores, *_), (best,) = run("smith_waterman_affine", size=size)
    for p in range(task.PAIRS):
        want = affine_alignment(first[p], second[p, : lengths[p]], scores, task.GAP_OPEN, task.GAP_EXTEND)
        assert best[p] == want


@pytest.mark.parametrize("size", ["hidden_tiny", "hidden_odd"])
def test_strided_blocks_are_packed_byte_by_byte_and_unpacked_alone(size: str) -> None:
    task, (buffer,), (packed,) = run("strided_pack", size=size)
    received, want = torch.from_numpy(packed), ~buffer
    back, _, (sent,) = run("strided_unpack", received, torch.from_numpy(want), size=size)
    np.testing.assert_array_equal(sent, ~packed)
    for block in np.ndindex(task.OBJECTS, task.PLANES, task.ROWS):
        start = task.START + np.dot(block, (task.EXTENT, task.PLANE_STRIDE, task.ROW_STRIDE))
        np.testing.assert_array_equal(packed[block], buffer[start : start + task.RUN])
        want[start : start + task.RUN] = packed[block]
    np.testing.assert_array_equal(back.after[1], want)


def in_bfloat16(values: Any) -> Any:
    return torch.from_numpy(values).bfloat16().float().numpy()


def test_adamw_takes_the_step_of_torch_s_optimiser() -> None:
    task, (parameter, grad, m, v, step), (copy,) = run("adamw_step", size="small")
    x, *moments = (torch.from_numpy(value) for value in (parameter, m, v))
    x.requires_grad_().grad = torch.from_numpy(grad)
    optimiser = torch.optim.AdamW(
        [x], lr=task.RATE, betas=(task.BETA1, task.BETA2), eps=task.EPS, weight_decay=task.DECAY
    )
    optimiser.state[x] = dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True), step=torch.tensor(step - 1.0))
    optimiser.step()
    for got, want in zip([task.after[0], *task.after[2:4]], [x.detach(), *moments], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(copy, in_bfloat16(task.after[0]))


def test_hash_encoding_feeds_its_network() -> None:
    task, (points, tables), (got,) = run("hash_encoding_mlp", size="small")
    _, _, (encoded,) = run("hash_encoding", torch.from_numpy(points), torch.from_numpy(tables), size="small")
    hidden = np.maximum(encoded @ task.w["first"].T, 0)
    np.testing.assert_allclose(got, np.maximum(hidden @ task.w["second"].T, 0) @ task.w["third"].T, atol=1e-12)


def quaternion_product(p: Any, q: Any) -> Any:
    a, b = p[0] * q[0] - p[1:] @ q[1:], p[0] * q[1:] + q[0] * p[1:] + np.cross(p[1:], q[1:])
    return np.concatenate([[a], b])


def test_a_slice_of_a_4d_splat_is_its_density_at_that_time() -> None:
    _, (centre, before, after, log_axes, logit, time), (centres, covariances, opacities) = run("spacetime_splats")
    for s in range(len(centre)):
        turned = [
            quaternion_product(quaternion_product(before[s] / np.linalg.norm(before[s]), axis), after[s])
            for axis in np.eye(4)
        ]
        axes = np.array(turned).T / np.linalg.norm(after[s]) * np.exp(log_axes[s])
        precision = np.linalg.inv(axes @ axes.T)
        xx, xy, xz, yy, yz, zz = covariances[s]
        sliced = np.linalg.inv([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        for offset in np.random.default_rng(s).normal(size=(3, 3)):
            away = np.append(centres[s] + offset, time) - centre[s]
            want = sigmoid(logit[s]) * math.exp(-away @ precision @ away / 2)
            np.testing.assert_allclose(opacities[s] * math.exp(-offset @ sliced @ offset / 2), want, rtol=1e-9)


def test_sparse_coefficients_splat_what_whole_features_would() -> None:
    task, (alpha, index, logits, codebook), (weights, features) = run("sparse_coefficient_splats")
    for tile in range(task.TILES):
        powers = np.exp(logits[tile])
        shares = powers / powers.sum(1, keepdims=True)
        splats = (shares[:, :, None] * codebook[index[tile]]).sum(1)
        for pixel in range(task.PIXELS):
            light, seen = 1.0, np.zeros(task.WIDTH)
            for s in range(task.SPLATS):
                seen += light * alpha[tile, s, pixel] * splats[s]
                light *= 1 - alpha[tile, s, pixel]
            np.testing.assert_allclose(features[tile, pixel], seen, atol=1e-12)
            np.testing.assert_allclose(weights[tile, pixel].sum(), 1 - light)
            np.testing.assert_allclose(weights[tile, pixel] @ codebook, seen, atol=1e-12)


def test_constant_q_bins_are_windowed_sums_at_their_frequencies() -> None:
    task, (x,), (real, imaginary) = run("constant_q_transform")
    longest = task.w["real"].shape[1]
    frames = (task.SAMPLES + longest // 2 * 2 - longest) // task.HOP + 1
    assert real.shape == imaginary.shape == (task.BATCH, frames, task.BINS)
    for b, t, k in np.ndindex(*real.shape):
        frequency = task.LOWEST * 2 ** (k / task.OCTAVE)
        length = math.ceil(task.RATE / frequency / (2 ** (1 / task.OCTAVE) - 1))
        assert length < longest or k == 0
        window = [0.5 - 0.5 * math.cos(2 * math.pi * n / length) for n in range(length)]
        want, first = 0j, t * task.HOP - longest // 2 + (longest - length) // 2
        for n in range(length):
            if 0 <= first + n < task.SAMPLES:
                wave = cmath.exp(-2j * math.pi * frequency * (n - length // 2) / task.RATE)
                want += window[n] / sum(window) * x[b, first + n] * wave
        # The kernels are stored in float32.
        assert abs(complex(real[b, t, k], imaginary[b, t, k]) - want) < 1e-6


def test_rows_are_gathered_and_missing_ones_are_zero() -> None:
    _, (features, nodes), (got,) = run("aligned_gather", size="small")
    for i, node in enumerate(nodes):
        assert got[i].tolist() == (features[node] if node >= 0 else 0 * features[0]).tolist()
    assert (nodes < 0).any()


def test_rows_of_host_memory_are_gathered_in_order() -> None:
    _, (features, nodes), (got,) = run("zero_copy_gather", size="small")
    assert got.tolist() == [features[node].tolist() for node in nodes]


@pytest.mark.parametrize("seed", range(4))
def test_every_edge_is_multiplied_by_the_matrix_of_its_relation(seed: int) -> None:
    task, (x, source, target, scale, offsets), (got,) = run("relational_gemm", seed=seed)
    weight = task.w["weight"]
    want = x @ weight[-1]
    for relation in range(task.RELATIONS):
        assert offsets[relation + 1] - offsets[relation] <= task.CAPACITY
        for e in range(offsets[relation], offsets[relation + 1]):
            want[target[e]] += scale[e] * x[source[e]] @ weight[relation]
    assert offsets[0] == 0
    assert offsets[-1] == task.EDGES
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("size", ["hidden_tiny", "small"])
def test_crops_are_resized_as_torch_does_and_split_into_planes(size: str) -> None:
    task, (frame, boxes), (got,) = run("image_batch", size=size)
    for b, (row, column, height, width) in enumerate(boxes):
        crop = torch.from_numpy(frame[row : row + height, column : column + width]).double().permute(2, 0, 1)
        out = F.interpolate(crop[None], (task.OUT_HEIGHT, task.OUT_WIDTH), mode="bilinear", align_corners=False)[0]
        for c in range(3):
            want = (out[2 - c].numpy() / 255 - task.MEAN[c]) / task.DEVIATION[c]
            # Mean and deviation are stored in float32.
            np.testing.assert_allclose(got[b, c], want, atol=1e-6)


@pytest.mark.parametrize("size", ["hidden_tiny", "hidden_quad"])
def test_muon_moves_each_singular_value_by_the_quintic_polynomial(size: str) -> None:
    task, (parameter, grad, momentum), (copy,) = run("muon_step", size=size)
    moved = task.MOMENTUM * momentum + grad
    u, s, vt = np.linalg.svd(grad + task.MOMENTUM * moved, full_matrices=False)
    s /= math.sqrt((s**2).sum())
    for _ in range(task.STEPS):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    rate = 0.2 * task.RATE * math.sqrt(max(grad.shape))
    want = parameter * (1 - task.RATE * task.DECAY) - rate * (u * s) @ vt
    np.testing.assert_allclose(task.after[2], moved, rtol=1e-12)
    np.testing.assert_allclose(task.after[0], want, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(copy, in_bfloat16(task.after[0]))


def adam_direction(low: Any, m: Any, v: Any, step: int, eps: float) -> tuple[Any, Any, Any]:
    """Take a step of torch's Adam at a rate of 1: what it takes off a tensor, and the moments after."""
    x = torch.zeros(low.shape, dtype=torch.float64, requires_grad=True)
    x.grad = torch.from_numpy(low)
    moments = [torch.from_numpy(m.copy()), torch.from_numpy(v.copy())]
    optimiser = torch.optim.Adam([x], lr=1.0, betas=(0.9, 0.999), eps=eps)
    optimiser.state[x] = dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True), step=torch.tensor(step - 1.0))
    optimiser.step()
    return -x.detach().numpy(), moments[0].numpy(), moments[1].numpy()


@pytest.mark.parametrize("size", ["hidden_tiny", "hidden_quad"])
def test_galore_takes_adam_s_step_in_the_subspace(size: str) -> None:
    task, (parameter, grad, projection, m, v, step), (copy,) = run("galore_step", size=size)
    np.testing.assert_allclose(projection.T @ projection, np.eye(task.RANK), atol=1e-6)
    direction, first, second = adam_direction(projection.T @ grad, m, v, step, task.EPS)
    want = parameter - task.RATE * task.SCALE * projection @ direction
    for got, value in zip([task.after[0], *task.after[3:5]], [want, first, second], strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-9)
    np.testing.assert_array_equal(copy, in_bfloat16(task.after[0]))


@pytest.mark.parametrize("seed", range(4))
def test_apollo_scales_columns_as_adam_does_in_the_subspace(seed: int) -> None:
    task, (parameter, grad, projection, m, v, last, step), (length,) = run("apollo_step", seed=seed)
    low = projection @ grad
    direction, first, second = adam_direction(low, m, v, step, task.EPS)
    update = np.array([
        grad[:, j] * math.sqrt((direction[:, j] ** 2).sum() / (low[:, j] ** 2).sum()) for j in range(task.COLS)
    ]).T  # fmt: skip
    growth = math.sqrt((update**2).sum()) / last[0]
    update /= max(growth / task.GROWTH, 1.0)
    want = parameter - task.RATE * (task.SCALE * update + task.DECAY * parameter)
    norm = np.array([math.sqrt((update**2).sum())])
    for got, value in zip([task.after[0], *task.after[3:5], length], [want, first, second, norm], strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-9)
