"""KVHF live wire (docs/protocol/kvhf.md): an independent producer, verifier and bundle reader, standard library only.

`frame` envelope and manifests, `begin` layout, walk and rules, `seal` hashes and the producer, `verifier` incremental
verifier, coordinator, receiver and reassembler, `bundle` the directory on disk. `python3 -m kvpack_ref.kvhf --help`.
"""
from .begin import Limits, validate, walk
from .bundle import open_bundle
from .seal import produce
from .verifier import Coordinator, Verifier, Witness, reassemble, receive

__all__ = ["Coordinator", "Limits", "Verifier", "Witness", "open_bundle", "produce", "reassemble", "receive",
           "validate",
           "walk"]
