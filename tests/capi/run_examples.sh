#!/bin/sh
# Runs the examples as a person would: a key file, a set saved and restored, refusals, the set verified, a store, and
# two caches, each in two runs.
# usage: run_examples.sh FOLDER SAVE_RESTORE README STORE CACHE CACHE_PLANES [VALGRIND]
set -eu
folder=$1 save_restore=$2 readme=$3 store=$4 cache=$5 cache_planes=$6 valgrind=${7:-}
rm -rf "$folder"
mkdir -p "$folder"
(umask 077 && head -c 32 /dev/urandom >"$folder/store.key")
(umask 077 && head -c 32 /dev/urandom >"$folder/other.key")

say() {
  printf '%s\n' "$1"
}
want() {
  case $2 in *"$1"*) ;; *) say "missing: $1" && say "in: $2" && exit 1 ;; esac
}

output=$("$save_restore" "$folder")
want "restored: every byte as it was saved" "$output"
want "another model: refused: expectation: identity field weights_config differs" "$output"
want "another tenant's keys: refused: authentication: pack set tenant mismatch" "$output"
want "one flipped bit: refused: checksum: pack set record digest mismatch" "$output"
say "$output"

output=$("$readme" "$folder/store.key" "$folder/session.kvset")
want "authenticated: 5 records" "$output"
say "$output"
if output=$("$readme" "$folder/other.key" "$folder/session.kvset"); then exit 1; fi
want "refused: authentication: " "$output"
say "$output"

output=$("$store" "$folder")
want "saved: a cut of 256 tokens" "$output"
want "saved: a cut of 700 tokens" "$output"
want "verified: " "$output"
want "restored by its id: 256 tokens" "$output"
want "found: 512 tokens, 488 are left to compute" "$output"
want "store: 3 cuts, " "$output"
want "restored: as if everything had been computed" "$output"
say "$output"

for reused in 0 512; do
  output=$("$cache" "$folder")
  want "reused $reused of 700 tokens" "$output"
  want "the same state as without a cache" "$output"
  say "$output"
done

for found in "miss: nothing of 700 tokens" "restored: 700 of 700 tokens, "; do
  output=$("$cache_planes" "$folder")
  want "$found" "$output"
  want "restored: 512 of 1000 tokens, " "$output"
  want "the same state as without a cache" "$output"
  say "$output"
done

for example in "$cache" "$cache_planes"; do
  if output=$("$example" "$folder/store.key" 2>&1); then exit 1; fi # A file, where a folder should be.
  want "open: io: " "$output"
  say "$output"
done

if [ -n "$valgrind" ]; then
  rm -r "$folder/session.kvset" "$folder/store"
  "$valgrind" --quiet --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 "$save_restore" "$folder" >/dev/null
  "$valgrind" --quiet --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 "$store" "$folder" >/dev/null
  "$valgrind" --quiet --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 "$cache" "$folder" >/dev/null
  "$valgrind" --quiet --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 "$cache_planes" "$folder" >/dev/null
  say "valgrind: clean"
fi
