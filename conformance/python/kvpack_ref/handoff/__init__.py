"""Handoff V2 (docs/protocol/handoff.md, delta.md): an independent producer and verifier, standard library only.

`canonical` JSON and typed parse, `mac` keys and tags, `manifest` begin, descriptors and seal, `frame` the KVPKV2
stream, `receiver` the atomic receiver and its sink, `admission`, `delta` span schedule and prefix cut, `stream` whole
transfers, `ledger` replay watermarks, `vectors` and `cases` the vector file. `python3 -m kvpack_ref.handoff --help`.
"""
from .admission import ArmedRequest, admit
from .errors import Refusal
from .receiver import Receiver, Sink
from .stream import Committed, Policy, describe, produce, receive

__all__ = ["ArmedRequest", "Committed", "Policy", "Receiver", "Refusal", "Sink", "admit", "describe", "produce",
           "receive"]
