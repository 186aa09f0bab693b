#!/usr/bin/env bash
# The sources of a release build, copied to a folder of another name and depth, with other dates, and built there: libraries,
# tool and Debian packages must be the same bytes. By default ccache may bring most objects over, which proves what is made of
# them; two are compiled anew. With KVPACK_LONG_TESTS, or without ccache, all are.
# usage: tests/install/reproducible.sh BUILD_FOLDER PACKAGES_FOLDER (its packages, made under the same SOURCE_DATE_EPOCH)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(dirname "$(dirname "$here")")
build=$(cd "$1" && pwd)
packages=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/a/folder-with-a-name-of-another-length
other=$copy/build/of-it  # as deep below the sources: ccache makes paths relative

mkdir -p "$copy"
tar -C "$source" -cf - --exclude=__pycache__ CMakeLists.txt LICENSE capi docs include src | tar -C "$copy" -xmf -
settings=()
while IFS= read -r line; do settings+=("-D$line"); done < <(grep -E "^(CMAKE_(BUILD_TYPE|UNITY_BUILD|UNITY_BUILD_BATCH_SIZE|\
INSTALL_PREFIX|C_COMPILER|CXX_COMPILER|C_FLAGS|CXX_FLAGS|C_FLAGS_RELEASE|CXX_FLAGS_RELEASE|C_COMPILER_LAUNCHER|\
CXX_COMPILER_LAUNCHER)|KVPACK_(WITH_URING|BUILD_TOOL|LLAMA_INCLUDE)):" "$build/CMakeCache.txt")
export CCACHE_BASEDIR=$copy
cmake -S "$copy" -B "$other" -G Ninja --no-warn-unused-cli "${settings[@]}" -DKVPACK_BUILD_TESTS=OFF >/dev/null
if [ -n "${KVPACK_LONG_TESTS:-}" ]; then
  CCACHE_DISABLE=1 cmake --build "$other" --target all_but_tests >/dev/null
else
  anew=(CMakeFiles/kvpack.dir/src/muse/mla_expansion.cpp.o)
  [ ! -e "$build/CMakeFiles/kvpack.dir/Unity/unity_0_cxx.cxx.o" ] || anew+=(CMakeFiles/kvpack.dir/Unity/unity_0_cxx.cxx.o)
  CCACHE_DISABLE=1 ninja -C "$other" "${anew[@]}" >/dev/null
  cmake --build "$other" --target all_but_tests >/dev/null
fi
(cd "$other" && cpack -G DEB -B "$work/packages" >"$work/log" 2>&1) || { cat "$work/log"; exit 1; }

cd "$build"
compared=0
for file in libkvpack.a libkvpack_c.so kvpack capi/adapters/llama/libkvpack_llama.so; do
  [ -e "$file" ] || continue
  cmp "$file" "$other/$file"
  ! grep -aqF -e "$source/" -e "$build/" "$file" || { echo "$file names the folder that it was built in"; exit 1; }
  compared=$((compared + 1))
done
for package in "$packages"/*.deb; do
  cmp "$package" "$work/packages/$(basename "$package")"
  compared=$((compared + 1))
done
echo "reproducible: $compared libraries, programs and packages are the same bytes from another folder"
