"""One manifest or more per rule of `validate`: canonical bytes, and the verdict they must get."""

import collections

from . import fixtures
from .fixtures import ident
from .objects import ChunkRef, Delta, Group, InputCut, Manifest, RealizedState, Schema, Span, encode_manifest
from .scalars import (DTYPE_BYTES, GATHER, MAX_CHUNK_OBJECT, MAX_PLAINTEXT, PAGE, PORTABLE, RAW,
                      STRIDED, StateKey, TAIL_WINDOW, ZERO_ID)

Case = collections.namedtuple("Case", "rule name verdict manifest")

K, V, Z, UNKNOWN = StateKey(0, b"k"), StateKey(0, b"v"), StateKey(1, b"k"), StateKey(9, b"k")
TOTAL = 6


def base(delta=False, tail=False, portable=False):
    """Three states, two groups, one dependency, one strided state, and a state in two chunks."""
    family = fixtures.family(RAW)
    prototype = family.states[0]
    family.states = [put(fixtures.family(RAW).states[0], key=key) for key in (K, V, Z)]
    put(family.states[1], dtype=6, dependencies=[K])
    family.mode = PORTABLE if portable else family.mode
    family.states[2].layout = prototype.layout if portable else STRIDED
    family.states[0].token_axis_rule = TAIL_WINDOW if tail else prototype.token_axis_rule
    kind = Delta(3, ident(32), InputCut(ident(33), ident(31), 2)) if delta else None
    schema = Schema(kind, [], [Group(1, [K, V]), Group(5, [Z])], 0, 0)
    manifest = Manifest(fixtures.TENANT, fixtures.EPOCH, fixtures.MODEL,
                        InputCut(ident(30), ident(31), TOTAL), family, schema, [])
    for i, state in enumerate(family.states):
        _realize(manifest, i, state, 2 if delta else 0)
    return manifest


def _realize(manifest, i, state, start):
    width, pitch, full = DTYPE_BYTES[state.dtype], 8 if state.layout == STRIDED else 4, TOTAL
    tail = state.token_axis_rule == TAIL_WINDOW
    if tail:
        start, full = TOTAL - 3, 3
    count, per_token = TOTAL - start, 4 * width
    cuts = [(start, count)] if i else [(start, 1), (start + 1, count - 1)]
    spans = [Span(first, n, first * per_token, n * per_token) for first, n in cuts]
    manifest.schema.states.append(RealizedState(
        state.key, [full, 4], [count, 4], [pitch, 1], start, count, 0 if tail else start * pitch * width,
        ((count - 1) * pitch + 4) * width, ((full - 1) * pitch + 4) * width, TOTAL, 0, spans))
    manifest.payload.append((state.key, [
        ChunkRef(ident(40 + i), ident(50 + i), ident(60 + i), fixtures.EPOCH, span.plaintext_bytes, 2 * PAGE)
        for span in spans]))
    manifest.schema.segment_restored_bytes += count * per_token
    manifest.schema.complete_restored_bytes += full * per_token


def put(target, **fields):
    """Set fields of a dataclass, which is given back."""
    for name, value in fields.items():
        setattr(target, name, value)
    return target


class Edit:
    """The parts of one manifest under names short enough for the table below."""

    def __init__(self, manifest):
        self.m, self.cut, self.schema, self.family = manifest, manifest.cut, manifest.schema, manifest.family
        self.F, self.R, self.P = manifest.family.states, manifest.schema.states, manifest.payload
        self.delta = manifest.schema.delta

    def ref(self):
        return self.P[0][1][0]

    def groups(self, *groups):
        self.schema.groups = [Group(*group) for group in groups]


def cases():
    """All cases, in the order of the rules."""
    rows = []
    for add in (_valid, _manifest_head, _family, _delta, _groups, _states, _physical, _chunks, _arithmetic):
        def case(rule, name, verdict, edit, **kind):
            manifest = base(**kind)
            edit(Edit(manifest))
            rows.append(Case(rule, name, verdict, encode_manifest(manifest)))
        add(case)
    return rows


def _valid(case):
    for name, kind in (("full", {}), ("delta", {"delta": True}), ("tail", {"tail": True}),
                       ("portable", {"portable": True}), ("portable-tail", {"portable": True, "tail": True})):
        case("-", "valid-" + name, "ok", lambda e: None, **kind)


