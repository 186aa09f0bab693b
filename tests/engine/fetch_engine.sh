#!/bin/sh
# Fetches llama.cpp v0.5.0 for the engine tests and the demo: headers and prebuilt CPU libraries, pinned by digest.
#
#   tests/engine/fetch_engine.sh DIR
#
# leaves DIR/include (llama.h, gguf.h, ggml*.h), DIR/lib (libllama, libggml*), DIR/licenses. Both packages are MIT.
# No install script of a package runs. A DIR that is complete is left alone and needs no network.
#
# Exit: 0 DIR is complete; 2 usage; 3 the engine is not to be had here (no npm, no registry, no libraries for this
# machine): run on synthetic planes; 4 an archive is not the pinned one.
set -eu

version=3.22.1
sources_name=node-llama-cpp                # a git bundle of the sources; the headers come from it
sources_file=node-llama-cpp-$version.tgz
sources_sha256=a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f
libraries_name=@node-llama-cpp/linux-x64   # built from those sources
libraries_file=node-llama-cpp-linux-x64-$version.tgz
libraries_sha256=0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0
stamp="$version $sources_sha256 $libraries_sha256"

say() { echo "fetch_engine: $*" >&2; }
unavailable() {
  say "$*"
  exit 3
}

if [ $# -ne 1 ] || [ -z "$1" ]; then
  say "usage: $0 DIR"
  exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)

if [ -f "$dir/complete" ] && [ "$(cat "$dir/complete")" = "$stamp" ]; then
  say "llama.cpp v0.5.0 (package version $version) is already in $dir"
  exit 0
fi

case "$(uname -s) $(uname -m)" in
  "Linux x86_64") ;;
  *) unavailable "there are no prebuilt libraries for $(uname -s) $(uname -m)" ;;
esac
for tool in npm git tar sha256sum; do
  command -v "$tool" >/dev/null || unavailable "$tool is not installed"
done

work=$(mktemp -d "$dir/partial.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

matches() { echo "$2  $1" | sha256sum -c --status - 2>/dev/null; }

# fetch NAME FILE SHA256: the archive as $dir/archives/FILE
fetch() {
  if [ -f "$dir/archives/$2" ] && matches "$dir/archives/$2" "$3"; then
    return 0
  fi
  say "npm pack $1@$version"
  mkdir -p "$dir/archives"
  if ! (cd "$work" && npm pack "$1@$version" --ignore-scripts --loglevel=error --pack-destination "$work" \
      --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=120000 >"$work/npm.log" 2>&1); then
    sed 's/^/  /' "$work/npm.log" >&2
    unavailable "npm could not be reached or does not have $1@$version"
  fi
  if ! matches "$work/$2" "$3"; then
    say "$2 is not the pinned archive: SHA-256 is $(sha256sum "$work/$2" | cut -c1-64), expected $3"
    exit 4
  fi
  mv "$work/$2" "$dir/archives/$2"
}

fetch "$sources_name" "$sources_file" "$sources_sha256"
fetch "$libraries_name" "$libraries_file" "$libraries_sha256"

tar -xzf "$dir/archives/$sources_file" -C "$work" package/llama/gitRelease.bundle
(
  unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
  git clone -q --no-checkout "$work/package/llama/gitRelease.bundle" "$work/sources" 2>"$work/git.log" &&
    git -C "$work/sources" checkout -q HEAD -- include ggml/include LICENSE
) || {
  sed 's/^/  /' "$work/git.log" >&2
  say "the bundle in $sources_file could not be unpacked"
  exit 4
}
tar -xzf "$dir/archives/$libraries_file" -C "$work" package/bins/linux-x64 package/LICENSE

mkdir "$work/include" "$work/lib" "$work/licenses"
cp "$work"/sources/include/*.h "$work"/sources/ggml/include/*.h "$work/include/"
cp "$work"/package/bins/linux-x64/libllama.v*.so "$work"/package/bins/linux-x64/libggml*.so "$work/lib/"
cp "$work/sources/LICENSE" "$work/licenses/llama.cpp"
cp "$work/package/LICENSE" "$work/licenses/node-llama-cpp"

rm -rf "${dir:?}/include" "${dir:?}/lib" "${dir:?}/licenses" "${dir:?}/complete"
mv "$work/include" "$work/lib" "$work/licenses" "$dir/"
echo "$stamp" >"$dir/complete"
say "llama.cpp v0.5.0 (package version $version) is in $dir"
