#!/usr/bin/env bash
# The demo: a KV cache saved, verified, restored in another process, and refused when anything differs; a store of such
# caches whose process is killed, and from which others go on; and a session that one store hands over to another.
#
#   tests/engine/demo.sh BUILD [PROGRAM]
#
# BUILD/kvpack is the tool, BUILD/tests/engine/PROGRAM (default: kvpack_demo) the engine's side. Works in a temporary
# folder of about 300 MB and removes it; leaves BUILD/store-report.html. Exit 0 only when everything was as promised.
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: $0 BUILD [PROGRAM]" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
demo=$build/tests/engine/${2:-kvpack_demo}
kvpack=$build/kvpack
work=$(mktemp -d "${TMPDIR:-/tmp}/kvpack-demo.XXXXXX")
keeper=  # Whoever works in the background.
trap '[ -z "$keeper" ] || kill -9 "$keeper"; rm -rf "$work"' EXIT
export PATH="$PATH:/usr/sbin"
cd "$work"

failures=0
table=()

step() { printf '\n%s\n' "$*"; }

# promised COMMAND..: runs it; a failure is counted and the demo goes on.
promised() {
  if ! "$@"; then
    echo "   NOT AS PROMISED: ${1##*/} ${*:2}"
    failures=$((failures + 1))
  fi
}

# tool ARGUMENTS..: shows and runs the command line, with its time.
tool() {
  local start end code=0
  echo "   \$ kvpack $*" | sed -E 's/([0-9a-f]{12})[0-9a-f]{52}/\1.../'
  start=$(date +%s%N)
  "$kvpack" "$@" 2>&1 | sed 's/^/     /' || code=$?
  end=$(date +%s%N)
  printf '   %-52s %8s ms\n' "done in" "$(((end - start) / 1000000)).$(((end - start) / 100000 % 10))"
  return "$code"
}

# refused WHAT REASON ARGUMENTS..: a restore that must end in exactly this refusal and leave the engine alone.
refused() {
  local what=$1 reason=$2 output verdict="refused, untouched"
  shift 2
  printf '\n   %s\n' "$what"
  if ! output=$("$demo" restore --key key --model model.gguf --refuse "$reason" "$@" 2>&1); then
    verdict="NOT AS PROMISED"
    failures=$((failures + 1))
  fi
  echo "$output"
  table+=("$(printf '%-42s   %-58s   %s' "$what" "$reason" "$verdict")")
}

# middle FILE: the offset of the byte in its middle.
middle() { echo $(($(stat -c %s "$1") / 2)); }
# cut_short IN OUT BYTES: a copy without the last BYTES.
cut_short() { head -c "-$3" "$1" >"$2"; }

echo "kvpack demo: 768 tokens of KV cache, 104 planes, saved, verified, restored elsewhere, and refused; a store; a handoff"

step "1. A model, and the same model with one bit of one weight flipped"
"$demo" make-model --model model.gguf
"$demo" flip --in model.gguf --out other.gguf --at $(($(stat -c %s model.gguf) - 1000))

step "2. A key: whoever does not have it can neither write nor change a cache that we accept"
tool keygen key
tool keygen other-key

step "3. A process computes the prompt and saves its cache"
mkdir objects
"$demo" save --model model.gguf --key key --objects objects --logits next.logits | tee save.log
pack=$(cd objects && echo *.kvpack)

step "4. The command line makes one file of it and verifies both"
identity=(--key key --tenant-id kvpack-demo)
promised tool set create "${identity[@]}" cache.kvset "objects/$pack"
promised tool verify "${identity[@]}" "objects/$pack"
promised tool verify "${identity[@]}" cache.kvset

step "5. A new process verifies the pack, restores it into an empty context and goes on"
restore_pack() {
  "$demo" restore --model model.gguf --key key --objects objects --pack "$pack" --logits next.logits | tee restore.log
}
promised restore_pack

step "6. Another one does the same from the single file"
promised "$demo" restore --model model.gguf --key key --set cache.kvset --logits next.logits

step "7. Why a cache of one model is none of another's"
"$demo" identity --model model.gguf --key key >ours.json
"$demo" identity --model other.gguf --key key >theirs.json
promised tool explain ours.json theirs.json

step "8. What is refused. Each time the engine holds another conversation, which its own restore would drop before it
   looks at a state. So nothing is given to it before everything has been verified."

chunk=$(cd objects && printf '%s\n' *.kvchunk | sed -n 52p)
cp -r objects flipped-chunk
rm "flipped-chunk/$chunk"
"$demo" flip --in "objects/$chunk" --out "flipped-chunk/$chunk" --at "$(middle "objects/$chunk")"
refused "one bit of one chunk flipped" "authentication: chunk object digest mismatch" \
  --objects flipped-chunk --pack "$pack"