def _manifest_head(case):
    case("M1", "tenant-zero", "semantics:tenant namespace is zero", lambda e: put(e.m, tenant=ZERO_ID))
    case("M2", "epoch-zero", "semantics:key epoch must be nonzero", lambda e: put(e.m, key_epoch=0))
    for i in range(5):
        case("M3", "model-zero-%d" % i, "semantics:semantic model identity contains a zero component",
             lambda e, i=i: put(e.m, model=e.m.model[:i] + (ZERO_ID,) + e.m.model[i + 1:]))
    verdict = "semantics:input cut identity is invalid"
    case("M4", "cut-token_root", verdict, lambda e: put(e.cut, token_root=ZERO_ID))
    case("M4", "cut-aux_root", verdict, lambda e: put(e.cut, auxiliary_root=ZERO_ID))
    case("M4", "cut-tokens", verdict, lambda e: put(e.cut, token_count=0))


def _family(case):
    verdict = "semantics:representation family contains a zero identity"
    case("F1", "abi-zero", verdict, lambda e: put(e.family, engine_cache_abi=ZERO_ID))
    case("F1", "topology-zero", verdict, lambda e: put(e.family, topology=ZERO_ID))
    case("F1", "shard_map-zero", verdict, lambda e: put(e.family, shard_map=ZERO_ID))
    case("F2", "page-zero", "semantics:representation family page size must be nonzero",
         lambda e: put(e.family, page_size_tokens=0))
    for name, value in (("empty", b""), ("long", b"x" * 256), ("nul", b"a\0b")):
        case("F4", "name-" + name, "semantics:invalid state name",
             lambda e, value=value: put(e.F[0], key=StateKey(0, value)))
    verdict = "semantics:family states are not unique canonical order"
    case("F5", "state-order", verdict, lambda e: put(e.F[1], key=StateKey(0, b"a")))
    case("F5", "state-duplicate", verdict, lambda e: put(e.F[1], key=K))
    case("F6", "codec-version", "codec:unsupported family codec version",
         lambda e: put(e.F[0], codec_version=2))
    case("F7", "token-axis", "semantics:family token axis is outside its rank",
         lambda e: put(e.F[0], token_axis=2))
    verdict = "semantics:family must have exactly one declared token dimension"
    case("F8", "no-token-dimension", verdict, lambda e: put(e.F[0], dimensions=[6, 4]))
    case("F8", "two-token-dimensions", verdict, lambda e: put(e.F[0], dimensions=[0, 0]))
    case("F8", "wrong-axis", verdict, lambda e: put(e.F[0], token_axis=1))
    case("F9", "product-overflow", "bounds:family elements-per-token overflows u64",
         lambda e: put(e.F[0], dimensions=[0, 1 << 32, 1 << 32]))
    case("F10", "per-token", "semantics:family elements-per-token is not canonical",
         lambda e: put(e.F[0], elements_per_token=5))
    case("F12", "contiguous-gather", "semantics:contiguous family cannot require strided token gathering",
         lambda e: put(e.F[0], token_axis_rule=GATHER))
    case("F13", "portable-strided",
         "semantics:portable family requires contiguous direct token streams",
         lambda e: put(e.F[2], layout=STRIDED), portable=True)
    case("F14", "self-dependency", "graph:state depends on itself", lambda e: put(e.F[1], dependencies=[V]))
    case("F15", "missing-dependency", "graph:state dependency is missing",
         lambda e: put(e.F[1], dependencies=[UNKNOWN]))
    verdict = "graph:state dependencies are not unique canonical order"
    case("F16", "dependency-order", verdict, lambda e: put(e.F[1], dependencies=[Z, K]))
    case("F16", "dependency-duplicate", verdict, lambda e: put(e.F[1], dependencies=[K, K]))
    case("F17", "cycle", "graph:state dependency cycle", lambda e: put(e.F[0], dependencies=[V]))
    case("F6", "state-rules-before-dependencies", "codec:unsupported family codec version",
         lambda e: (put(e.F[0], dependencies=[UNKNOWN]), put(e.F[2], codec_version=2)))


def _delta(case):
    verdict = "graph:delta parent identity is invalid"
    case("M6", "parent-zero", verdict, lambda e: put(e.delta, parent=ZERO_ID), delta=True)
    case("M6", "parent-root-zero", verdict, lambda e: put(e.delta.parent_cut, token_root=ZERO_ID), delta=True)
    case("M6", "parent-aux-zero", verdict, lambda e: put(e.delta.parent_cut, auxiliary_root=ZERO_ID),
         delta=True)
    for depth in (0, 8, 255):
        case("M7", "depth-%d" % depth, "graph:delta depth is outside 1..=7",
             lambda e, depth=depth: put(e.delta, depth=depth), delta=True)
    verdict = "graph:delta parent cut is not a compatible strict prefix"
    case("M8", "parent-aux", verdict, lambda e: put(e.delta.parent_cut, auxiliary_root=ident(55)), delta=True)
    for count in (0, 6, 7):
        case("M8", "parent-count-%d" % count, verdict,
             lambda e, count=count: put(e.delta.parent_cut, token_count=count), delta=True)


