#!/usr/bin/env bash
# GRPO with slime on one node of 8 GPUs, in slime's checkout, after its conversion of the model:
#   SLIME=/path/to/slime bash docs/examples/training/trainers/slime.sh
# Further arguments go to slime.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
prompts="$PWD/prompts.jsonl"
cd "${SLIME:?the folder of slime}"
source scripts/models/qwen3-4B.sh # MODEL_ARGS: the shape of the model, for Megatron
export PYTHONPATH="$here:${PYTHONPATH:-}"
exec python train.py "${MODEL_ARGS[@]}" \
  --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
  --hf-checkpoint "${MODEL:-Qwen3-4B}" --ref-load "${MODEL:-Qwen3-4B}_torch_dist" \
  --prompt-data "$prompts" --input-key prompt --label-key task --apply-chat-template --rollout-shuffle \
  --custom-rm-path slime_reward.custom_rm \
  --dynamic-sampling-filter-path kernelforge.adapters.slime.keep_scored --over-sampling-batch-size 64 \
  --num-rollout 200 --rollout-batch-size 32 --n-samples-per-prompt 16 --global-batch-size 512 \
  --rollout-max-response-len 8192 --rollout-temperature 1 \
  --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --entropy-coef 0 \
  --optimizer adam --lr 1e-6 --lr-decay-style constant \
  --tensor-model-parallel-size 2 --sequence-parallel --use-dynamic-batch-size --max-tokens-per-gpu 18432 \
  --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 \
  "$@"
