#!/usr/bin/env bash
# clang-tidy over all public headers at once. usage: tests/tidy.sh BUILD_FOLDER (any folder: one file is left there)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
all_headers=$1/all_headers.cpp
(cd include && find kvpack -name '*.h' | sort | sed 's/.*/#include "&"/') >"$all_headers"
clang-tidy --quiet --config-file="$PWD/.clang-tidy" "$all_headers" -- -std=c++20 -I"$PWD/include"
echo "clang-tidy: clean"
