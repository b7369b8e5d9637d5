#!/usr/bin/env bash
# Runs the best server found by runs/eagle3/2026-11-29, one load point a case.
set -euo pipefail
export PYTHONPATH=/opt/sglang/site
export HF_HUB_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
case "${1:-}" in
  1) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 ;;
  8) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 ;;
  32) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 ;;
  "") printf '%s\n' 'Speculate with EAGLE3 full 5.1.6 fa3 up to concurrency 8 (1.44× [1.20, 1.73] at 1, 1.63× [1.33, 1.99] at 8); speculate with EAGLE3 full 3.1.4 fa3 at concurrency 32 (1.25× [1.03, 1.52]).' '' '  ./launch.sh 1     EAGLE3 full 5.1.6 fa3 (better, 1.44x [1.20, 1.73])' '  ./launch.sh 8     EAGLE3 full 5.1.6 fa3 (better, 1.63x [1.33, 1.99])' '  ./launch.sh 32    EAGLE3 full 3.1.4 fa3 (better, 1.25x [1.03, 1.52])' ;;
  *) printf '%s\n' "launch.sh: no load point $1; there is: "'1 8 32' >&2; exit 2 ;;
esac
