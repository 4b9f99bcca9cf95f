#!/usr/bin/env bash
# What only a GPU can show, in nine minutes of a data-centre GPU: every op and whole runs on cuda:0
# beside the CPU, the speed, memory and parts of training steps, the rates of single ops, PyTorch's
# attention and compute-sanitizer where they are. What matters most comes first.
#
#   gpu_check.sh [--seconds=N] [PROGRAMS [REPORT]]
#     PROGRAMS  directory of jackscrew, test_gpu, step_bench and device_bench (default: bin beside
#               this file)
#     REPORT    directory for what is written (default: report)
#     N         seconds for all of it (default 540); the limits of the parts shrink and grow with it
#
# Every part is a process of its own with a time limit, so that no crash, hang or lost GPU takes more
# than its own result. Its record is appended to REPORT/gpu-check.jsonl as soon as it ends, one JSON
# object a line:
#     name, command    what ran
#     status           ok, failed, crashed, killed, "timed out", "does not end" (even when killed),
#                      "does not fit" (into this GPU's memory), stopped (by a signal), skipped
#     exit             its exit status; null where it did not end
#     seconds          how long it took
#     results          the JSON objects that it printed, one for each line
#     output           the end of what else it printed
#     reason           of a part that was skipped, in place of the last five
# REPORT/gpu-check.txt has what is shown. Ends with 0 where nothing failed, and where there is no GPU.
set -uo pipefail
trap '' PIPE  # a reader that is gone costs no result

