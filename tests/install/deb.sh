#!/usr/bin/env bash
# The Debian packages of a release build: made, made again with the same bytes from another folder (reproducible.sh),
# installed, used from C, C++, Python, shells and beside llama.cpp as a stranger would, and removed. Without root they are
# unpacked into a folder instead. With KVPACK_INSTALL_PACKAGES nothing may be missing: neither the manual page, nor the
# adapter of llama.cpp where there is an engine. usage: tests/install/deb.sh BUILD_FOLDER [ENGINE_FOLDER]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(dirname "$(dirname "$here")")
build=$(cd "$1" && pwd)
engine=${2:-$source/build/engine}
[ -e "$engine/complete" ] || engine=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Before 2020 no packaged file can be.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1577836800}
cmake -S "$source" -B "$build" -DCMAKE_INSTALL_PREFIX=/usr >/dev/null
cmake --build "$build" --target all_but_tests >/dev/null
(cd "$build" && cpack -G DEB -B "$work/packages" >"$work/log" 2>&1) || { cat "$work/log"; exit 1; }
bash "$here/reproducible.sh" "$build" "$work/packages"

packages=(libkvpack1 libkvpack-dev kvpack python3-kvpack)
if compgen -G "$work/packages/libkvpack-llama_*.deb" >/dev/null; then
  # It goes first: the library that it needs cannot be removed before it.
  packages=(libkvpack-llama "${packages[@]}")
elif [ -n "$engine" ] && [ -n "${KVPACK_INSTALL_PACKAGES:-}" ]; then
  echo "no package libkvpack-llama, and $engine has what it is built from"
  exit 1
fi
file_of() { echo "$work/packages/$1"_*.deb; }
for name in "${packages[@]}"; do
  [ -e "$(file_of "$name")" ] || { echo "no package $name"; exit 1; }
  dpkg-deb -f "$(file_of "$name")" Package Section Depends
done

# What they hold is looked up in the packages: a system may leave out manual pages when it installs.
holds() {  # package, files below /usr
  local package=$1 file list
  shift
  list=$(dpkg-deb --fsys-tarfile "$(file_of "$package")" | tar -t)
  for file in "$@" "share/doc/$package/copyright"; do
    [[ $'\n'$list$'\n' == *$'\n'"./usr/$file"$'\n'* ]] || { echo "$package lacks /usr/$file"; exit 1; }
  done
}
bash_completion=share/bash-completion/completions/kvpack
zsh_completion=share/zsh/vendor-completions/_kvpack
fish_completion=share/fish/vendor_completions.d/kvpack.fish
holds libkvpack1
holds libkvpack-dev include/kvpack_c.h include/kvpack.hpp include/kvpack/core/cut_restore.h
holds kvpack bin/kvpack "$bash_completion" "$zsh_completion" "$fish_completion"
holds python3-kvpack lib/python3/dist-packages/kvpack/__init__.py lib/python3/dist-packages/kvpack/py.typed
[ "${packages[0]}" != libkvpack-llama ] || holds libkvpack-llama include/llama_kvpack.h
if [ -n "${KVPACK_INSTALL_PACKAGES:-}" ] || command -v lowdown >/dev/null; then
  holds kvpack share/man/man1/kvpack.1.gz
  dpkg-deb --fsys-tarfile "$(file_of kvpack)" | tar -xO ./usr/share/man/man1/kvpack.1.gz | gzip -dc >"$work/page"
  grep '^kvpack - ' "$work/page" >/dev/null
fi

use() {  # root of the installation, empty for the real one
  local root=$1 libdir shell file
  libdir=$(dirname "$(find "$root/usr/lib" -name 'libkvpack_c.so' -print -quit)")
  export LD_LIBRARY_PATH=${root:+$libdir}
  export PKG_CONFIG_PATH=$libdir/pkgconfig PYTHONPATH=${root:+$root/usr/lib/python3/dist-packages}
  [ -z "$root" ] || export KVPACK_LIBRARY=$libdir/libkvpack_c.so.1
  local c=(cc -std=c99 -Wall -Wextra -Werror -pedantic)
  # shellcheck disable=SC2046
  "${c[@]}" "$here/consumer/main.c" $(pkg-config --cflags --libs kvpack_c) -o "$work/c"
  "$work/c"
  local llama=
  if [ "${packages[0]}" = libkvpack-llama ] && [ -n "$engine" ]; then
    llama=$engine
    # shellcheck disable=SC2046
    "${c[@]}" -isystem "$engine/include" "$here/consumer/llama.c" $(pkg-config --cflags --libs kvpack_llama) \
      "$engine/lib/libllama.v0.5.0.so" "$engine/lib/libggml.v0.5.0.so" "$engine/lib/libggml-base.so" \
      -Wl,-rpath,"$engine/lib" -o "$work/llama"
    "$work/llama"
  fi
  cmake -S "$here/consumer" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release -DENGINE="$llama" \
    ${root:+-DCMAKE_PREFIX_PATH="$root/usr"} >/dev/null
  cmake --build "$work/consumer" >/dev/null
  "$work/consumer/cpp_core"
  "$work/consumer/cpp_compiled"
  "$work/consumer/c_cmake"
  [ -z "$llama" ] || "$work/consumer/llama_cmake"

  mkdir "$work/python"
  (cd / && /usr/bin/python3 -B -c 'import kvpack; print("python:", kvpack.__file__)' &&
    /usr/bin/python3 -B "$source/capi/python/examples/save_restore.py" "$work/python")

  "$root/usr/bin/kvpack" --version
  for shell in bash:$bash_completion zsh:$zsh_completion fish:$fish_completion; do
    file=$root/usr/${shell#*:}
    "$root/usr/bin/kvpack" completion "${shell%%:*}" | cmp - "$file"
  done
  bash -c "source '$root/usr/$bash_completion'; COMP_WORDS=(kvpack sto); COMP_CWORD=1; _kvpack
           [ \"\${COMPREPLY[*]}\" = store ]"
}

# Of an installation for the whole system also: the shells find by themselves what belongs to the command.
shells_know_it() {
  if command -v zsh >/dev/null; then
    # shellcheck disable=SC2016
    [ "$(zsh -f -c 'autoload -U compinit && compinit -u -D; print -r -- $_comps[kvpack]')" = _kvpack ] ||
      { echo "zsh does not complete kvpack"; exit 1; }
  fi
  if command -v fish >/dev/null; then
    HOME=$work fish -c 'complete -C "kvpack sto"' | grep '^store' >/dev/null || { echo "fish does not complete kvpack"; exit 1; }
  fi
}

if [ "$(id -u)" -eq 0 ] && [ -n "${KVPACK_INSTALL_PACKAGES:-}" ]; then
  trap 'dpkg -r "${packages[@]}" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
  dpkg -i "$work"/packages/*.deb >/dev/null
  use ""
  shells_know_it
  installed=$(dpkg -L "${packages[@]}")
  dpkg -r "${packages[@]}" >/dev/null
  while read -r file; do
    [ ! -e "$file" ] || [ -d "$file" ] || { echo "$file is still there"; exit 1; }
  done <<<"$installed"
  echo "packages: ${packages[*]}: installed, used from C, C++ and Python, and removed"
else
  for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  use "$work/root"
  echo "packages: ${packages[*]}: unpacked, and used from C, C++ and Python"
fi