mkdir flipped-pack
"$demo" flip --in "objects/$pack" --out "flipped-pack/$pack" --at "$(middle "objects/$pack")"
refused "one bit of the pack flipped" "authentication: manifest HMAC authentication failed" \
  --objects flipped-pack --pack "$pack"

"$demo" flip --in cache.kvset --out flipped.kvset --at "$(middle cache.kvset)"
refused "one bit of the set flipped" "checksum: pack set record digest mismatch" --set flipped.kvset

printf '\n   the same set, on the command line: exit code 4, refused\n'
code=0
tool verify "${identity[@]}" flipped.kvset || code=$?
promised [ "$code" -eq 4 ]
rm flipped.kvset

rm "flipped-chunk/$chunk"
cut_short "objects/$chunk" "flipped-chunk/$chunk" 4096
refused "a chunk without its last page" "bounds: invalid chunk size fields" --objects flipped-chunk --pack "$pack"
rm "flipped-chunk/$chunk"
refused "a chunk that is missing" "not_found: object is absent" --objects flipped-chunk --pack "$pack"
rm -r flipped-chunk

rm "flipped-pack/$pack"
cut_short "objects/$pack" "flipped-pack/$pack" 1
refused "the pack without its last byte" "bad_magic: invalid production commit footer magic" \
  --objects flipped-pack --pack "$pack"

cut_short cache.kvset short.kvset 1
refused "the set without its last byte" "truncated: pack set does not end with its commit footer" --set short.kvset
rm short.kvset

refused "the wrong key" "authentication: manifest HMAC authentication failed" \
  --objects objects --pack "$pack" --key other-key
refused "another model, one bit apart" "expectation: identity field weights_config differs" \
  --objects objects --pack "$pack" --model other.gguf
refused "another prompt, one token apart" "expectation: identity field token_root differs" \
  --objects objects --pack "$pack" --prompt other
refused "an engine that computes another attention" "expectation: identity field qualified_math differs" \
  --objects objects --pack "$pack" --flash-attention off

step "Refused, with which reason; the live conversation was compared bit for bit"
printf '   %-42s   %-58s   %s\n' "what was changed" "reason" "result"
printf '   %s\n' "${table[@]}"

step "9. A durable store of many cuts. A process saves at 512 and at 768 tokens, goes on, and is killed (SIGKILL) while
   it is saving a third time"
keep_until_killed() {
  local code=0 turns=0
  "$demo" keep --model model.gguf --key key --store cache.store --logits long.logits >keep.log 2>&1 &
  keeper=$!
  until grep -q "waiting to be killed" keep.log; do
    kill -0 "$keeper" 2>/dev/null && [ $((turns += 1)) -lt 1200 ] || break
    sleep 0.1
  done
  kill -9 "$keeper" 2>/dev/null || true
  wait "$keeper" 2>/dev/null || code=$?
  keeper=
  cat keep.log
  printf '   %-52s %s\n' "exit code of the killed process" "$code"
  [ "$code" -eq 137 ] && grep -q "waiting to be killed" keep.log
}
promised keep_until_killed

step "10. Nothing of the third save is to be seen, and both cuts are whole"
promised tool store ls "${identity[@]}" cache.store
promised tool store fsck "${identity[@]}" cache.store --deep

step "11. A new process takes the long prompt, finds the deepest prefix that is stored, restores it and computes the rest"
resume() {
  "$demo" resume --model model.gguf --key key --store cache.store "$@"
}
resume_long() { resume --prompt long --from 768 --logits long.logits | tee resume.log; }
promised resume_long

step "12. Another prompt leaves the first one at token 512: what both begin with is enough"
"$demo" compute --model model.gguf --prompt forked --logits forked.logits
promised resume --prompt forked --from 512 --logits forked.logits

step "13. A model that differs in one bit finds nothing, and the identity says why"
promised resume --model other.gguf --prompt long --from miss
manifest=$("$kvpack" store ls "${identity[@]}" cache.store | awk '$2 == 768 { print $1 }')
promised tool explain "${identity[@]}" "cache.store/objects/manifests/${manifest:0:2}/$manifest.kvpack" theirs.json

step "14. What the store has done, as a page"
promised tool store report "${identity[@]}" cache.store --out "$build/store-report.html" --force --title "kvpack demo"

step "15. An engine asks the nearest first: what is in memory, then the store. The store alone authenticates, so memory is never
   believed deeper than it"
serve() { "$demo" serve --model "$1" --key key --store muse.store --requests "$2"; }
promised serve model.gguf first:miss,long:resident:768,forked:resident:512

step "16. The process is gone, and with it what was in memory: the store serves the same requests"
promised serve model.gguf long:durable:896,long:resident:896

