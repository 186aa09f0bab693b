#!/usr/bin/env bash
# The single header: compiled alone with every warning, with JSON and without; twice in one program, likewise; and under both
# conformance kits. The endpoint of the formats sees nothing else; that of the protocols takes the replay ledger and the span
# schedule, which are of other rooms, from the sources and from the compiled library, built here where no folder is named.
# usage: tests/install/single_header.sh [BUILD_FOLDER] [SAMPLE]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(dirname "$(dirname "$here")")
build=${1:-}
sample=${2:-300}
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

# A function that is not inline would be there twice.
sed 's|<kvpack/core/[a-z]*.h>|"kvpack.hpp"|' "$here/consumer/core.cpp" >"$work/first.cpp"
cat >"$work/second.cpp" <<'CPP'
#include "kvpack.hpp"
kvpack::Id32 other_id() { return kvpack::Id32::filled(2); }
CPP
for json in "" -DKVPACK_WITH_JSON; do
  for file in first second; do
    $compiler -std=c++20 -O0 ${json:+"$json"} -I"$work" -c "$work/$file.cpp" -o "$work/$file.o"
  done
  $compiler "$work/first.o" "$work/second.o" -lcrypto -o "$work/twice"
  "$work/twice"
done

# The endpoints see the rooms only through the one header. What they take beside them is their own protocol.
$compiler -std=c++20 -O1 -DKVPACK_WITH_JSON -DKVPACK_HEADERS_ALONE -I"$work/rooms" -I"$source/tests" -I"$source/src" \
  -c "$source/tests/conformance/endpoint.cpp" -o "$work/endpoint.o"
$compiler "$work/endpoint.o" -lcrypto -pthread -o "$work/endpoint"
python3 "$source/conformance/run.py" --impl "$work/endpoint" --sample "$sample"

# Where the one header has a room, its folder comes first.
$compiler -std=c++20 -O0 -DKVPACK_WITH_JSON -I"$work/rooms" -I"$source/tests" -I"$source/src" -I"$source/include" \
  -c "$source/tests/conformance/handoff_endpoint.cpp" -o "$work/handoff_endpoint.o"
if [ -z "$build" ]; then
  build=$work/build
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DKVPACK_BUILD_TESTS=OFF >/dev/null
  cmake --build "$build" --target kvpack >/dev/null
fi
libraries=(-lsqlite3 -lssl -lcrypto)
if pkg-config --exists liburing; then libraries+=(-luring); fi
$compiler "$work/handoff_endpoint.o" "$build/libkvpack.a" "${libraries[@]}" -pthread -o "$work/handoff_endpoint"
python3 "$source/conformance/run_handoff.py" --impl "$work/handoff_endpoint" --sample "$sample"
echo "single header: compiles alone, links twice, and passes both kits"
