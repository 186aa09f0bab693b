#!/bin/sh
# docs/cli.md as a manual page. usage: manual.sh LOWDOWN CLI_MD VERSION OUT
set -eu
{
  printf '%s\n' 'title: kvpack' 'section: 1' "source: kvpack $3" 'volume: User Commands' ''
  printf '%s\n' '# NAME' '' 'kvpack - save, move, check and give back KV caches' '' '# DESCRIPTION' ''
  # Links of the repository lead nowhere in a page: their words stay.
  tail -n +2 "$2" | sed -e 's/\[\([^]]*\)\]([^)]*)/\1/g' -e 's/^## \(.*\)/# \U\1/' -e 's/^### /## /'
} | "$1" -s -Tman -m date=1970-01-01 | gzip -9n >"$4"
