#!/usr/bin/env bash
# OpenSSL of other machines, unpacked and not installed: openssl.sh FOLDER ARCHITECTURE...
# gives FOLDER/ARCHITECTURE/usr for each of Debian's names (arm64, s390x). What is there already stays.
#
# Installing it beside this machine's own would need the same version for all architectures, and security updates of
# some come days after those of others. Needs root for dpkg; the architectures go again, whatever happens.
set -euo pipefail
folder=${1:?usage: openssl.sh FOLDER ARCHITECTURE...}
shift
missing=()
for architecture in "$@"; do
  [ -e "$folder/$architecture/complete" ] || missing+=("$architecture")
done
[ ${#missing[@]} -gt 0 ] || exit 0

added=()
work=$(mktemp -d)
chmod 755 "$work"
clean_up() {
  rm -rf "$work"
  for architecture in "${added[@]}"; do dpkg --remove-architecture "$architecture"; done
}
trap clean_up EXIT
trap 'exit 130' INT TERM

known=$(dpkg --print-foreign-architectures)
packages=()
for architecture in "${missing[@]}"; do
  if ! grep -qx "$architecture" <<<"$known"; then
    dpkg --add-architecture "$architecture"
    added+=("$architecture")
  fi
  packages+=("libssl3:$architecture" "libssl-dev:$architecture")
done
apt-get update -qq
(cd "$work" && apt-get download -qq "${packages[@]}" 2>/dev/null)
for architecture in "${missing[@]}"; do
  rm -rf "${folder:?}/$architecture"
  mkdir -p "$folder/$architecture"
  for package in "$work"/*_"$architecture".deb; do dpkg-deb -x "$package" "$folder/$architecture"; done
  touch "$folder/$architecture/complete"
done
