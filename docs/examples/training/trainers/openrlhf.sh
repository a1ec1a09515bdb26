#!/usr/bin/env bash
# GRPO with OpenRLHF 0.11 on one node of 8 GPUs. Further arguments go to OpenRLHF.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec python -m openrlhf.cli.train_ppo_ray \
  --actor.model_name_or_path Qwen/Qwen2.5-Coder-7B-Instruct \
  --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
  --ref.num_nodes 1 --ref.num_gpus_per_node 8 \
  --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --vllm.enable_sleep \
  --train.colocate_all --ds.enable_sleep \
  --data.prompt_dataset prompts.jsonl --data.input_key prompt --data.label_key task --data.apply_chat_template \
  --data.max_len 16384 --rollout.max_new_tokens 8192 \
  --rollout.batch_size 64 --rollout.n_samples_per_prompt 16 \
  --train.batch_size 1024 --train.micro_batch_size 1 --train.num_episodes 20 \
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 \
  --actor.adam.lr 1e-6 --actor.gradient_checkpointing_enable \
  --reward.remote_url "$here/openrlhf_reward.py" \
  "$@"