total=540
if [[ ${1:-} == --seconds=* ]]; then
  total=${1#*=}
  shift
fi
if [[ ! $total =~ ^[1-9][0-9]*$ || ${1:-} == -* || $# -gt 2 ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=${1:-$here/bin}
report=${2:-report}
export OMP_WAIT_POLICY=passive
if [[ -d $here/lib ]]; then  # of an archive
  export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  cd "$here" || exit
fi
# NVIDIA's wheels are where Python is, activated or not.
if [[ -z ${VIRTUAL_ENV:-} ]] && command -v python3 >/dev/null; then
  VIRTUAL_ENV=$(timeout 10 python3 -c 'import sys; print(sys.prefix)')
  export VIRTUAL_ENV
fi

mkdir -p "$report" || exit
records=$report/gpu-check.jsonl
shown=$report/gpu-check.txt
for file in "$records" "$shown"; do
  [[ ! -s $file ]] || mv -f "$file" "$file.previous" || exit
  : >"$file" || exit
done
work=$(mktemp -d) || exit
# Traps are this process's alone: a child that gets a signal before it has become another program would
# run them, too.
trap '[[ $BASHPID != "$$" ]] || rm -rf "$work"' EXIT

now() { printf '%s' $((${EPOCHREALTIME/./} / 1000)); }  # milliseconds
begin=$(now)
readonly grace=$((total * 1000 / 60))  # milliseconds kept for what does not end when it is told to
left() { printf '%s' $((begin + total * 1000 - grace - $(now))); }
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }

tell() {
  printf '%s\n' "$*" 2>/dev/null
  printf '%s\n' "$*" >>"$shown"
}

# Standard input as a JSON string.
quoted() {
  LC_ALL=C tr -c '\11\12\40-\176' '?' |
    sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' |
    awk 'BEGIN { printf "\"" } NR > 1 { printf "\\n" } { printf "%s", $0 } END { printf "\"" }'
}

# The complete lines of a file that are JSON objects, as the elements of a list: a process that was
# killed may have left half of one. Every value is replaced by a letter, from the innermost outwards.
objects() {
  head -n "$(wc -l <"$1")" "$1" | LC_ALL=C awk '
    /^\{.*\}$/ {
      rest = $0
      gsub(/"([^"\\]|\\.)*"/, "s", rest)
      gsub(/-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/, "v", rest)
      gsub(/true|false|null/, "v", rest)
      gsub(/[ \t]/, "", rest)
      while (gsub(/\{(s:[sv](,s:[sv])*)?\}|\[([sv](,[sv])*)?\]/, "v", rest)) { }
      if (rest == "v") printf "%s%s", count++ ? ", " : "", $0
    }'
}

passed=0 failed=0 skipped=0
stopped='' job=''

skip() {  # NAME REASON
  skipped=$((skipped + 1))
  printf '{"name": %s, "status": "skipped", "reason": %s}\n' "$(quoted <<<"$1")" \
    "$(quoted <<<"$2")" >>"$records"
  tell "$(printf '%-42s skipped: %s' "$1" "$2")"
}

stop() {
  [[ $BASHPID == "$$" ]] || exit 1
  stopped=$1
  [[ -z $job ]] || kill "$job" 2>/dev/null
}
for signal in INT TERM HUP; do
  # shellcheck disable=SC2064  # $signal is wanted as it is now
  trap "stop $signal" "$signal"
done

# Runs one part: NAME LIMIT COMMAND..., the limit in seconds of nine minutes. Sets $status and
# $results; what it printed is in $work/out and $work/error.
part() {
  local name=$1 limit=$(($2 * total * 1000 / 540)) ended='' code=0 output
  local start watchdog remaining
  shift 2
  status=skipped results=''
  remaining=$(left)
  if [[ -n $stopped ]]; then
    skip "$name" "stopped by SIG$stopped"
    return
  fi
  # A part that is cut short says little: it begins only with a good share of what it may need.
  if ((remaining < limit / 3)); then
    skip "$name" "no time left: $(seconds $((remaining > 0 ? remaining : 0))) s of $total s"
    return
  fi
  ((limit <= remaining)) || limit=$remaining
  start=$(now)
  timeout --kill-after="$(seconds $((grace / 4)))" "$(seconds "$limit")" "$@" \
    >"$work/out" 2>"$work/error" </dev/null &
  job=$!
  # What waits in the driver may outlive even SIGKILL.
  sleep "$(seconds $((limit + grace / 2)))" &
  watchdog=$!
  [[ -z $stopped ]] || kill "$job"
  while [[ -z ${ended:-} ]]; do  # a signal interrupts the wait, and leaves it unset
    { wait -n -p ended "$job" "$watchdog"; code=$?; } 2>/dev/null
  done
  if [[ $ended == "$watchdog" ]]; then
    status='does not end' code=null
    disown "$job"
  else
    { kill "$watchdog" && wait "$watchdog"; } 2>/dev/null
    case $code in
      0) status=ok ;;
      3) status='does not fit' ;;
      77) status=skipped ;;  # all tests of a suite
      124) status='timed out' ;;
      137) if (($(now) - start >= limit)); then status='timed out'; else status=killed; fi ;;
      *) if ((code > 128)); then status=crashed; else status=failed; fi ;;
    esac
    [[ -z $stopped || $status == ok ]] || status=stopped
  fi
  job=''
  results=$(objects "$work/out")
  output=$({ grep -v '^{' "$work/out" | tail -c 2000; tail -c 2000 "$work/error"; } | quoted)
  local took=$(($(now) - start))
  printf '{"name": %s, "command": %s, "status": "%s", "exit": %s, "seconds": %s, "results": [%s], "output": %s}\n' \
    "$(quoted <<<"$name")" "$(quoted <<<"${*/#"$programs/"/}")" "$status" "$code" \
    "$(seconds "$took")" "$results" "$output" >>"$records" ||
    printf '%s: the record of "%s" cannot be written\n' "$records" "$name" >&2
  sync "$records" 2>/dev/null
  case $status in
    ok | 'does not fit') passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
  local said=''
  [[ $status == ok ]] || said=$(cat "$work/error" "$work/out" | grep -v '^{' | grep -m 1 .)
  tell "$(printf '%-42s %s, %s s%s' "$name" "$status" "$(seconds "$took")" "${said:+: $said}")"
}

# The number of that name in a JSON object.
field() {
  sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" <<<"$2"
}

# A suite of test_gpu in one process; where that does not end well, its tests one by one, since one
# that crashes or loses the GPU takes those behind it along.
tests() {  # SUITE LIMIT
  local suite=$1 name
  part "tests: $suite" "$2" "$programs/test_gpu" --gtest_brief=1 "--gtest_filter=$suite.*"
  [[ $status == skipped || $status == ok ]] && return
  while read -r name; do
    part "test: $suite.$name" 20 "$programs/test_gpu" --gtest_brief=1 "--gtest_filter=$suite.$name"
  done < <(awk -v suite="$suite." '/^[^ ]/ { here = $1 == suite } /^ / && here { print $1 }' \
    "$work/tests")
}

