#!/usr/bin/env bash
# What only a GPU can show, in under 9 minutes of a data-centre GPU: every op and whole runs on cuda:0
# beside the CPU, then the speed and memory of training steps. Writes REPORT/gpu-check.json and
# REPORT/gpu-check.txt. Ends with 0 where it finds no GPU, and says so.
#
#   gpu_check.sh [PROGRAMS [REPORT]]   directories: of jackscrew, test_gpu and step_bench (bin beside
#                                      this file), and of what is written (report)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=${1:-$here/bin}
report=${2:-report}
readonly deadline=480  # seconds after which no other measurement begins
export OMP_WAIT_POLICY=passive
if [[ -d $here/lib ]]; then  # of an archive
  export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  cd "$here"
fi
# NVIDIA's wheels are where Python is, activated or not.
if [[ -z ${VIRTUAL_ENV:-} ]] && command -v python3 >/dev/null; then
  VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)')
  export VIRTUAL_ENV
fi

mkdir -p "$report"
"$programs/jackscrew" doctor | tee "$report/gpu-check.txt"
if ! grep -q '^cuda:0: ' "$report/gpu-check.txt"; then
  printf '\nskipped: there is no GPU that the program can use\n' | tee -a "$report/gpu-check.txt"
  exit 0
fi

status=0
"$programs/test_gpu" --gtest_brief=1 --gtest_output="json:$report/tests.json" 2>&1 |
  tee -a "$report/gpu-check.txt" || status=1

# field NAME JSON: the number of that name.
field() {
  sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" <<<"$2"
}

# Tokens are random, weights too: speed and memory do not depend on them.
results=()
measure() {
  local name=$1 line code=0
  shift
  if ((SECONDS > deadline)); then
    printf '%-34s not measured: no time left\n' "$name"
    return
  fi
  line=$("$programs/step_bench" device=cuda:0 sequence_len=1024 max_steps=6 --json "$@" \
    2>"$report/error.txt") || code=$?
  if ((code != 0)); then
    printf '%-34s failed (%d): %s\n' "$name" "$code" "$(head -n 1 "$report/error.txt")"
    # 3: it does not fit into this GPU, which is no fault.
    ((code == 3)) || status=1
    return
  fi
  results+=("{\"name\": \"$name\", \"settings\": \"$*\", \"result\": $line}")
  awk -v name="$name" -v speed="$(field tokens_per_second "$line")" \
    -v share="$(field share_of_peak "$line")" -v peak="$(field peak_gflops "$line")" \
    -v booked="$(field booked_bytes "$line")" -v driver="$(field driver_bytes "$line")" 'BEGIN {
      printf "%-34s %9.0f %8.1f%% of %4.0f T %10.2f %10.2f\n", name, speed, 100 * share,
        peak / 1000, booked / 2 ^ 30, driver / 2 ^ 30 }'
  awk -v count="$(field rotations "$line")" -v waited="$(field rotation_seconds "$line")" \
    -v beside="$(field rotation_seconds_beside "$line")" 'BEGIN {
      if (count > 0) printf "%34s %9.3f s a rotation, %4.1f%% of it beside steps\n", "",
        (waited + beside) / count, 100 * beside / (waited + beside) }'
}

measure_all() {
  printf '\n%-34s %9s %18s %10s %10s\n' "step, 1024 tokens a sequence" tokens/s "GEMM peak" \
    "GiB booked" "by driver"
  local full=(method=full product=bf16)
  measure "Qwen2.5-0.5B, full" model=qwen2.5-0.5b micro_batch_size=16 "${full[@]}"
  measure "Qwen2.5-1.5B, full" model=qwen2.5-1.5b micro_batch_size=16 "${full[@]}"
  if grep -q '^cuDNN [^:]*: [0-9]' "$report/gpu-check.txt"; then
    measure "Qwen2.5-1.5B, cuDNN's attention" model=qwen2.5-1.5b micro_batch_size=16 \
      attention=cudnn "${full[@]}"
  fi
  measure "Qwen2.5-3B, full, 8-bit AdamW" model=qwen2.5-3b micro_batch_size=8 \
    optimizer=adamw_8bit "${full[@]}"
  local rotary=(method=rotary optimizer=adamw_8bit micro_batch_size=8)
  measure "Qwen2.5-7B, rotary" model=qwen2.5-7b product=bf16 "${rotary[@]}"
  measure "Llama 7B, rotary, one sequence" model=llama-7b product=bf16 "${rotary[@]}" \
    micro_batch_size=1 gradient_checkpointing=true
  measure "Llama 7B, rotary" model=llama-7b product=bf16 "${rotary[@]}"
  measure "Llama 7B, rotary every 2 steps" model=llama-7b product=bf16 "${rotary[@]}" \
    steps_per_rotation=2
  measure "Llama 7B, rotary, copies beside" model=llama-7b product=bf16 "${rotary[@]}" \
    steps_per_rotation=2 overlap_rotation=true
  measure "Llama 7B, rotary, int8 product" model=llama-7b product=int8 storage=int8_row \
    "${rotary[@]}"
  measure "SmolLM2-135M, full, f32" model=smollm2-135m product=f32 micro_batch_size=16 method=full
}
measure_all > >(tee -a "$report/gpu-check.txt")
wait $!

{
  printf '{"doctor": '
  "$programs/jackscrew" doctor --json
  printf ', "tests": '
  cat "$report/tests.json"
  printf ', "measurements": ['
  for i in "${!results[@]}"; do
    ((i == 0)) || printf ', '
    printf '%s' "${results[i]}"
  done
  printf ']}\n'
} >"$report/gpu-check.json"
rm -f "$report/error.txt" "$report/tests.json"
printf '\n%s: gpu-check.txt, gpu-check.json; %d s\n' "$report" "$SECONDS"
exit "$status"
