"""BEGIN: layout table, schedule, walk, rules; LAYER headers (docs/protocol/kvhf.md sections 2 to 6)."""
from dataclasses import dataclass

from ..handoff.canonical import U32_MAX, U64_MAX, is_digest
from ..handoff.errors import validation
from .frame import PROTOCOL, SCHEMA_VERSION, STRATEGY

ABI_V1 = "canonical-kv-f16-le-v1"
ABI_V2 = "canonical-kv-v2"
ABI_PREROPE = "canonical-kv-prerope-v2"
WEIGHTS = ("q4_k_m", "q4_k_xl", "nvfp4", "mxfp4", "bf16")
SCHEDULES = (None, "layer-order", "decode-priority")
_BOUNDS = "geometry or cached-token count is outside configured bounds"
_BAD_CLASS = "layout table contains an invalid layer class"


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts. `now_unix_ms` has no useful default: set it when BEGIN arrives."""
    max_cached_tokens: int = 32767
    max_clock_skew_ms: int = 30_000
    max_context_tokens: int = 32768
    max_frame_bytes: int = 64 << 20
    max_layers: int = 64
    max_session_ms: int = 900_000
    max_total_bytes: int = 4 << 30
    now_unix_ms: int = 1


@dataclass(frozen=True)
class Plane:
    """One position of the walk. `layout_class` is None in a v1 transfer; `float32` marks pre-RoPE keys."""
    layer: int
    role: str
    layout_class: dict
    start: int
    end: int
    kv_heads: int
    head_dim: int
    float32: bool

    @property
    def shape(self):
        return [self.end - self.start, self.kv_heads, self.head_dim]

    @property
    def byte_len(self):
        return (self.end - self.start) * self.kv_heads * self.head_dim * (4 if self.float32 else 2)


def is_label(value, max_bytes):
    return 1 <= len(value) <= max_bytes and all("!" <= c <= "~" and c not in '\\/"' for c in value)


def is_prerope(begin):
    return bool(begin["layout_table"]) and begin["portable_abi"] == ABI_PREROPE


def class_layers(layout):
    skipped = set(layout["except"])
    return [n for n in range(layout["from"], layout["until"], layout["step"]) if n not in skipped]


def _class_plane(begin, layout, layer, role):
    cached = begin["cached_token_count"]
    window = min(layout["window_tokens"] or cached, cached)
    return Plane(layer, role, layout, cached - window, cached, layout["kv_heads"], layout["head_dim"],
                 role == "key" and begin["portable_abi"] == ABI_PREROPE)


def walk(begin):
    """The planes in wire order; a plane's sequence is its index."""
    table, geometry = begin["layout_table"], begin["geometry"]
    if not table:
        return [Plane(layer, role, None, 0, begin["cached_token_count"], geometry["num_kv_heads"],
                      geometry["head_dim"], False) for layer in range(geometry["num_layers"])
                for role in ("key", "value")]
    if begin["schedule"] == "decode-priority":
        table = sorted(table, key=lambda c: c["window_tokens"] == 0)
    return [_class_plane(begin, c, layer,
                         role) for c in table for layer in class_layers(c) for role in c["roles"]]


def totals(begin):
    """(frames, payload bytes) that the geometry or the layout table implies."""
    planes = walk(begin)
    return len(planes), sum(p.byte_len for p in planes)


def _check_class(begin, layout, limits):
    if layout["step"] == 0 or layout["from"] >= layout["until"] or layout["until"] > begin["geometry"]["num_layers"]:
        raise validation(_BAD_CLASS)
    widest = max((_class_plane(begin, layout, 0, role).byte_len for role in layout["roles"]), default=0)
    if widest > U64_MAX:
        raise validation("declared payload size overflows u64")
    if widest > limits.max_frame_bytes:
        raise validation("layout table class exceeds the per-frame byte bound")
    skipped = layout["except"]
    if len(set(skipped)) != len(skipped) or any(not layout["from"] <= n < layout["until"] for n in skipped):
        raise validation("layout table contains an out-of-range or duplicate except entry")
    latent = layout["class"] == "mla-latent" and layout["roles"] == ["key"]
    if layout["roles"] != ["key", "value"] and not latent:
        raise validation("layout table classes must declare roles [key, value]")
    if (not is_label(layout["class"], 64) or not class_layers(layout) or layout["kv_heads"] == 0
            or layout["head_dim"] == 0 or layout["dtype"] != "float16"):
        raise validation(_BAD_CLASS)


def _check_table(begin, limits):
    table, geometry = begin["layout_table"], begin["geometry"]
    for layout in table:
        _check_class(begin, layout, limits)
    covered = set()
    for layout in table:
        layers = class_layers(layout)
        if not covered.isdisjoint(layers):
            raise validation("layout table assigns a layer to more than one class")
        covered.update(layers)
    if len(covered) != geometry["num_layers"]:
        raise validation("layout table must cover every declared layer exactly once")
    flat = (geometry["num_kv_heads"], geometry["head_dim"])
    if len(table) == 1:
        if flat != (table[0]["kv_heads"], table[0]["head_dim"]):
            raise validation("flat geometry disagrees with the single-class layout table")
    elif flat != (0, 0):
        raise validation("multi-class layout table requires zero flat kv_heads/head_dim")
    if begin["schedule"] not in SCHEDULES:
        raise validation("layout table declares an unknown wire schedule")


