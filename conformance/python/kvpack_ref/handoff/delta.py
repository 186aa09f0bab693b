"""The span schedule and the prefix cut (docs/protocol/delta.md)."""
from .errors import validation
from .manifest import ELEMENT_BYTES

CUT_ALIGNMENT_TOKENS = 256
TILE_TOKENS = 512
WINDOW_TOKENS = 2048
ROW_ELEMENTS = 6656
SWA_GROUP_HEADS = (0, 17, 34)


def span_schedule(position, cut, dflash=None):
    """The segments of a transfer of tokens [cut, position), descriptors without sha256; None where there is none.

    `dflash` is (layers, elements, sink, window) for a draft context behind the target's segments.
    """
    if position == 0 or cut >= position or cut % CUT_ALIGNMENT_TOKENS:
        return None
    window_start = max(cut, position - WINDOW_TOKENS)
    tiles = [(start, min(TILE_TOKENS, position - start)) for start in range(cut, position, TILE_TOKENS)]
    rows = []

    def emit(component, role, layer, start, count, element_type, elements):
        rows.append({"sequence": len(rows), "component_id": component, "role": role, "layer": layer,
                     "logical_start": start, "logical_count": count, "element_type": element_type,
                     "elements_per_token": elements,
                     "byte_len": count * elements * ELEMENT_BYTES[element_type]})

    for head in SWA_GROUP_HEADS:
        for start, count in tiles:
            if start + count > window_start:
                first = max(start, window_start)
                emit("target", "swa_tile", head, first, start + count - first, "f16_le", ROW_ELEMENTS)
    for start, count in tiles:
        emit("target", "nope_tile", None, start, count, "f16_le", ROW_ELEMENTS)
    if dflash is not None:
        layers, elements, sink, window = dflash
        ranges = [(0, position)]
        if position > sink + window:
            ranges = [(0, sink), (position - window, window)]
        for layer in range(layers):
            for role in ("dflash_key", "dflash_value"):
                for start, count in ranges:
                    emit("dflash", role, layer, start, count, "f32_le", elements)
    return rows


def _target_ids(begin):
    return {c["id"] for c in begin["components"] if c["kind"] == "target_kv"}


def _shape(row):
    return tuple(row[k] for k in ("sequence", "role", "layer", "logical_start", "logical_count",
                                  "element_type",
                                  "elements_per_token"))


def _place(row):
    return tuple(row[k] for k in ("role", "layer", "logical_start", "logical_count"))


def check_cut(begin, cut):
    """A cut that is not 0 must be aligned and inside the prompt."""
    if cut % CUT_ALIGNMENT_TOKENS or cut >= len(begin["prompt_token_ids"]):
        raise validation("delta prefix cut is not a 256-aligned cut inside the prompt")


def check_declared_schedule(begin, cut):
    """The declared target segments must be the span schedule of the cut."""
    ids = _target_ids(begin)
    got = [_shape(d) for d in begin["segments"] if d["component_id"] in ids]
    want = span_schedule(len(begin["prompt_token_ids"]), cut)
    if got != [_shape(r) for r in want]:
        raise validation("declared target schedule is not the span schedule for the prefix cut")


class DeferredWitness:
    """The target segments of a deferred transfer, compared with the span schedule once the seal has verified."""

    def __init__(self, begin, cut):
        self._ids, self._places = _target_ids(begin), []
        self._position, self._cut = len(begin["prompt_token_ids"]), cut

    def add(self, descriptor):
        if descriptor["component_id"] in self._ids:
            self._places.append(_place(descriptor))

    def check(self):
        want = span_schedule(self._position, self._cut)
        if want is None:
            raise validation("delta prefix cut cannot form a span schedule")
        if self._places != [_place(r) for r in want]:
            raise validation("deferred target stream is not the span schedule for the prefix cut")
