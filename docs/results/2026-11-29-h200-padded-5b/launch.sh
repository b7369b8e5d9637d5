#!/usr/bin/env bash
# Runs the best server found by runs/eagle3/2026-11-29, one load point a case.
set -euo pipefail
export PYTHONPATH=/opt/sglang/site
export HF_HUB_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
case "${1:-}" in
  1) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 "${@:2}" ;;
  8) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 "${@:2}" ;;
  32) exec /opt/sglang/bin/python -m sglang.launch_server --model-path /models/padded-5b --host 127.0.0.1 --port 30000 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/drafters/full --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --attention-backend fa3 --max-running-requests 32 --mem-fraction-static 0.9 --tp-size 1 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 2048 --max-total-tokens 120000 "${@:2}" ;;
  "") printf '%s\n' 'Speculate with EAGLE3 full 5.1.6 fa3 at concurrency 1 (1.44× [1.03, 2.00]); speculate with EAGLE3 full 3.1.4 fa3 from concurrency 8 to 32 (1.61× [1.12, 2.30] at 8, 1.27× [1.08, 1.51] at 32).' '' '  ./launch.sh 1     EAGLE3 full 5.1.6 fa3 (better, 1.44x [1.03, 2.00])' '  ./launch.sh 8     EAGLE3 full 3.1.4 fa3 (better, 1.61x [1.12, 2.30])' '  ./launch.sh 32    EAGLE3 full 3.1.4 fa3 (better, 1.27x [1.08, 1.51])' '' 'Further words go to the server and win over these: ./launch.sh 8 --port 30001 --host 0.0.0.0' ;;
  *) printf '%s\n' "launch.sh: no load point $1; there is: "'1 8 32' >&2; exit 2 ;;
esac
