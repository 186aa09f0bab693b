#!/usr/bin/env bash
# The C++ examples of the documents: what `save` writes, `readme` restores, and nobody else does; the adapters go on from
# what they have saved, with the state that they would have had without.
# usage: examples.sh SAVE README ADAPTER_GQA ADAPTER_HYBRID
set -euo pipefail
save=$(realpath "$1")
readme=$(realpath "$2")
gqa=$(realpath "$3")
hybrid=$(realpath "$4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
umask 077

head -c 32 /dev/zero | tr '\0' 'c' >key
head -c 32 /dev/zero | tr '\0' 'd' >other-key

expect() {
  local wanted=$1 code=$2 found=0 output
  shift 2
  output=$("$@" 2>&1) || found=$?
  if [ "$found" -ne "$code" ] || [ "$output" != "$wanted" ]; then
    printf 'wanted exit %s and:\n%s\nfound exit %s and:\n%s\n' "$code" "$wanted" "$found" "$output"
    exit 1
  fi
}

expect "6 records, 102400 bytes" 0 "$save" key one.kvset
expect $'layer 0 attention.k: 22400 bytes\nlayer 0 attention.v: 22400 bytes' 0 "$readme" key one.kvset
expect "authentication:pack set tenant mismatch" 4 "$readme" other-key one.kvset
head -c -1 one.kvset >short.kvset
expect "truncated:pack set does not end with its commit footer" 4 "$readme" key short.kvset
expect "expectation:target exists with different bytes" 4 "$save" key one.kvset

expect $'saved 3 cuts\nrestored 512 tokens, computed 188, same state\nwith an adapter: restored 0 tokens' 0 \
  "$gqa" key gqa.store
expect $'saved a cut of 512 tokens\nthe same request: restored 512 of 700 tokens, same state
a shorter one: restored 0 of 300 tokens, same state\nanother from token 400 on: restored 0 of 700 tokens, same state' 0 \
  "$hybrid" key hybrid.store
echo "examples: as documented"