def _groups(case):
    verdict = "bounds:manifest, family, and schema state counts differ or exceed bounds"
    case("M9", "schema-count", verdict, lambda e: e.R.pop())
    case("M9", "payload-count", verdict, lambda e: e.P.pop())
    verdict = "semantics:atomic groups are not unique canonical order"
    case("M10", "group-zero", verdict, lambda e: e.groups((0, [K, V]), (5, [Z])))
    case("M10", "group-order", verdict, lambda e: e.groups((5, [K, V]), (5, [Z])))
    case("M11", "group-unknown", "graph:atomic group names an unknown state",
         lambda e: e.groups((1, [K, V]), (5, [UNKNOWN])))
    verdict = "semantics:atomic-group states are not unique canonical order"
    case("M12", "member-order", verdict, lambda e: e.groups((1, [V, K]), (5, [Z])))
    case("M12", "member-duplicate", verdict, lambda e: e.groups((1, [K, K]), (5, [Z])))
    case("M13", "two-groups", "graph:state appears in multiple atomic groups",
         lambda e: e.groups((1, [K, V]), (5, [K, Z])))
    case("M14", "uncovered", "graph:atomic groups do not cover the complete family inventory",
         lambda e: e.groups((1, [K, V])))


def _states(case):
    verdict = "semantics:family, realized schema, and payload state order differ"
    case("M15", "schema-order", verdict, lambda e: e.R.reverse())
    case("M15", "payload-order", verdict, lambda e: e.P.reverse())
    verdict = "semantics:tail-window states require one nonempty full snapshot"
    case("M16", "tail-delta", verdict, lambda e: None, tail=True, delta=True)
    case("M16", "tail-empty", verdict, lambda e: put(e.R[0], logical_count=0), tail=True)
    case("M16", "tail-long", verdict, lambda e: put(e.R[0], logical_count=7), tail=True)
    rank = "semantics:realized shape rank does not match family rank"
    case("M17", "full-rank", rank, lambda e: put(e.R[0], full_shape=[6]))
    verdict = "semantics:realized shape does not satisfy static family dimensions"
    case("M18", "full-token", verdict, lambda e: put(e.R[0], full_shape=[5, 4]))
    case("M18", "full-fixed", verdict, lambda e: put(e.R[0], full_shape=[6, 5]))
    case("M18", "tail-full-is-total", verdict, lambda e: put(e.R[0], full_shape=[6, 4]), tail=True)
    case("M19", "segment-rank", rank, lambda e: put(e.R[0], segment_shape=[6, 4, 1]))
    case("M20", "segment-token", verdict, lambda e: put(e.R[0], segment_shape=[5, 4]))
    verdict = "semantics:realized state range does not match the exact manifest cut"
    case("M21", "range-start", verdict, lambda e: put(e.R[0], logical_start=1))
    case("M21", "range-position", verdict, lambda e: put(e.R[0], absolute_position=5))
    case("M21", "range-window", verdict, lambda e: put(e.R[0], window=1))
    case("M21", "range-count", verdict, lambda e: put(e.R[0], logical_count=5))


def _physical(case):
    verdict = "semantics:realized state strides do not match its rank"
    case("M22", "stride-count", verdict, lambda e: put(e.R[0], strides=[4]))
    case("M22", "stride-zero", verdict, lambda e: put(e.R[2], strides=[0, 1]))
    case("M23", "stride-value", "semantics:contiguous state has noncanonical strides",
         lambda e: put(e.R[0], strides=[8, 1]))
    verdict = "semantics:realized physical span is not canonical"
    case("M29", "phys_offset", verdict, lambda e: put(e.R[2], physical_offset_bytes=7))
    case("M29", "phys_span", verdict, lambda e: put(e.R[2], physical_span_bytes=7))
    case("M29", "phys_complete", verdict, lambda e: put(e.R[2], complete_physical_bytes=7))
    case("M27", "offset-overflow", "bounds:physical token offset overflows u64",
         lambda e: put(e.R[2], strides=[1 << 63, 1]), delta=True)
    case("M28", "footprint-overflow", "bounds:state physical footprint overflows u64",
         lambda e: put(e.R[2], strides=[1 << 62, 1]))