step "17. One bit of the deepest cut flips: it is reported and passed over. Another model is served nothing"
deepest=$("$kvpack" store ls "${identity[@]}" muse.store | awk '$2 == 896 { print $1 }' | head -1)
victim=muse.store/objects/manifests/${deepest:0:2}/$deepest.kvpack
"$demo" flip --in "$victim" --out flipped --at "$(middle "$victim")" && mv -f flipped "$victim"
promised serve model.gguf long:durable:768
promised serve other.gguf first:miss

step "18. Two ends that will trust each other and nobody else. Each makes its own key, a CA signs both, each pins the other's
   certificate, and one HMAC key is carried from here to there"
# enroll ARGUMENTS..: a step of the enrolment, without what it says. A disk that is slow for a moment is measured again.
enroll() {
  local turns=0
  echo "   \$ kvpack enroll $*"
  until "$kvpack" enroll "$@" >enroll.log 2>&1; do
    if ! grep -q "durable-reserve tail" enroll.log || [ $((turns += 1)) -eq 30 ]; then
      sed 's/^/     /' enroll.log
      return 1
    fi
  done
}
"$demo" describe-transfer --model model.gguf --identity muse.json --enrolment model.json --prompt first --tokens first.u32
promised enroll ca ca
for role in receiver producer; do
  promised enroll request $role --role $role --server-name localhost
  promised enroll sign ca $role/request.pem --out $role.pem
done
cp -p receiver/hmac.key producer/hmac.key
promised enroll finish receiver --role receiver --certificate receiver.pem --ca ca/ca.pem --peer producer.pem \
  --model model.json --listen 127.0.0.1:0

step "19. One process receives into a store of its own, another sends it the session of 768 tokens, over TLS 1.3"
at_both_ends=(--identity muse.json "${identity[@]}")
promised tool store init "${identity[@]}" arrived.store
start_receiver() {
  local turns=0
  while [ $((turns += 1)) -lt 600 ]; do
    if [ -z "$keeper" ] || ! kill -0 "$keeper" 2>/dev/null; then
      [ -z "$keeper" ] || grep -q "durable-reserve tail" receive.log || break
      "$kvpack" receive receiver/receiver.json --store arrived.store "${at_both_ends[@]}" --inbox --count 2 \
        >receive.log 2>&1 &
      keeper=$!
    fi
    address=$(sed -n 's/.*listening on //p' receive.log)
    [ -z "$address" ] || return 0
    sleep 0.1
  done
  cat receive.log
  return 1
}
address=
echo "   \$ kvpack receive receiver/receiver.json --store arrived.store --identity muse.json ... --inbox --count 2 &"
promised start_receiver
promised enroll finish producer --role producer --certificate producer.pem --ca ca/ca.pem --peer receiver.pem \
  --model model.json --receiver "$address" --server-name localhost
send() { tool send producer/producer.json --store muse.store "${at_both_ends[@]}" --tokens first.u32; }
promised send

step "20. The producer's disk comes back from an old copy, and the same generation is sent again. The receiver has it on its own disk"
send_again() {
  local code=0
  printf '{"next_generation": 1}\n' >producer/generation.json
  send >again.log || code=$?
  cat again.log
  printf '   %-52s %s\n' "exit code of the sender: 4, refused" "$code"
  [ "$code" -eq 4 ] && grep -q "replayed or stale generation" again.log
}
promised send_again
receiver_has_ended() {
  local code=0 turns=0
  while kill -0 "$keeper" 2>/dev/null && [ $((turns += 1)) -lt 600 ]; do sleep 0.1; done
  kill -9 "$keeper" 2>/dev/null || true
  wait "$keeper" 2>/dev/null || code=$?
  keeper=
  echo "   what the receiver says:"
  sed -E 's/^/     /; s/([0-9a-f]{12})[0-9a-f]{52}/\1.../' receive.log
  [ "$code" -eq 4 ] && grep -q "committed 768 tokens" receive.log && grep -q "replayed or stale generation" receive.log
}
promised receiver_has_ended

step "21. A new process where it has arrived compares every plane, installs it and goes on"
promised tool store fsck "${identity[@]}" arrived.store --deep
go_on() {
  "$demo" arrived --model model.gguf --key key --store arrived.store --sender muse.store --prompt long --from 768 \
    --logits long.logits
}
promised go_on

step "Times"
grep -h -e "prefill of" -e "save, durable" -e "verified restore" save.log restore.log
grep -h -e "saved, durable" keep.log
grep -h -e "found, verified" -e "computed the" resume.log

if [ "$failures" -ne 0 ]; then
  printf '\nFAILED: %d things were not as promised\n' "$failures"
  exit 1
fi
printf '\nEverything as promised.\n'
