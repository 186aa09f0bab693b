#!/usr/bin/env bash
# The library on other machines: the endpoints of the conformance kit, and on aarch64, which has kernels of its own, the
# unit tests of SHA-256 kernels, cross-compiled, under qemu's user emulation.
#   run.sh [aarch64|s390x]...    both when none is named; s390x is big-endian, and on both `char` has no sign
# Vectors and rejections are asked in full, of the sweeps a sample; with KVPACK_LONG_TESTS everything, and the unit
# tests of kernels and formats on both. conformance/c99/cross.sh does the same for the C99 reader.
#
# Needs g++-MACHINE-linux-gnu, qemu-user and the sources of GoogleTest that Debian's libgtest-dev brings along; OpenSSL
# for these machines is fetched (openssl.sh), which needs root, or taken from KVPACK_CROSS_OPENSSL where an earlier run
# has left it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(dirname "$(dirname "$here")")
machines=("$@")
[ ${#machines[@]} -gt 0 ] || machines=(aarch64 s390x)

declare -A debian=([aarch64]=arm64 [s390x]=s390x)
for machine in "${machines[@]}"; do
  [ -n "${debian[$machine]:-}" ] || { echo "no such machine here: $machine" >&2; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl=$(realpath -m "${KVPACK_CROSS_OPENSSL:-$work/openssl}")
architectures=()
for machine in "${machines[@]}"; do architectures+=("${debian[$machine]}"); done
bash "$here/openssl.sh" "$openssl" "${architectures[@]}"

# Headers that are the same everywhere, without those of this machine that lie beside them.
mkdir -p "$work/headers"
ln -s /usr/include/nlohmann "$work/headers/nlohmann"

cd "$source"
sources=(src/base/*.cpp src/crypto/sha256_machine.cpp src/crypto/sha256_sets.cpp src/net/replay_ledger.cpp
  src/net/private_file.cpp)

# compile MACHINE: the endpoints, into $work/MACHINE.
compile() {
  local machine=$1 triple=$1-linux-gnu folder=$work/$1 root=$openssl/${debian[$1]}/usr
  local compiler=$triple-g++ objects=() file object
  local flags=(-std=c++20 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I"$source/include" -I"$source/src"
    -I"$source/tests" -isystem "$root/include" -isystem "$root/include/$triple" -isystem "$work/headers")
  # Its own bugs 105329 and 105651, as in the main build.
  flags+=(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi
  mkdir -p "$folder"
  for file in "${sources[@]}" src/crypto/sha256_plain.cpp; do
    object=$folder/$(basename "$file" .cpp).o
    $compiler "${flags[@]}" -c "$source/$file" -o "$object"
    objects+=("$object")
  done
  if [ "$machine" = aarch64 ]; then
    $compiler "${flags[@]}" -march=armv8-a+crypto -c "$source/src/crypto/sha256_armv8.cpp" -o "$folder/sha256_armv8.o"
    objects+=("$folder/sha256_armv8.o")
  fi
  "$triple-gcc-ar" rcs "$folder/libkvpack.a" "${objects[@]}"
  for file in endpoint handoff_endpoint; do
    $compiler "${flags[@]}" -c "$source/tests/conformance/$file.cpp" -o "$folder/$file.o"
    $compiler "$folder/$file.o" "$folder/libkvpack.a" -L"$root/lib/$triple" -lcrypto -pthread -o "$folder/$file"
  done
}

# emulator MACHINE: the command that runs its programs.
emulator() {
  local triple=$1-linux-gnu
  local program
  program=$(command -v "qemu-$1" || command -v "qemu-$1-static")
  echo "$program -L /usr/$triple -E LD_LIBRARY_PATH=$openssl/${debian[$1]}/usr/lib/$triple:/usr/$triple/lib"
}

# check MACHINE: compiles, then both kits.
check() {
  local machine=$1 run
  run=$(emulator "$machine")
  compile "$machine"
  if [ -n "${KVPACK_LONG_TESTS:-}" ]; then
    python3 "$source/conformance/run.py" --impl "$run $work/$machine/endpoint" --timeout 600 --full --kernels all
    python3 "$source/conformance/run_handoff.py" --impl "$run $work/$machine/handoff_endpoint" --kernels all
    google_test "$machine"
    kernel_tests "$machine"
    unit_tests "$machine"
  else
    python3 "$source/conformance/run.py" --impl "$run $work/$machine/endpoint" --sample 60 --kernels all --kernel-sample 20
    python3 "$source/conformance/run_handoff.py" --impl "$run $work/$machine/handoff_endpoint" --sample 200 --cross 16 --kernels all \
      --kernel-sample 50
    if [ "$machine" = aarch64 ]; then
      google_test "$machine"
      kernel_tests "$machine"
    fi
  fi
}

google=/usr/src/googletest

# test_object MACHINE SOURCE OBJECT [FLAG...]: compiles what uses GoogleTest.
test_object() {
  local machine=$1 triple=$1-linux-gnu root=$openssl/${debian[$1]}/usr file=$2 object=$3
  local compiler=$triple-g++
  shift 3
  if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi
  $compiler -std=c++20 -O1 -I"$source/include" -I"$source/src" -I"$source/tests" -isystem "$google/googletest/include" \
    -isystem "$google/googlemock/include" -isystem "$root/include" -isystem "$root/include/$triple" \
    -isystem "$work/headers" "$@" -c "$file" -o "$object"
}

# link_tests MACHINE PROGRAM OBJECT...
link_tests() {
  local machine=$1 triple=$1-linux-gnu folder=$work/$1 root=$openssl/${debian[$1]}/usr program=$2
  shift 2
  "$triple-g++" "$@" "$folder/gtest-all.o" "$folder/libkvpack.a" -L"$root/lib/$triple" -lcrypto -pthread \
    -o "$folder/$program"
}

# google_test MACHINE: GoogleTest for that machine, whose own speed does not matter.
google_test() {
  test_object "$1" "$google/googletest/src/gtest-all.cc" "$work/$1/gtest-all.o" -I"$google/googletest" -O0
}

# kernel_tests MACHINE: those of SHA-256 and HMAC by kernels, on every set that the machine has.
kernel_tests() {
  local folder=$work/$1
  test_object "$1" "$google/googletest/src/gtest_main.cc" "$folder/gtest_main.o" -O0
  test_object "$1" "$source/tests/crypto/sha256_kernels_test.cpp" "$folder/sha256_kernels_test.o"
  link_tests "$1" kernel_tests "$folder/gtest_main.o" "$folder/sha256_kernels_test.o"
  if [ "$1" = aarch64 ]; then
    $(emulator "$1") "$folder/kernel_tests" --gtest_list_tests | grep "/armv8 " >/dev/null \
      || { echo "the emulated processor has no kernels of its own" >&2; return 1; }
  fi
  $(emulator "$1") "$folder/kernel_tests" --gtest_brief=1
}

# unit_tests MACHINE: the formats' own.
unit_tests() {
  local machine=$1 folder=$work/$1 file object objects=("$work/$1/gmock-all.o")
  test_object "$machine" "$google/googlemock/src/gmock-all.cc" "$folder/gmock-all.o" -I"$google/googlemock" -O0
  for file in "$source"/tests/support/test_main.cpp "$source"/tests/core/*_test.cpp "$source"/tests/handoff/*_test.cpp; do
    # Those that count this process's memory are programs of their own.
    case $file in *memory_test.cpp) continue ;; esac
    object=$folder/$(basename "$(dirname "$file")")_$(basename "$file" .cpp).o
    test_object "$machine" "$file" "$object"
    objects+=("$object")
  done
  link_tests "$machine" unit_tests "${objects[@]}"
  (unset KVPACK_LONG_TESTS && KVPACK_SOURCE_DIR=$source $(emulator "$machine") "$folder/unit_tests" --gtest_brief=1)
}

# All at once: what one waits for does not hold up the others. Their output comes whole, one after the other.
declare -A jobs
for machine in "${machines[@]}"; do
  (set -e; check "$machine") >"$work/$machine.log" 2>&1 &
  jobs[$machine]=$!
done
failed=0
for machine in "${machines[@]}"; do
  outcome=0
  wait "${jobs[$machine]}" || outcome=$?
  echo "--- $machine"
  cat "$work/$machine.log"
  [ "$outcome" -eq 0 ] || { echo "$machine: failed"; failed=1; }
done
exit $failed