# A training step. Tokens are random, weights too: speed and memory do not depend on them.
step() {  # NAME LIMIT SETTING...
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$programs/step_bench" device=cuda:0 sequence_len=1024 max_steps=6 --json "$@"
  [[ $status == ok ]] || return
  tell "$(awk -v speed="$(field tokens_per_second "$results")" \
    -v share="$(field share_of_peak "$results")" -v peak="$(field peak_gflops "$results")" \
    -v booked="$(field booked_bytes "$results")" -v driver="$(field driver_bytes "$results")" '
    BEGIN {
      printf "    %.0f tokens/s, %.1f%% of %.0f TFLOP/s; %.2f GiB booked, %.2f by the driver", speed,
        100 * share, peak / 1000, booked / 2 ^ 30, driver / 2 ^ 30 }')"
  # Parts that come to much more than a step tell what graphs save, or that events do not tell the truth.
  tell "$(awk -v parts="$(field parts_seconds "$results")" \
    -v step="$(field step_seconds "$results")" 'BEGIN {
      if (step > 0) printf "    a step takes %.1f ms, its parts by events %.1f ms (%.0f%%)",
        1000 * step, 1000 * parts, 100 * parts / step }')"
  # What of it would be worth most: the parts by their share, the largest first.
  tell "$(sed 's/.*"parts_seconds": \([-0-9.e+]*\), "parts": {\(.*\)}}$/\1, \2/; s/}, "/}\n"/g; s/, "/\n"/' \
    <<<"$results" | awk -F'"' 'NR == 1 { all = $1; next }
      { split($0, cell, /"seconds": /); split(cell[2], number, ","); if (all > 0)
          printf "%.1f%% %s\n", 100 * number[1] / all, $2 }' |
    sort -rn | head -n 8 | awk '{ line = line (NR > 1 ? ", " : "") $0 } END { print "    " line }')"
  tell "    graphs: $(sed -n 's/.*"graphs": {\([^}]*\)}.*/\1/p' <<<"$results" | tr -d '"')"
  local event
  event=$(awk -v name="$(sed -n 's/.*"event": "\([a-z]*\)".*/\1/p' <<<"$results")" -v count="$(field events "$results")" \
    -v waited="$(field event_seconds "$results")" \
    -v beside="$(field event_seconds_beside "$results")" 'BEGIN {
      if (count > 0) printf "    %.3f s to %s, %.1f%% of it beside steps",
        (waited + beside) / count, name, 100 * beside / (waited + beside) }')
  [[ -z $event ]] || tell "$event"
}

# Rates of single ops, as device_bench and torch_attention.py print them.
rates() {  # NAME LIMIT COMMAND...
  part "$@"
  [[ $status == skipped ]] && return
  grep '^{.*}$' "$work/out" | sed 's/^{"bench": "[^"]*", //; s/"name": "\([^"]*\)"/\1/; s/[{}"]//g' |
    while read -r line; do tell "    $line"; done
}

part doctor 20 "$programs/jackscrew" doctor
tell "$(cat "$work/out")"
if [[ $status == ok ]] && ! grep -q '^cuda:0: ' "$work/out"; then
  skip "all that follows" "there is no GPU that the program can use"
  exit 0
fi
has_cudnn=''
grep -q '^cuDNN [^:]*: [0-9]' "$work/out" && has_cudnn=1
part "doctor, as JSON" 20 "$programs/jackscrew" doctor --json

part "list of tests" 20 "$programs/test_gpu" --gtest_list_tests
cp "$work/out" "$work/tests"
mapfile -t suites < <(awk '/^[^ ].*\.( |$)/ { sub(/\.$/, "", $1); print $1 }' "$work/tests")
full=(method=full product=bf16)
rotary=(method=rotary optimizer=adamw_8bit micro_batch_size=8)

