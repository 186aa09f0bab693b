"""Command line of the Handoff V2 reference: produce and verify recorded streams, write the vector file."""
import argparse
import json
import sys
import time

from . import canonical, manifest, stream, vectors
from .delta import span_schedule
from .errors import Refusal
from .mac import read_key_file

REFUSED, IO_ERROR = 4, 5


def _read(path):
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as f:
        return f.read()


def _write(path, data):
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with open(path, "wb") as f:
        f.write(data)


def _begin_and_rows(args):
    """The begin manifest as a dict, and the segments without what the payloads determine."""
    value = canonical.plain(canonical.parse(_read(args.begin)))
    if not isinstance(value, dict):
        raise Refusal("json", "the begin manifest is not an object")
    if args.segments is not None:
        rows = canonical.plain(canonical.parse(_read(args.segments)))
    elif args.schedule:
        rows = span_schedule(len(value.get("prompt_token_ids", ())), args.cut)
        if rows is None:
            raise Refusal("validation", "delta prefix cut cannot form a span schedule")
    else:
        rows = value.get("segments", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise Refusal("json", "the segments are not an array of objects")
    return value, rows


def _produce(args):
    value, rows = _begin_and_rows(args)
    payloads = [_read(p) for p in args.payload]
    described = stream.describe(rows, payloads)
    descriptors = canonical.list_of(manifest.SegmentDescriptor)(canonical.parse(canonical.canonical(described)))
    value["segments"] = [] if value.get("deferred_segments") is True else descriptors
    begin = manifest.parse_begin(canonical.canonical(value))
    # A stream that no receiver accepts is not written; the lifetime is the receiver's to judge.
    manifest.validate_begin(begin, begin["created_unix_ms"], begin["hmac"]["key_id"], 1)
    _write(args.out, stream.produce(begin, descriptors, payloads, read_key_file(args.mac_key), args.cut))
    return 0


def _verify(args):
    now = int(time.time() * 1000) if args.now_ms is None else args.now_ms
    policy = stream.Policy(read_key_file(args.mac_key), args.key_id, args.min_epoch, now, not args.lenient)
    done = stream.receive(_read(args.stream), policy)
    note = f" prefix_cut {done.prefix_cut} (not under the seal)" if done.prefix_cut else ""
    print(f"verified: transfer {done.begin['transfer_id']} generation {done.begin['generation']}{note}")
    return 0


def _vectors(args):
    text = vectors.render(vectors.vectors()).encode("ascii")
    if args.check is None:
        _write("-", text)
        return 0
    same = _read(args.check) == text
    print("identical" if same else "DIFFERS")
    return 0 if same else 1


def _parser():
    parser = argparse.ArgumentParser(
        prog="python3 -m kvpack_ref.handoff", description=__doc__,
        epilog="exit status: 0 done, 1 vector file differs, 2 usage, 4 refused, 5 file error")
    modes = parser.add_subparsers(dest="mode", required=True)
    p = modes.add_parser("produce", help="write the stream of a producer",
                         description="Writes begin, segments and seal. The begin manifest decides: with "
                                     "deferred_segments true each segment carries its descriptor.")
    p.add_argument("--mac-key", required=True, metavar="FILE", help="32 raw bytes or 64 hex digits, mode 0600")
    p.add_argument("--begin", required=True, metavar="JSON", help="begin manifest; - reads standard input")
    rows = p.add_mutually_exclusive_group()
    rows.add_argument("--segments", metavar="JSON",
                      help="array of descriptors; sequence, byte_len and sha256 are filled in from the payloads")
    rows.add_argument("--schedule", action="store_true", help="take the segments from the span schedule of --cut")
    p.add_argument("--payload", action="append", default=[], metavar="FILE", help="one per segment, in wire order")
    p.add_argument("--cut", type=int, default=0, metavar="TOKENS", help="prefix cut of a delta transfer")
    p.add_argument("--out", default="-", metavar="FILE")
    p.set_defaults(run=_produce)
    p = modes.add_parser("verify", help="judge a recorded stream")
    p.add_argument("--mac-key", required=True, metavar="FILE")
    p.add_argument("--key-id", required=True, help="the key id that the begin must name")
    p.add_argument("--min-epoch", required=True, type=int, help="the lowest HMAC epoch that is accepted")
    p.add_argument("--now-ms", type=int, help="the receiver's clock; default: now")
    p.add_argument("--lenient", action="store_true", help="without the strict rules")
    p.add_argument("stream", help="file, or - for standard input")
    p.set_defaults(run=_verify)
    p = modes.add_parser("vectors", help="write the vector file, or compare it with --check")
    p.add_argument("--check", metavar="FILE")
    p.set_defaults(run=_vectors)
    return parser


def main():
    args = _parser().parse_args()
    try:
        return args.run(args)
    except Refusal as r:
        print(f"refused: {r.category}: {r.message}", file=sys.stderr)
        return IO_ERROR if r.category == "io" and args.mode == "produce" else REFUSED
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        return IO_ERROR


if __name__ == "__main__":
    sys.exit(main())
