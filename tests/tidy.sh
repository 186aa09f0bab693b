#!/usr/bin/env bash
# clang-tidy over what is compiled into the libraries and the tool, and over all headers once.
# usage: tests/tidy.sh BUILD_FOLDER (with compile_commands.json of a clang build)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
all_headers=$build/all_headers.cpp
{ cd include && find kvpack -name '*.h' | sort | sed 's/.*/#include "&"/'; } >"$all_headers"
{
  printf '%s\n' "$all_headers"
  git ls-files 'src/*.cpp' 'capi/*.cpp'
} | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" --extra-arg=-std=c++20 --extra-arg=-I"$PWD/include"
echo "clang-tidy: clean"