# Whether it computes what it should, and how fast what most will run is.
tests GpuParity 60
step "Qwen2.5-1.5B, full" 60 model=qwen2.5-1.5b micro_batch_size=16 "${full[@]}"
tests GpuScale 90
step "Qwen2.5-0.5B, full" 60 model=qwen2.5-0.5b micro_batch_size=16 "${full[@]}"
step "Llama 3 8B, QLoRA, 2 x 2048" 90 model=llama3-8b method=lora storage=nf4 product=bf16 \
  sequence_len=2048 micro_batch_size=2
rates "attention by head and length" 40 "$programs/device_bench" attention device=cuda:0 --json
rates "products by shape" 40 "$programs/device_bench" gemm device=cuda:0 --json
rates "products of bytes" 40 "$programs/device_bench" int8 device=cuda:0 --json
rates "row kernels" 40 "$programs/device_bench" rows device=cuda:0 --json
tests GpuRun 60
rates "copies" 30 "$programs/device_bench" copies device=cuda:0 --json
if command -v python3 >/dev/null && timeout 20 python3 -c 'import torch' 2>/dev/null; then
  rates "PyTorch's attention, for the same shapes" 60 python3 "$here/torch_attention.py"
else
  skip "PyTorch's attention, for the same shapes" "python3 has no torch"
fi
step "Llama 3 8B, LoRA, 2 x 2048" 90 model=llama3-8b method=lora storage=bf16 product=bf16 \
  sequence_len=2048 micro_batch_size=2
step "Qwen2.5-1.5B, full, 8 x 2048" 60 model=qwen2.5-1.5b sequence_len=2048 micro_batch_size=8 \
  "${full[@]}"
step "Qwen2.5-1.5B, full, 2 x 8192" 60 model=qwen2.5-1.5b sequence_len=8192 micro_batch_size=2 \
  "${full[@]}"
# Steps of 512 Ki tokens, as published figures have them.
step "Qwen2.5-0.5B, full, 32 x 16 x 1024" 60 model=qwen2.5-0.5b micro_batch_size=16 \
  gradient_accumulation_steps=32 max_steps=1 "${full[@]}"
step "Qwen2.5-7B, full, 8-bit AdamW, 4 x 1024" 90 model=qwen2.5-7b micro_batch_size=4 \
  optimizer=adamw_8bit "${full[@]}"
step "Llama 7B, rotary" 90 model=llama-7b product=bf16 "${rotary[@]}"
step "Llama 7B, rotary, copies beside" 90 model=llama-7b product=bf16 "${rotary[@]}" \
  steps_per_rotation=2 overlap_rotation=true
if sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer); then
  for tool in memcheck racecheck; do
    part "compute-sanitizer $tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$programs/test_gpu" --gtest_brief=1 --gtest_filter='GpuParity.*'
  done
else
  skip "compute-sanitizer" "it is not installed"
fi
for suite in "${suites[@]}"; do
  [[ $suite =~ ^(GpuParity|GpuScale|GpuRun)$ ]] || tests "$suite" 60
done
if [[ -n $has_cudnn ]]; then
  step "Qwen2.5-1.5B, cuDNN's attention" 60 model=qwen2.5-1.5b micro_batch_size=16 \
    attention=cudnn "${full[@]}"
fi
step "Qwen2.5-3B, full, 8-bit AdamW" 60 model=qwen2.5-3b micro_batch_size=8 \
  optimizer=adamw_8bit "${full[@]}"
step "Qwen2.5-7B, rotary" 90 model=qwen2.5-7b product=bf16 "${rotary[@]}"
step "Llama 7B, rotary, one sequence" 90 model=llama-7b product=bf16 "${rotary[@]}" \
  micro_batch_size=1 gradient_checkpointing=true
step "Llama 7B, rotary every 2 steps" 90 model=llama-7b product=bf16 "${rotary[@]}" \
  steps_per_rotation=2
step "Llama 7B, rotary, int8 product" 90 model=llama-7b product=int8 storage=int8_row "${rotary[@]}"
step "SmolLM2-135M, full, f32" 60 model=smollm2-135m product=f32 micro_batch_size=16 method=full

tell ""
tell "$passed parts went through, $failed failed, $skipped skipped; $(seconds $(($(now) - begin))) s"
tell "$report: gpu-check.txt, gpu-check.jsonl"
[[ -z $stopped ]] || exit 130
((failed == 0))
