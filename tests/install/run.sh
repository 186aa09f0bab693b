#!/usr/bin/env bash
# Installs a build into a folder of its own and builds three strangers against it: a CMake C++ project, a C program by
# CMake, and a C program by pkg-config. usage: tests/install/run.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
libdir=$(dirname "$(dirname "$(find "$work/prefix" -name kvpack_c.pc)")")

cmake -S "$here/consumer" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/consumer" >/dev/null
"$work/consumer/cpp_core"
"$work/consumer/cpp_compiled"
LD_LIBRARY_PATH=$libdir "$work/consumer/c_cmake"

export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
cc -std=c99 -Wall -Wextra -Werror -pedantic "$here/consumer/main.c" $(pkg-config --cflags --libs kvpack_c) -o "$work/c_pkgconfig"
LD_LIBRARY_PATH=$libdir "$work/c_pkgconfig"

"$work/prefix/bin/kvpack" --version
echo "installed package: header-only C++, compiled C++, C by CMake and C by pkg-config work"
