#!/usr/bin/env bash
# The Debian packages of a release build: made, made again with the same bytes, installed, used from C, C++ and Python as a
# stranger would, and removed. Without root they are unpacked into a folder instead. usage: tests/install/deb.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Before 2020 no packaged file can be: what counts is that both runs say the same.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1577836800}
cmake -S "$(dirname "$(dirname "$here")")" -B "$build" -DCMAKE_INSTALL_PREFIX=/usr >/dev/null
cmake --build "$build" --target all_but_tests >/dev/null
make_packages() { (cd "$build" && cpack -G DEB -B "$1" >"$1.log" 2>&1) || { cat "$1.log"; return 1; }; }
make_packages "$work/first"
make_packages "$work/second"
for package in "$work"/first/*.deb; do cmp "$package" "$work/second/$(basename "$package")"; done

packages=(libkvpack1 libkvpack-dev kvpack python3-kvpack)
# Where the build knows llama.cpp. It goes first: the library that it needs cannot be removed before it.
compgen -G "$work/first/libkvpack-llama_*.deb" >/dev/null && packages=(libkvpack-llama "${packages[@]}")
for name in "${packages[@]}"; do
  file=$(echo "$work/first/${name}"_*.deb)
  [ -e "$file" ] || { echo "no package $name"; exit 1; }
  dpkg-deb -f "$file" Package Section Depends
done

use() {  # root of the installation, empty for the real one
  local root=$1 libdir
  libdir=$(dirname "$(find "$root/usr/lib" -name 'libkvpack_c.so' -print -quit)")
  export LD_LIBRARY_PATH=${root:+$libdir}
  export PKG_CONFIG_PATH=$libdir/pkgconfig PYTHONPATH=${root:+$root/usr/lib/python3/dist-packages}
  [ -z "$root" ] || export KVPACK_LIBRARY=$libdir/libkvpack_c.so.1
  # shellcheck disable=SC2046
  cc -std=c99 -Wall -Wextra -Werror -pedantic "$here/consumer/main.c" $(pkg-config --cflags --libs kvpack_c) -o "$work/c"
  "$work/c"
  cmake -S "$here/consumer" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release ${root:+-DCMAKE_PREFIX_PATH="$root/usr"} >/dev/null
  cmake --build "$work/consumer" >/dev/null
  "$work/consumer/cpp_core" && "$work/consumer/cpp_compiled" && "$work/consumer/c_cmake"
  /usr/bin/python3 -c 'import kvpack; print("python:", kvpack.__file__)'
  "$root/usr/bin/kvpack" --version
  [ ! -e "$root/usr/share/man/man1/kvpack.1.gz" ] || gzip -t "$root/usr/share/man/man1/kvpack.1.gz"
  bash -c "source '$root/usr/share/bash-completion/completions/kvpack'; COMP_WORDS=(kvpack sto); COMP_CWORD=1; _kvpack
           [ \"\${COMPREPLY[*]}\" = store ]"
}

if [ "$(id -u)" -eq 0 ] && [ -n "${KVPACK_INSTALL_PACKAGES:-}" ]; then
  dpkg -i "$work"/first/*.deb >/dev/null
  trap 'dpkg -r "${packages[@]}" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
  use ""
  dpkg -r "${packages[@]}" >/dev/null
  [ ! -e /usr/bin/kvpack ] || { echo "kvpack is still there"; exit 1; }
  echo "packages: the same bytes twice; installed, used from C, C++ and Python, and removed"
else
  for package in "$work"/first/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  use "$work/root"
  echo "packages: the same bytes twice; unpacked, and used from C, C++ and Python"
fi
