"""Rules of meaning for families (F1 to F17) and manifests (M1 to M44), in the order of the format.

The rule names in comments are those of docs/format/manifest.md and of semantic.tsv.
"""

import collections

from .errors import Reject, need
from .scalars import (CONTIGUOUS, DTYPE_BYTES, GATHER, MAX_CHUNK_OBJECT, MAX_COUNT, MAX_DEPTH, MAX_PLAINTEXT,
                      MAX_RESTORED, PAGE, PORTABLE, TAIL_WINDOW, ZERO_ID, fits)

Limits = collections.namedtuple("Limits", "max_states max_chunks_per_state max_restored_bytes")
DEFAULT_LIMITS = Limits(MAX_COUNT, MAX_COUNT, MAX_RESTORED)


def check_family(family):
    need(ZERO_ID not in (family.engine_cache_abi, family.topology, family.shard_map), "semantics",
         "representation family contains a zero identity")                                            # F1
    need(family.page_size_tokens != 0, "semantics",
         "representation family page size must be nonzero")                                           # F2
    need(1 <= len(family.states) <= MAX_COUNT, "bounds", "family state count is outside bounds")      # F3
    previous = None
    for state in family.states:
        need(1 <= len(state.key.name) <= 255 and 0 not in state.key.name, "semantics",
             "invalid state name")                                                                    # F4
        need(previous is None or previous < state.key, "semantics",
             "family states are not unique canonical order")                                          # F5
        previous = state.key
        _check_family_state(family, state)
    _check_dependencies(family)


def _check_family_state(family, state):
    need(state.codec_version == 1, "codec", "unsupported family codec version")                       # F6
    dimensions = state.dimensions
    need(1 <= len(dimensions) <= 8 and state.token_axis < len(dimensions), "semantics",
         "family token axis is outside its rank")                                                     # F7
    need([i for i, d in enumerate(dimensions) if d == 0] == [state.token_axis], "semantics",
         "family must have exactly one declared token dimension")                                     # F8
    product = 1
    for dimension in dimensions:
        if dimension:
            product = fits(product * dimension, "family elements-per-token overflows u64")            # F9
    need(product == state.elements_per_token, "semantics",
         "family elements-per-token is not canonical")                                                # F10
    contiguous = state.layout == CONTIGUOUS
    need(not (contiguous and state.token_axis_rule == GATHER), "semantics",
         "contiguous family cannot require strided token gathering")                                  # F12
    need(family.mode != PORTABLE or (contiguous and state.token_axis_rule != GATHER), "semantics",
         "portable family requires contiguous direct token streams")                                  # F13


def _check_dependencies(family):
    graph = {state.key: state.dependencies for state in family.states}
    for key, dependencies in graph.items():
        previous = None
        for needed in dependencies:
            need(needed != key, "graph", "state depends on itself")                                   # F14
            need(needed in graph, "graph", "state dependency is missing")                             # F15
            need(previous is None or previous < needed, "graph",
                 "state dependencies are not unique canonical order")                                 # F16
            previous = needed
    # Peel off states whose dependencies are all resolved; a remainder is a cycle.
    waiting = {key: len(dependencies) for key, dependencies in graph.items()}
    users = collections.defaultdict(list)
    for key, dependencies in graph.items():
        for needed in dependencies:
            users[needed].append(key)
    ready = [key for key, count in waiting.items() if count == 0]
    resolved = 0
    while ready:
        resolved += 1
        for user in users[ready.pop()]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    need(resolved == len(graph), "graph", "state dependency cycle")                                   # F17


def check_manifest(manifest, limits=DEFAULT_LIMITS):
    cut, schema, family = manifest.cut, manifest.schema, manifest.family
    need(manifest.tenant != ZERO_ID, "semantics", "tenant namespace is zero")                         # M1
    need(manifest.key_epoch != 0, "semantics", "key epoch must be nonzero")                           # M2
    need(ZERO_ID not in manifest.model, "semantics",
         "semantic model identity contains a zero component")                                         # M3
    need(ZERO_ID not in (cut.token_root, cut.auxiliary_root) and cut.token_count, "semantics",
         "input cut identity is invalid")                                                             # M4
    check_family(family)                                                                              # M5
    base = _check_delta(schema.delta, cut)
    counts = {len(family.states), len(schema.states), len(manifest.payload)}
    need(len(counts) == 1 and len(family.states) <= limits.max_states, "bounds",
         "manifest, family, and schema state counts differ or exceed bounds")                         # M9
    _check_groups(schema.groups, {state.key for state in family.states})
    segment_total = complete_total = 0
    for state, realized, (key, refs) in zip(family.states, schema.states, manifest.payload):
        need(state.key == realized.key == key, "semantics",
             "family, realized schema, and payload state order differ")                               # M15
        segment, complete = _check_state(state, realized, refs, base, manifest, limits)
        segment_total = fits(segment_total + segment, "segment restored byte total overflows u64")    # M43
        complete_total = fits(complete_total + complete,
                              "complete restored byte total overflows u64")                           # M43
    need((schema.segment_restored_bytes, schema.complete_restored_bytes) == (segment_total, complete_total)
         and complete_total <= limits.max_restored_bytes, "bounds",
         "manifest restored byte totals are invalid")                                                 # M44


def _check_delta(delta, cut):
    """The first token of this manifest's own segment."""
    if delta is None:
        return 0
    parent = delta.parent_cut
    need(ZERO_ID not in (delta.parent, parent.token_root, parent.auxiliary_root), "graph",
         "delta parent identity is invalid")                                                          # M6
    need(1 <= delta.depth <= MAX_DEPTH, "graph", "delta depth is outside 1..=7")                      # M7
    need(parent.auxiliary_root == cut.auxiliary_root and 0 < parent.token_count < cut.token_count, "graph",
         "delta parent cut is not a compatible strict prefix")                                        # M8
    return parent.token_count


