"""The references of the suite ``llm`` against plain loops, in float64 at their smallest size."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.tasks.reference_cases import ReferenceCase, softmax, tasks_without_a_case
from tests.tasks.reference_cases import assert_close as same

SEEDS = (0, 1, 2)

each_seed = pytest.mark.parametrize("seed", SEEDS)
Case = partial(ReferenceCase, "llm")


def silu(value: float) -> float:
    return value / (1.0 + math.exp(-value))


def pcg(value: int) -> int:
    state = (value * 747796405 + 2891336453) % 2**32
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 % 2**32
    return (word >> 22) ^ word


def gumbel(token: int, seed: int) -> float:
    uniform = (pcg((pcg(token) + seed) % 2**32) // 512 + 0.5) / 2**23
    return -math.log(-math.log(uniform))


def exponential(token: int, seed: int) -> float:
    bits = pcg((pcg(token) + seed) % 2**32) // 512
    return -math.log(bits / 2**23) if bits else math.inf


def drawn(rest: list[float], seed: int) -> int:
    """The token that comes first in a race in which each runs at the rate of its probability."""
    return max(range(len(rest)), key=lambda v: rest[v] / exponential(v, seed))


def test_rmsnorm_gives_the_normalised_sum_and_the_sum() -> None:
    case = Case("rmsnorm_residual")
    total = case.inputs[0] + case.inputs[1]
    for row in range(case.TOKENS):
        root = math.sqrt(sum(value**2 for value in total[row]) / case.HIDDEN + case.EPS)
        same(case.outputs[0][row], total[row] / root * case.w["weight"])
    same(case.outputs[1], total)


def test_rope_turns_pairs_of_a_head_by_the_angle_of_the_position() -> None:
    case = Case("rope")
    for x, out in zip(case.inputs[:2], case.outputs, strict=True):
        for token, position in enumerate(case.inputs[2]):
            for i in range(case.HALF_DIM):
                angle = position / case.THETA ** (i / case.HALF_DIM)
                pair = x[token, :, i] + 1j * x[token, :, i + case.HALF_DIM]
                turned = pair * complex(math.cos(angle), math.sin(angle))
                # The table is float32, as engines keep it.
                np.testing.assert_allclose(out[token, :, i], turned.real, atol=1e-5)
                np.testing.assert_allclose(out[token, :, i + case.HALF_DIM], turned.imag, atol=1e-5)


def test_swiglu_gates_the_second_half_by_the_first() -> None:
    case = Case("swiglu")
    x = case.inputs[0]
    want = [[silu(row[i]) * row[i + case.HIDDEN] for i in range(case.HIDDEN)] for row in x]
    same(case.outputs[0], np.array(want))


@each_seed
def test_decode_attends_to_the_filled_places_of_its_own_group(seed: int) -> None:
    case = Case("gqa_decode", seed=seed)
    q, keys, values, lengths = case.inputs
    for b, h in np.ndindex(q.shape[:2]):
        g, n = h // case.GROUP, lengths[b]
        weights = softmax(keys[b, g, :n] @ q[b, h] / math.sqrt(case.HEAD_DIM))
        same(case.outputs[0][b, h], weights @ values[b, g, :n])


def test_prefill_attends_to_the_past() -> None:
    case = Case("gqa_prefill")
    q, keys, values = case.inputs
    for b, h, i in np.ndindex(q.shape[:3]):
        g = h // case.GROUP
        weights = softmax(keys[b, g, : i + 1] @ q[b, h, i] / math.sqrt(case.HEAD_DIM))
        same(case.outputs[0][b, h, i], weights @ values[b, g, : i + 1])


@each_seed
def test_top_k_sampling_draws_among_the_largest(seed: int) -> None:
    case = Case("top_k_sampling", seed=seed)
    logits, seeds, k = case.inputs
    for b in range(case.BATCH):
        least = sorted(logits[b])[-int(k[b])]
        kept = [v for v in range(case.VOCAB) if logits[b, v] >= least]
        best = max(kept, key=lambda v: logits[b, v] / case.TEMPERATURE + gumbel(v, int(seeds[b])))
        assert case.outputs[0][b] == best


@each_seed
def test_top_p_sampling_draws_from_the_nucleus(seed: int) -> None:
    case = Case("top_p_sampling", seed=seed)
    logits, seeds = case.inputs
    for b in range(case.BATCH):
        p = softmax(logits[b] / case.TEMPERATURE)
        kept, total = [], 0.0
        for v in sorted(range(case.VOCAB), key=lambda v: -p[v]):
            if total < case.TOP_P:
                kept.append(v)
                total += p[v]
        kept = [v for v in range(case.VOCAB) if logits[b, v] >= logits[b, kept[-1]]]
        best = max(kept, key=lambda v: logits[b, v] / case.TEMPERATURE + gumbel(v, int(seeds[b])))
        assert case.outputs[0][b] == best


def test_a_draw_by_gumbel_noise_follows_the_softmax() -> None:
    case = Case("top_k_sampling")
    logits = torch.tensor([0.0, 1.0, 2.0]).repeat(20000, 1)
    model = case.Model(3, 1.0)
    drawn = model(logits, torch.randint(0, 2**31, (20000,)), torch.full((20000,), 3, dtype=torch.int32))
    shares = torch.bincount(drawn, minlength=3) / 20000
    np.testing.assert_allclose(shares.numpy(), softmax(np.array([0.0, 1.0, 2.0])), atol=0.02)


@each_seed
def test_paged_gather_follows_the_block_table_and_ends_with_zeros(seed: int) -> None:
    case = Case("paged_kv_gather", seed=seed)
    table, lengths = case.inputs[2:]
    used = table[table >= 0]
    assert len(set(used.tolist())) == used.size
    for pages, out in zip(case.inputs[:2], case.outputs, strict=True):
        want = np.zeros_like(out)
        for s in range(case.SEQUENCES):
            for t in range(lengths[s]):
                want[s, t] = pages[table[s, t // case.PAGE_TOKENS], t % case.PAGE_TOKENS]
        same(out, want)


def test_routing_gives_the_best_experts_and_shares_of_one() -> None:
    case = Case("moe_routing")
    for t, row in enumerate(case.inputs[0]):
        p = softmax(row)
        best = sorted(range(case.EXPERTS), key=lambda e: -p[e])[: case.CHOSEN]
        assert case.outputs[1][t].tolist() == best
        same(case.outputs[0][t], p[best] / p[best].sum())


@each_seed
def test_grouped_product_takes_each_row_through_its_expert(seed: int) -> None:
    case = Case("moe_grouped_gemm", seed=seed)
    x, weight, offsets = case.inputs
    assert offsets[0] == 0
    assert offsets[-1] == case.TOKENS
    assert (np.diff(offsets) >= 0).all()
    assert np.diff(offsets).max() <= case.CAPACITY
    for e in range(case.EXPERTS):
        rows = slice(offsets[e], offsets[e + 1])
        same(case.outputs[0][rows], x[rows] @ weight[e].T)


def test_grouped_product_sees_experts_without_tokens() -> None:
    counts = [np.diff(Case("moe_grouped_gemm", seed=seed).inputs[2]) for seed in range(10)]
    assert any((count == 0).any() for count in counts)


def test_w4a16_unpacks_nibbles_from_the_low_end() -> None:
    case = Case("w4a16_gemm")
    x, packed, scales, zeros = case.inputs
    weight = np.empty((case.OUT, case.GROUPS * case.GROUP))
    for n, k in np.ndindex(weight.shape):
        nibble = (int(packed[n, k // 8]) % 2**32 >> 4 * (k % 8)) % 16
        weight[n, k] = (nibble - int(zeros[n, k // case.GROUP])) * scales[n, k // case.GROUP]
    same(case.outputs[0], x @ weight.T)


def test_nf4_unpacks_the_even_column_from_the_high_bits() -> None:
    case = Case("nf4_gemm")
    x, codes, absmax = case.inputs
    weight = np.empty((case.OUT, case.BLOCKS * case.BLOCK))
    for n, k in np.ndindex(weight.shape):
        code = int(codes[n, k // 2]) // 16 if k % 2 == 0 else int(codes[n, k // 2]) % 16
        weight[n, k] = np.float32(case.NF4[code]) * absmax[n, k // case.BLOCK]
    same(case.outputs[0], x @ weight.T)


def e4m3(byte: int) -> float:
    """Sign, four bits of exponent with bias 7, three of mantissa; no infinities."""
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def test_fp8_product_decodes_and_scales() -> None:
    case = Case("fp8_gemm")
    x, weight, x_scale, weight_scale, bias = case.inputs
    assert not {0x7F, 0xFF} & {*x.flat, *weight.flat}
    rows, columns = np.vectorize(lambda b: e4m3(int(b)))(x), np.vectorize(lambda b: e4m3(int(b)))(weight)
    same(case.outputs[0], rows @ columns.T * x_scale[:, None] * weight_scale + bias)


@each_seed
def test_lora_adds_the_adapter_of_a_token_or_nothing(seed: int) -> None:
    case = Case("bgmv_lora", seed=seed)
    y, x, down, up, adapter = case.inputs
    assert -1 in adapter
    for t, a in enumerate(adapter):
        same(case.outputs[0][t], y[t] if a < 0 else y[t] + case.SCALE * up[a] @ (down[a] @ x[t]))


@each_seed
def test_paged_lora_takes_as_many_pages_as_the_adapter_has_ranks(seed: int) -> None:
    case = Case("paged_lora", seed=seed)
    y, x, pool, ranks, pages, scale, adapter = case.inputs
    assert len(set(ranks)) > 1
    for t, a in enumerate(adapter):
        want = y[t].copy()
        for j in range(ranks[a] if a >= 0 else 0):
            want += scale[a] * (pool[pages[0, a, j]] @ x[t]) * pool[pages[1, a, j]]
        same(case.outputs[0][t], want)


def test_mxint8_codes_are_halves_to_even_under_a_power_of_two() -> None:
    case = Case("kv_quantise_mxint8")
    x = case.inputs[0].copy()
    x[0, 0, : case.BLOCK] = 0.0
    x[1, 0, : case.BLOCK] = [127.5, 0.5, 1.5, 2.5, -0.5, -1.5, 64.0]
    codes, exponents = (out.numpy() for out in case.model(torch.from_numpy(x)))
    for t, h, b in np.ndindex(exponents.shape):
        run = slice(b * case.BLOCK, (b + 1) * case.BLOCK)
        e = math.floor(math.log2(max(*abs(x[t, h, run]), 2.0**-100)))
        assert exponents[t, h, b] == e + 127
        want = [min(max(round(value * 2.0 ** (6 - e)), -127), 127) for value in x[t, h, run]]
        assert codes[t, h, run].tolist() == want
    assert codes[1, 0, : case.BLOCK].tolist() == [127, 0, 2, 2, 0, -2, 64]


@each_seed
def test_embedding_bag_sums_weighted_rows(seed: int) -> None:
    case = Case("embedding_bag", seed=seed)
    table, indices, offsets, weights = case.inputs
    want = np.zeros((case.BAGS, case.WIDTH))
    for b in range(case.BAGS):
        for i in range(offsets[b], offsets[b + 1]):
            want[b] += weights[i] * table[indices[i]]
    same(case.outputs[0], want)


@each_seed
def test_logits_processor_penalises_what_came_and_bans_what_may_not_come(seed: int) -> None:
    case = Case("logits_processor", seed=seed)
    logits, history, allowed = case.inputs
    want = np.empty_like(logits)
    for b, v in np.ndindex(logits.shape):
        count, value = int((history[b] == v).sum()), logits[b, v]
        if count:
            value = value / case.REPETITION if value > 0 else value * case.REPETITION
        value = (value - case.FREQUENCY * count) / case.TEMPERATURE
        want[b, v] = value if int(allowed[b, v // 32]) >> v % 32 & 1 else -math.inf
    same(case.outputs[0], want)


@each_seed
def test_sampled_verification_accepts_by_the_ratio_and_draws_what_is_left_of_the_model(seed: int) -> None:
    case = Case("speculative_sample", seed=seed)
    target, draft, drafted, uniforms, seeds = case.inputs
    for b, accepted in enumerate(case.outputs[1]):
        want, rest = [], None
        for i in range(case.DRAFTED):
            p, q, x = softmax(target[b, i]), softmax(draft[b, i]), drafted[b, i]
            if uniforms[b, i] >= p[x] / q[x]:
                rest = [max(a - c, 0.0) for a, c in zip(p, q, strict=True)]
                break
            want.append(int(x))
        assert accepted == len(want)
        want.append(drawn(rest or list(softmax(target[b, -1])), int(seeds[b])))
        assert case.outputs[0][b].tolist() == want + [-1] * (case.DRAFTED + 1 - len(want))


@each_seed
def test_sampled_verification_of_a_tree_walks_from_child_to_child(seed: int) -> None:
    case = Case("speculative_tree_sample", seed=seed, size="small")
    target, draft, tokens, uniforms, seeds = case.inputs

    def walk(b: int, token: int) -> list[int]:
        rest = softmax(target[b, token])
        if token >= case.INNER:
            return [drawn(list(rest), int(seeds[b]))]
        q = softmax(draft[b, token])
        for child in range(case.WIDTH * token + 1, case.WIDTH * token + case.WIDTH + 1):
            x = tokens[b, child]
            if uniforms[b, child] < rest[x] / q[x]:
                return [child, *walk(b, child)]
            rest = np.maximum(rest - q, 0.0)
            rest = rest / rest.sum()
        return [drawn(list(rest), int(seeds[b]))]

    for b in range(case.BATCH):
        want = walk(b, 0)
        assert case.outputs[1][b] == len(want) - 1
        assert case.outputs[0][b].tolist() == want + [-1] * (case.DEPTH - len(want))


@pytest.mark.parametrize("name", ["speculative_sample", "speculative_tree_sample"])
def test_sampled_verification_keeps_the_distribution_of_the_model(name: str) -> None:
    case, draws = Case(name), 40_000
    generator = torch.Generator().manual_seed(5)
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    places, inner = (case.NODES, case.INNER) if "tree" in name else (case.DRAFTED + 1, case.DRAFTED)
    drafted = torch.multinomial(q, draws * places, replacement=True, generator=generator).view(draws, places)
    first, accepted = case.model(
        p.log().expand(draws, places, 4),
        q.log().expand(draws, inner, 4),
        drafted if "tree" in name else drafted[:, :inner],
        torch.rand(draws, places, dtype=torch.float64, generator=generator)[:, : places if "tree" in name else inner],
        torch.randint(0, 2**31, (draws,), generator=generator),
    )
    token = first[:, 0]
    if "tree" in name:
        token = torch.where(accepted > 0, drafted.gather(1, token.unsqueeze(1)).squeeze(1), token)
    share = torch.bincount(token, minlength=4) / draws
    same(share.numpy(), p.numpy(), 0.05)  # four standard deviations of the rarest are 0.06 of it


@each_seed
def test_core_neurons_are_the_most_frequent_of_each_token_s_largest(seed: int) -> None:
    case = Case("core_neurons", seed=seed)
    counts = [0] * case.NEURONS
    for row in case.inputs[0].tolist():
        positive = sorted((value for value in row if value > 0), reverse=True)
        largest = positive[: math.ceil(len(positive) * case.SHARE / 100)]
        for n, value in enumerate(row):
            counts[n] += bool(largest) and value >= largest[-1]
    assert case.outputs[1].tolist() == counts
    order = sorted(range(case.NEURONS), key=lambda n: (-counts[n], n))
    assert case.outputs[0].tolist() == sorted(order[: case.CORE])


def test_softcap_bounds_the_scores_before_the_softmax() -> None:
    case = Case("softcap_softmax")
    for row, out in zip(case.inputs[0], case.outputs[0], strict=True):
        same(out, softmax(case.CAP * np.tanh(row / case.CAP)))


@each_seed
def test_verification_accepts_up_to_the_first_wrong_draft(seed: int) -> None:
    case = Case("speculative_verify", seed=seed)
    logits, drafted = case.inputs
    for b in range(case.BATCH):
        best = [row.tolist().index(max(row)) for row in logits[b]]
        accepted = 0
        while accepted < case.DRAFTED and drafted[b, accepted] == best[accepted]:
            accepted += 1
        assert case.outputs[1][b] == accepted
        assert case.outputs[0][b].tolist() == best[: accepted + 1] + [-1] * (case.DRAFTED - accepted)


def test_verification_takes_the_lowest_of_equal_tokens() -> None:
    case = Case("speculative_verify")
    logits = torch.zeros(1, case.DRAFTED + 1, case.VOCAB)
    logits[0, :, 5] = logits[0, :, 9] = 1.0
    tokens, accepted = case.model(logits, torch.tensor([[5, 9]]))
    assert tokens.tolist() == [[5, 5, -1]]
    assert accepted.tolist() == [1]


@each_seed
def test_a_tree_of_drafts_sees_the_past_and_its_ancestors(seed: int) -> None:
    case = Case("tree_attention", seed=seed)
    q, k_cache, v_cache, k_draft, v_draft, lengths, parents = case.inputs
    for b, h, i in np.ndindex(q.shape[:3]):
        path, node = [], i
        while node >= 0:
            path.append(node)
            node = parents[b, node]
        keys = np.concatenate([k_cache[b, h, : lengths[b]], k_draft[b, h, path]])
        values = np.concatenate([v_cache[b, h, : lengths[b]], v_draft[b, h, path]])
        same(case.outputs[0][b, h, i], softmax(keys @ q[b, h, i] / math.sqrt(case.HEAD_DIM)) @ values)


def test_a_long_branch_reaches_its_first_token() -> None:
    case = Case("tree_attention")
    tensors = case.tensors
    tensors[-1] = torch.arange(-1, case.DRAFTED - 1, dtype=torch.int32).expand(case.BATCH, -1)  # one branch
    keys, values = (torch.cat([tensors[i][:, :, :1], tensors[i + 2]], dim=2) for i in (1, 2))
    tensors[5] = torch.ones(case.BATCH, dtype=torch.int32)
    mask = torch.ones(case.DRAFTED, case.DRAFTED + 1, dtype=torch.bool).tril(1)
    want = torch.nn.functional.scaled_dot_product_attention(tensors[0], keys, values, attn_mask=mask)
    same(case.run(*tensors)[0], want.numpy())


def test_a_sparse_layer_adds_up_the_listed_neurons() -> None:
    case = Case("sparse_ffn")
    x, gate, up, down, core = case.inputs
    assert len(set(core)) == case.CORE < case.NEURONS
    for t, row in enumerate(x):
        same(case.outputs[0][t], sum(silu(gate[n] @ row) * (up[n] @ row) * down[n] for n in core))


def test_a_convolution_step_uses_the_newest_input_and_forgets_the_oldest() -> None:
    case = Case("causal_conv1d_update")
    x, state = case.inputs
    weight, bias = case.w["weight"], case.w["bias"]
    for b, c in np.ndindex(x.shape):
        window = [*state[b, c], x[b, c]]
        total = sum(w * value for w, value in zip(weight[c], window, strict=True)) + bias[c]
        same(case.outputs[0][b, c], np.array(silu(total)))
        assert case.after[1][b, c].tolist() == window[1:]


def test_a_state_space_step_decays_adds_and_reads() -> None:
    case = Case("selective_state_update")
    state, x, dt, b, c = case.inputs
    weights = case.w
    for batch, head, p in np.ndindex(x.shape):
        step = math.log1p(math.exp(dt[batch, head] + weights["dt_bias"][head]))
        decay = math.exp(-step * math.exp(weights["a_log"][head]))
        new = decay * state[batch, head, p] + step * x[batch, head, p] * b[batch]
        same(case.after[0][batch, head, p], new)
        same(case.outputs[0][batch, head, p], new @ c[batch] + weights["skip"][head] * x[batch, head, p])


def test_every_task_has_a_test() -> None:
    assert tasks_without_a_case("llm", __file__) == []
