#!/bin/sh
# Runs the examples as a person would: a key file, a set saved and restored, refusals, the set verified.
# usage: run_examples.sh FOLDER SAVE_RESTORE README [VALGRIND]
set -eu
folder=$1 save_restore=$2 readme=$3 valgrind=${4:-}
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

if [ -n "$valgrind" ]; then
  rm "$folder/session.kvset"
  "$valgrind" --quiet --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 "$save_restore" "$folder" >/dev/null
  say "valgrind: clean"
fi