def _check_groups(groups, known):
    last_id, seen = 0, set()
    for group in groups:
        need(group.id > last_id, "semantics", "atomic groups are not unique canonical order")         # M10
        last_id, previous = group.id, None
        for member in group.members:
            need(member in known, "graph", "atomic group names an unknown state")                     # M11
            need(previous is None or previous < member, "semantics",
                 "atomic-group states are not unique canonical order")                                # M12
            need(member not in seen, "graph", "state appears in multiple atomic groups")              # M13
            seen.add(member)
            previous = member
    need(seen == known, "graph", "atomic groups do not cover the complete family inventory")          # M14


def _check_state(state, realized, refs, base, manifest, limits):
    """M16 to M42 for one state. Returns its segment and complete byte counts."""
    total = manifest.cut.token_count
    tail = state.token_axis_rule == TAIL_WINDOW
    if tail:
        need(manifest.schema.delta is None and 0 < realized.logical_count <= total, "semantics",
             "tail-window states require one nonempty full snapshot")                                 # M16
        count = full_tokens = realized.logical_count
        start = total - count
    else:
        start, count, full_tokens = base, total - base, total
    _check_shape(realized.full_shape, state, full_tokens)  # M17, M18
    _check_shape(realized.segment_shape, state, count)  # M19, M20
    need((realized.logical_start, realized.logical_count, realized.absolute_position, realized.window)
         == (start, count, total, 0), "semantics",
         "realized state range does not match the exact manifest cut")                                # M21
    _check_strides(state, realized)
    width = DTYPE_BYTES[state.dtype]
    segment = fits(_elements(realized.segment_shape) * width,
                   "segment byte count overflows u64")                                                # M25
    complete = fits(_elements(realized.full_shape) * width,
                    "complete byte count overflows u64")                                              # M26
    message = "physical token offset overflows u64"
    first = 0 if tail else start
    offset = fits(fits(first * realized.strides[state.token_axis], message) * width, message)         # M27
    physical = (offset, _footprint(realized.segment_shape, realized.strides, width),
                _footprint(realized.full_shape, realized.strides, width))                             # M28
    need((realized.physical_offset_bytes, realized.physical_span_bytes, realized.complete_physical_bytes)
         == physical, "semantics", "realized physical span is not canonical")                         # M29
    need(1 <= len(realized.spans) <= limits.max_chunks_per_state and len(refs) == len(realized.spans),
         "bounds", "state chunk count is outside bounds")                                             # M30
    per_token = fits(state.elements_per_token * width, "bytes per token overflows u64")               # M31
    need(1 <= per_token <= MAX_PLAINTEXT, "bounds",
         "one state token does not fit in a bounded chunk")                                           # M32
    _check_spans(realized.spans, refs, start, count, per_token)
    return segment, complete


def _check_shape(dimensions, state, tokens):
    need(len(dimensions) == len(state.dimensions), "semantics",
         "realized shape rank does not match family rank")
    for have, want in zip(dimensions, state.dimensions):
        need(have == (want or tokens), "semantics",
             "realized shape does not satisfy static family dimensions")


def _check_strides(state, realized):
    need(len(realized.strides) == len(realized.full_shape) and 0 not in realized.strides, "semantics",
         "realized state strides do not match its rank")                                              # M22
    if state.layout != CONTIGUOUS:
        return
    expected = 1
    for dimension, stride in zip(reversed(realized.full_shape), reversed(realized.strides)):
        need(stride == expected, "semantics", "contiguous state has noncanonical strides")            # M23
        expected = fits(expected * dimension, "contiguous stride calculation overflows u64")          # M24


def _elements(dimensions):
    count = 1
    for dimension in dimensions:
        count = fits(count * dimension, "shape element count overflows u64")
    return count


def _footprint(dimensions, strides, width):
    message = "state physical footprint overflows u64"
    last = 0
    for dimension, stride in zip(dimensions, strides):
        last = fits(last + fits((dimension - 1) * stride, message), message)
    return fits(fits(last + 1, message) * width, message)


def _check_spans(spans, refs, start, count, per_token):
    token, offset = start, fits(start * per_token, "state plaintext base offset overflows u64")       # M33
    for span, ref in zip(spans, refs):
        need(span.token_start == token and span.token_count and span.plaintext_offset == offset,
             "semantics", "chunk spans are not a contiguous token/byte partition")                    # M34
        size = fits(span.token_count * per_token, "chunk span byte count overflows u64")              # M35
        need(size == span.plaintext_bytes == ref.plaintext_bytes and size <= MAX_PLAINTEXT, "semantics",
             "chunk span has a noncanonical plaintext size")                                          # M36
        need(ZERO_ID not in (ref.content_id, ref.object_key, ref.stored_digest) and ref.key_epoch,
             "semantics", "chunk reference contains a zero identity")                                 # M37
        need(ref.object_bytes % PAGE == 0 and PAGE < ref.object_bytes <= MAX_CHUNK_OBJECT, "semantics",
             "chunk object size is not aligned")                                                      # M38
        token = fits(token + span.token_count, "chunk token range overflows u64")                     # M39
        offset = fits(offset + size, "chunk byte range overflows u64")                                # M39
    end = fits(start + count, "state token range overflows u64")                                      # M40
    end_offset = fits(end * per_token, "state plaintext end offset overflows u64")                    # M41
    if (token, offset) != (end, end_offset):
        raise Reject("semantics", "chunk spans do not cover the complete realized state segment")     # M42
