# Shared by the scripts beside it: `source "$(dirname "$0")/common.sh"`.
# Leaves the working directory at the root of the repository.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# Colours only where a person looks.
if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
else
  bold='' dim='' red='' green='' plain=''
fi
readonly bold dim red green plain

say() { printf '%s\n' "$*"; }
title() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
die() {
  printf '%s%s: %s%s\n' "$red" "$(basename "$0")" "$*" "$plain" >&2
  exit 1
}

# build PRESET [TARGET...]: configures and builds; everything when no target is named. What a script has in
# build_options, and the caller in JACKSCREW_CMAKE_OPTIONS, goes to CMake.
build_options=()
build() {
  local preset=$1
  shift
  local options log=build/$preset.log
  read -ra options <<<"${JACKSCREW_CMAKE_OPTIONS:-}"
  options+=("${build_options[@]}")
  # Rebuilding after a switch of branch, or the same file in the next clone (paths are taken from its
  # root), is then nearly free.
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  fi
  mkdir -p build
  if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    say "cmake could not configure preset $preset" >&2
    return 1
  fi
  if [[ $# -gt 0 ]]; then
    cmake --build --preset "$preset" --target "$@"
  else
    cmake --build --preset "$preset"
  fi
}

# A script of several parts runs each with `part NAME COMMAND...`, passes over one with
# `skip NAME WHY`, and ends with `parts_end`, which is the script's exit status and shows the last lines of
# what failed again. `set -e` is off within a part that is a function, so those are one chain of &&.
parts_passed=0
parts_failed=0
parts_skipped=0
parts_table=''
parts_failures=''

part() {
  local name=$1 begin=$SECONDS tee status=0
  local printed=build/parts/${0##*/}.log  # a script that is a part of another has its own
  shift
  mkdir -p build/parts
  rm -f "$printed.pipe"
  mkfifo "$printed.pipe"
  title "$name"
  tee "$printed" <"$printed.pipe" &
  tee=$!
  # In this shell and not in a pipeline: a part may wait for what its script has started.
  "$@" >"$printed.pipe" 2>&1 || status=$?
  wait "$tee"
  if [[ $status -eq 0 ]]; then
    parts_passed=$((parts_passed + 1))
    parts_table+="  ${green}ok${plain}    $name  ${dim}$((SECONDS - begin)) s${plain}"$'\n'
  else
    parts_failed=$((parts_failed + 1))
    parts_table+="  ${red}FAIL${plain}  $name  ${dim}$((SECONDS - begin)) s${plain}"$'\n'
    parts_failures+=$'\n'"-- the end of: $name"$'\n'"$(tail -n 20 "$printed")"$'\n'
  fi
  rm -f "$printed.pipe"
  return "$status"
}

skip() {
  parts_skipped=$((parts_skipped + 1))
  parts_table+="  ${dim}skip${plain}  $1: $2"$'\n'
}

parts_end() {
  title "$(basename "$0"): ${SECONDS} s"
  printf '%s' "$parts_table"
  printf '%s' "$parts_failures"
  say "$parts_passed passed, $parts_failed failed, $parts_skipped skipped"
  [[ $parts_failed -eq 0 ]]
}
