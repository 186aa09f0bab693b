"""Command line of the KVHF reference: produce, verify and unpack recorded streams, check bundles."""
import argparse
import sys
import time

from ..handoff.canonical import canonical, decode_strict, parse, plain
from ..handoff.errors import Refusal
from ..handoff.mac import read_key_file
from . import bundle, frame, verifier
from .begin import Limits, totals, validate
from .seal import authenticate, produce

REFUSED, IO_ERROR = 4, 5


def _read(path):
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as f:
        return f.read()


def _key(args):
    return None if args.mac_key is None else read_key_file(args.mac_key)


def _limits(args):
    return Limits(now_unix_ms=int(time.time() * 1000) if args.now_ms is None else args.now_ms)


def _produce(args):
    value = plain(parse(_read(args.begin)))
    if not isinstance(value, dict):
        raise Refusal("json", "BEGIN is not an object")
    typed = frame.Begin(parse(canonical(value)))
    typed["expected_layer_frames"], typed["expected_payload_bytes"] = totals(typed)
    validate(typed, Limits(now_unix_ms=args.completed_ms))
    canary = None
    if args.canary is not None:
        canary = decode_strict(canonical(plain(parse(_read(args.canary)))), frame.MAX_JSON_BYTES, frame.Canary)
    tokens = [int(t) for t in args.tokens.split(",")]
    data = produce(typed, [_read(p) for p in args.plane], tokens, args.completed_ms, canary, _key(args))
    # What is written must pass the receiver it is meant for.
    verifier.receive(data, Limits(now_unix_ms=args.completed_ms), _key(args))
    if args.out == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        with open(args.out, "wb") as f:
            f.write(data)
    return 0


def _verify(args):
    witness = verifier.receive(_read(args.stream), _limits(args), _key(args))
    print(f"verified: transfer {witness.begin['transfer_id']} artifact {witness.seal['artifact_sha256']}")
    return 0


def _unpack(args):
    print(f"published: {bundle.write(args.directory, _read(args.stream), _limits(args), _key(args))}")
    return 0


def _bundle(args):
    witness = bundle.open_bundle(args.directory, _limits(args))
    if args.mac_key is not None:
        authenticate(witness.begin, witness.headers, witness.seal, _key(args))
    print(f"verified: artifact {witness.seal['artifact_sha256']}")
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="python3 -m kvpack_ref.kvhf", description=__doc__,
                                     epilog="exit status: 0 done, 2 usage, 4 refused, 5 file error")
    modes = parser.add_subparsers(dest="mode", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--mac-key", metavar="FILE", help="32 raw bytes or 64 hex digits, mode 0600")
    clock = argparse.ArgumentParser(add_help=False)
    clock.add_argument("--now-ms", type=int, help="the receiver's clock; default: now")
    p = modes.add_parser("produce", parents=[common], help="write the stream of a producer")
    p.add_argument("--begin", required=True, metavar="JSON", help="BEGIN manifest; its two totals are filled in")
    p.add_argument("--tokens", required=True, metavar="ID,ID,...", help="all prompt tokens, boundary token included")
    p.add_argument("--plane", action="append", default=[], metavar="FILE", help="one per plane, in walk order")
    p.add_argument("--completed-ms", required=True, type=int)
    p.add_argument("--canary", metavar="JSON", help="required for, and only for, pre-RoPE transfers")
    p.add_argument("--out", default="-", metavar="FILE")
    p.set_defaults(run=_produce)
    p = modes.add_parser("verify", parents=[common, clock], help="judge a recorded stream")
    p.add_argument("stream", help="file, or - for standard input")
    p.set_defaults(run=_verify)
    p = modes.add_parser("unpack", parents=[common, clock], help="publish a recorded stream as a bundle directory")
    p.add_argument("stream")
    p.add_argument("directory")
    p.set_defaults(run=_unpack)
    p = modes.add_parser("bundle", parents=[common, clock], help="reopen a bundle with full verification")
    p.add_argument("directory")
    p.set_defaults(run=_bundle)
    return parser


def main():
    parser = _parser()
    args = parser.parse_args()
    try:
        return args.run(args)
    except Refusal as r:
        print(f"refused: {r.category}: {r.message}", file=sys.stderr)
        return REFUSED
    except ValueError as e:
        parser.error(str(e))
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        return IO_ERROR


if __name__ == "__main__":
    sys.exit(main())