def _chunks(case):
    case("M30", "chunk-count", "bounds:state chunk count is outside bounds",
         lambda e: e.P[1][1].append(e.P[1][1][0]))
    verdict = "semantics:chunk spans are not a contiguous token/byte partition"
    case("M34", "span-gap", verdict, lambda e: put(e.R[0].spans[1], token_start=2))
    case("M34", "span-empty", verdict, lambda e: put(e.R[0].spans[0], token_count=0))
    case("M34", "span-relative-offset", verdict, lambda e: put(e.R[0].spans[0], plaintext_offset=0),
         delta=True)
    case("M35", "span-overflow", "bounds:chunk span byte count overflows u64",
         lambda e: put(e.R[0].spans[0], token_count=1 << 62))
    verdict = "semantics:chunk span has a noncanonical plaintext size"
    case("M36", "span-bytes", verdict, lambda e: put(e.R[0].spans[0], plaintext_bytes=5))
    case("M36", "reference-bytes", verdict, lambda e: put(e.ref(), plaintext_bytes=5))
    verdict = "semantics:chunk reference contains a zero identity"
    case("M37", "reference-content", verdict, lambda e: put(e.ref(), content_id=ZERO_ID))
    case("M37", "reference-object_key", verdict, lambda e: put(e.ref(), object_key=ZERO_ID))
    case("M37", "reference-digest", verdict, lambda e: put(e.ref(), stored_digest=ZERO_ID))
    case("M37", "reference-epoch", verdict, lambda e: put(e.ref(), key_epoch=0))
    largest = MAX_CHUNK_OBJECT // PAGE * PAGE
    for size in (0, PAGE, PAGE + 1, 2 * PAGE - 1, largest + PAGE):
        case("M38", "object-bytes-%d" % size, "semantics:chunk object size is not aligned",
             lambda e, size=size: put(e.ref(), object_bytes=size))
    case("-", "object-bytes-largest", "ok", lambda e: put(e.ref(), object_bytes=largest))
    case("M42", "spans-short", "semantics:chunk spans do not cover the complete realized state segment",
         lambda e: (e.R[0].spans.pop(), e.P[0][1].pop()))
    verdict = "bounds:manifest restored byte totals are invalid"
    case("M44", "segment-total", verdict, lambda e: put(e.schema, segment_restored_bytes=1))
    case("M44", "complete-total", verdict, lambda e: put(e.schema, complete_restored_bytes=1))


def _alone(e, tokens, per_token, dtype=1):
    """Reduce the manifest to one contiguous state [tokens, per_token]."""
    del e.F[1:], e.R[1:], e.P[1:]
    e.groups((1, [K]))
    e.cut.token_count = tokens
    put(e.F[0], dimensions=[0, per_token], elements_per_token=per_token, dtype=dtype)
    put(e.R[0], full_shape=[tokens, per_token], segment_shape=[tokens, per_token], strides=[per_token, 1],
        logical_count=tokens, absolute_position=tokens)


def _physical_bytes(e, size):
    put(e.R[0], physical_span_bytes=size, complete_physical_bytes=size)


def _arithmetic(case):
    case("M24", "stride-product-overflow", "bounds:contiguous stride calculation overflows u64",
         lambda e: _alone(e, 1 << 62, 4))
    case("M25", "segment-bytes-overflow", "bounds:segment byte count overflows u64",
         lambda e: _alone(e, 1 << 61, 4, dtype=9))
    per_token = MAX_PLAINTEXT + 1
    case("M32", "token-too-large", "bounds:one state token does not fit in a bounded chunk",
         lambda e: (_alone(e, TOTAL, per_token), _physical_bytes(e, TOTAL * per_token)))
    case("M36", "span-over-4MiB", "semantics:chunk span has a noncanonical plaintext size", _two_large_spans)


def _two_large_spans(e):
    per_token = MAX_PLAINTEXT // 2 + 1
    _alone(e, TOTAL, per_token)
    _physical_bytes(e, TOTAL * per_token)
    for span, ref, (first, count) in zip(e.R[0].spans, e.P[0][1], ((0, 2), (2, 4))):
        size = count * per_token
        put(span, token_start=first, token_count=count, plaintext_offset=first * per_token,
            plaintext_bytes=size)
        put(ref, plaintext_bytes=size)