def validate(begin, limits):
    """Section 5, in order."""
    table, geometry, cached = begin["layout_table"], begin["geometry"], begin["cached_token_count"]
    if (begin["schema_version"] != SCHEMA_VERSION or begin["protocol"] != PROTOCOL or begin["strategy"] != STRATEGY
            or begin["portable_abi"] not in ((ABI_V2, ABI_PREROPE) if table else (ABI_V1,))):
        raise validation("unsupported live handoff schema, protocol, ABI, or strategy")
    if (not 1 <= cached <= limits.max_cached_tokens or geometry["max_context_tokens"] > limits.max_context_tokens
            or cached >= geometry["max_context_tokens"] or not 1 <= geometry["num_layers"] <= limits.max_layers):
        raise validation(_BOUNDS)
    if table:
        _check_table(begin, limits)
    else:
        if begin["schedule"] is not None:
            raise validation("wire schedule requires a v2 layout table")
        if geometry["num_kv_heads"] == 0 or geometry["head_dim"] == 0:
            raise validation(_BOUNDS)
    frames, payload_bytes = totals(begin)
    if frames > U32_MAX:
        raise validation("layer-frame count overflow")
    if payload_bytes > U64_MAX:
        raise validation("declared payload size overflows u64")
    if ((begin["expected_layer_frames"], begin["expected_payload_bytes"]) != (frames, payload_bytes)
            or payload_bytes > limits.max_total_bytes or payload_bytes // frames > limits.max_frame_bytes):
        raise validation("declared frame or payload bounds do not match geometry")
    precision = begin["precision"]
    if precision["compute"] != "float16" or precision["kv"] != "float16" or precision["weights"] not in WEIGHTS:
        raise validation("v1 requires q4_k_m, q4_k_xl, nvfp4, mxfp4, or bf16 weights with float16 compute and KV")
    _check_names(begin)
    _check_times(begin, limits)


def _check_names(begin):
    identity, key_id = begin["identity"], begin["hmac_key_id"]
    labels = [*begin["endpoints"].values(), identity["model_revision"], identity["tokenizer_revision"]]
    digests = [begin["transfer_id"], begin["token_ids_sha256"]]
    digests += [v for k, v in identity.items() if k.endswith("_sha256")]
    if (not all(is_label(v, 256) for v in labels) or not all(map(is_digest, digests))
            or (key_id is not None and not is_label(key_id, 64))):
        raise validation("identity contains an invalid label or SHA-256")


def _check_times(begin, limits):
    created, deadline, now = begin["created_unix_ms"], begin["deadline_unix_ms"], limits.now_unix_ms
    if created + limits.max_session_ms > U64_MAX:
        raise validation("session deadline overflow")
    if (created == 0 or created > min(U64_MAX, now + limits.max_clock_skew_ms) or deadline <= created
            or deadline > created + limits.max_session_ms or now > deadline):
        raise validation("handoff creation/deadline is invalid or expired")


ARMED_FIELDS = ("cached_token_count", "endpoints", "geometry", "identity", "portable_abi", "precision",
                "strategy",
                "token_ids_sha256", "layout_table")


def check_armed(begin, armed):
    """The armed comparison; `armed` holds at least ARMED_FIELDS. Schedule and key id are not armed."""
    if armed["cached_token_count"] == U32_MAX:
        raise validation("armed prompt token count overflows at its boundary token")
    if (any(begin[f] != armed[f] for f in ARMED_FIELDS) or begin["schema_version"] != SCHEMA_VERSION
            or begin["protocol"] != PROTOCOL or begin["portable_abi"] not in (ABI_V1, ABI_V2, ABI_PREROPE)):
        raise validation("BEGIN does not match the complete armed fixture and identity tuple")


def check_header(begin, planes, index, header):
    """Section 6: a LAYER header against walk position `index`."""
    v1 = not begin["layout_table"]
    if v1:
        # A position past the end has the layer that follows; the byte totals stop it.
        plane = planes[0]
        layer, role = index // 2, ("key", "value")[index % 2]
        message = f"layer frame {index} does not match the ordered canonical tensor contract"
    else:
        if index >= len(planes):
            raise validation(f"layer frame {index} is outside the declared layout table")
        plane = planes[index]
        layer, role = plane.layer, plane.role
        message = f"layer frame {index} does not match the v2 layout-table contract"
        tokens = header["logical_token_end"] - header["logical_token_start"]
        if tokens < 0:
            raise validation(f"layer frame {index} has an inverted token range")
        if tokens * plane.kv_heads * plane.head_dim * (4 if plane.float32 else 2) > U64_MAX:
            raise validation(f"layer frame {index} byte bound overflow")
    want = {"schema_version": SCHEMA_VERSION, "transfer_id": begin["transfer_id"], "sequence": index,
            "layer": layer,
            "role": role, "logical_token_start": plane.start, "logical_token_end": plane.end,
            "shape": plane.shape,
            "byte_length": plane.byte_len, "layout_class": None if v1 else plane.layout_class["class"]}
    dtype = header["dtype"]
    if v1:
        typed = dtype is None
    else:
        tag = "float16" if dtype is None else dtype
        typed = tag == ("float32" if plane.float32 else plane.layout_class["dtype"])
    if any(header[k] != v for k, v in want.items()) or not typed or not is_digest(header["sha256"]):
        raise validation(message)
