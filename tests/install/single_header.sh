#!/usr/bin/env bash
# The single header: compiled alone with every warning, with JSON and without; twice in one program; and under the
# conformance kit, which then runs on nothing else. usage: tests/install/single_header.sh [SAMPLE]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(dirname "$(dirname "$here")")
sample=${1:-300}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiler=${CXX:-c++}
if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

python3 "$source/src/cmake/amalgamate.py" "$source/include" "$source/LICENSE" "$work/kvpack.hpp" --forward "$work/rooms"
cp "$work/kvpack.hpp" "$work/rooms/"

printf '#include "kvpack.hpp"\n' >"$work/alone.cpp"
for json in "" -DKVPACK_WITH_JSON; do
  $compiler -std=c++20 "${warnings[@]}" ${json:+"$json"} -I"$work" -fsyntax-only "$work/alone.cpp"
done

sed 's|<kvpack/core/[a-z]*.h>|"kvpack.hpp"|' "$here/consumer/core.cpp" >"$work/first.cpp"
cat >"$work/second.cpp" <<'CPP'
#include "kvpack.hpp"
kvpack::Id32 other_id() { return kvpack::Id32::filled(2); }
CPP
$compiler -std=c++20 -O1 -I"$work" "$work/first.cpp" "$work/second.cpp" -lcrypto -o "$work/twice"
"$work/twice"

# The endpoint sees the rooms only through the one header. What it takes beside them is its own protocol.
$compiler -std=c++20 -O1 -DKVPACK_WITH_JSON -DKVPACK_HEADERS_ALONE -I"$work/rooms" -I"$source/tests" -I"$source/src" \
  -c "$source/tests/conformance/endpoint.cpp" -o "$work/endpoint.o"
$compiler "$work/endpoint.o" -lcrypto -pthread -o "$work/endpoint"
python3 "$source/conformance/run.py" --impl "$work/endpoint" --sample "$sample"
echo "single header: compiles alone, links twice, and passes the kit"
