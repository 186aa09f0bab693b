#!/bin/sh
# Runs the conformance kit on the C99 reader: check.sh durable|handoff PROGRAM [OPTION of the kit's runner...]
# PROGRAM is a command, so that it may stand behind an emulator. What only a writer or a live receiver does is
# unsupported; it is named here, and counted in the summary.
set -eu
kit=$(cd "$(dirname "$0")/.." && pwd)
part=$1
program=$2
shift 2
case $part in
  durable)
    exec python3 "$kit/run.py" --impl "$program endpoint" "$@" --allow "encode blob, encode blob_rows, encode chunk, encode frame, encode pack,
      encode pack_set, encode pack_set_proof, encode rotation_qwen25, encode sidecar, encode transform_execute,
      encode transform_inverse" ;;
  handoff)
    exec python3 "$kit/run_handoff.py" --impl "$program endpoint" "$@" \
      --skip ledger,kvhf_frame,kvhf_begin,kvhf_stream,kvhf_session,bundle,kvhf_sweep \
      --allow "encode handoff_sign, encode handoff_frame, encode handoff_stream, verdict handoff_admission,
        verdict handoff_times, encode kvhf_stream, verdict kvhf_stream, kvhf_context" ;;
  *)
    echo "usage: $0 durable|handoff PROGRAM [OPTION...]" >&2
    exit 2 ;;
esac
