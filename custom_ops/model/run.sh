#!/usr/bin/env bash
# Checks the models with Spin: `run.sh` all of them, `run.sh votes` one. Prints model, parameters, states and
# verdict. Models marked "wrong" break one rule on purpose and have to fail, or the check would prove nothing.
set -euo pipefail
cd "$(dirname "$0")"

for tool in spin cc; do
  command -v "$tool" >/dev/null || {
    echo "run.sh needs '$tool', which is not on PATH. Install it, for example: apt-get install spin gcc" >&2
    exit 2
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Prints the number of states and the verdict: ok (all states seen, no error), error, or unfinished.
explore() {
  local model=$1 dir
  shift
  dir=$(mktemp -d -p "$work")
  cp ./*.pml ./*.inc "$dir"
  (
    cd "$dir"
    spin -a "$@" "$model.pml" >spin.out 2>&1 && cc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c || {
      cat spin.out >&2
      echo "0 broken"
      exit
    }
    # -E: an engine that waits inside a vote is no valid end, but the model's Monitor says so more precisely.
    timeout -k 5 200 ./pan -E -m1000000 -w24 >pan.out 2>&1 || true
    local states verdict=unfinished
    states=$(awk '/states, stored/ { print $1 }' pan.out)
    if grep -q 'assertion violated' pan.out; then
      verdict=error
    elif grep -q 'errors: 0$' pan.out && ! grep -Eq 'not completed|too small|out of memory' pan.out; then
      verdict=ok
    fi
    echo "${states:-0} $verdict"
  )
  rm -rf "$dir"
}

check() {  # expected verdict, model, parameters
  local expected=$1 model=$2 states verdict
  shift 2
  [[ -z $only || $only == "$model" ]] || return 0
  local flags=("${@/#/-D}")
  read -r states verdict < <(explore "$model" "${flags[@]}")
  local line=ok
  if [[ $verdict != "$expected" ]]; then
    line="FAILED ($verdict)"
    failed=1
  elif [[ $expected == error ]]; then
    line="ok: wrong, and found out"
  fi
  printf '%-9s %-34s %10s states  %s\n' "$model" "$*" "$states" "$line"
}

only=${1:-}

check ok votes N=2 R=3
check ok votes N=3 R=2
check ok votes N=4 R=1
check ok votes N=5 R=1
check ok votes N=4 R=2 ENTRY_IN_ONE_STEP
check error votes N=2 R=2 LATE_CLEAR
check error votes N=2 R=2 NO_NOTICE
check error votes N=3 R=2 ONE_OPENER
check error votes N=3 R=1 EARLY_ROUND

check ok names N=2 B=1 K=3
check ok names N=2 B=2 K=2
check ok names N=2 B=3 K=1
check ok names N=3 B=1 K=3
check ok names N=3 B=2 K=1
check error names N=2 B=2 K=2 CLEAR_LATE
check error names N=2 B=2 K=2 NO_EXCHANGE
check error names N=2 B=2 K=2 ERROR_EARLY
check error names N=2 B=2 K=2 TRUST_PLAN
check error names N=2 B=2 K=2 FIRST_ONLY

check ok steps N=2 K=2
check ok steps N=2 K=3 OVERLAP
check ok steps N=3 K=1
check ok steps N=3 K=2
check error steps N=2 K=2 NO_STOP
check error steps N=2 K=2 LATE_STOP
check error steps N=2 K=2 NO_REFUSAL
check error steps N=2 K=2 ONE_TAG OVERLAP
check error steps N=2 K=2 AGREED_FIRST OVERLAP

check ok shutdown N=2 R=2
check ok shutdown N=3 R=1
check ok shutdown N=2 R=2 ALL_LEAVE VOTES_ONLY
check ok shutdown N=3 R=1 ALL_LEAVE VOTES_ONLY
check error shutdown N=2 R=2 VOTES_ONLY
check error shutdown N=2 R=2 NO_ANSWER
check error shutdown N=2 R=2 CLOSE_EARLY
check error shutdown N=2 R=2 NO_REFUSAL

check ok join N=2 B=1 K=3 R=2
check ok join N=2 B=2 K=2 R=2
check ok join N=3 B=1 K=2 R=2
check ok join N=3 B=2 K=1 R=1
check error join N=2 B=1 K=2 AND_ONLY
check error join N=2 B=1 K=2 NO_ANSWER
check error join N=2 B=1 K=2 JOIN_BUSY
check error join N=2 B=1 K=2 JOIN_SILENT

check ok sets M=3 S=2 B=2
check ok sets M=2 S=2 B=2
check ok sets M=3 S=3 B=1
check ok sets M=3 S=2 B=1 LEAVE
check ok sets M=2 S=2 B=1 LEAVE
check error sets M=3 S=3 B=1 ONE_ENGINE
check error sets M=2 S=2 B=1 ONE_WIRE
check error sets M=3 S=3 B=1 IN_TURN
check error sets M=2 S=2 B=1 LEAVE NO_ANSWER

check ok goodbye N=2 K=2
check ok goodbye N=3 K=2
check ok goodbye N=3 K=1 ALL_DISCONNECT
check error goodbye N=2 K=2 FREE_EARLY
check error goodbye N=2 K=2 LATE_MESSAGE
check error goodbye N=2 K=1 NO_ECHO

check ok commits H=2 S=4 K=2
check ok commits H=3 S=3 K=2
check error commits H=3 S=3 K=2 KEEP_OLD
check error commits H=3 S=3 K=2 NO_COPY
check error commits H=2 S=2 K=1 ANY_HOSTS

exit "$failed"
