#!/bin/sh
# Builds the reader for another machine and runs the conformance kit on it under qemu's user emulation:
#   cross.sh s390x-linux-gnu    big-endian
#   cross.sh aarch64-linux-gnu
# Needs TRIPLE-gcc with its C library, and qemu-ARCH; exit status 77 where one of them is missing. The program is
# linked statically, so that nothing else of that machine is needed. KVPACK_LONG_TESTS asks every case.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
triple=${1:?usage: cross.sh TRIPLE [FOLDER]}
arch=${triple%%-*}
folder=${2:-$(mktemp -d)}
compiler=$triple-gcc
emulator=$(command -v "qemu-$arch" || command -v "qemu-$arch-static" || true)
if ! command -v "$compiler" >/dev/null || [ -z "$emulator" ]; then
  echo "skipped: $compiler or qemu-$arch is not installed"
  exit 77
fi
mkdir -p "$folder"
[ $# -gt 1 ] || trap 'rm -rf "$folder"' EXIT
program=$folder/kvpack_c99
"$compiler" -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -O2 -static -I"$here" -o "$program" "$here"/*.c
file "$program" 2>/dev/null || true
sample=${KVPACK_LONG_TESTS:+0}
if [ -n "$sample" ]; then
  "$here/check.sh" durable "$emulator $program" --full
  "$here/check.sh" handoff "$emulator $program"
else
  "$here/check.sh" durable "$emulator $program" --sample 20 \
    --only vectors,extras,rejections,pins,semantic,objects,known-answers,blobs,canonical-json,pack-sets,large-sweeps
  "$here/check.sh" handoff "$emulator $program" --sample 200 --cross 16
fi
