/// Representation family KVFAM1: which states a cache has and how each is laid out, whatever its length.
/// Layout and rules F1 to F17: docs/format/family.md.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpack/core/identity.h"
#include "kvpack/core/state.h"

namespace kvpack {

/// One state of a family: a plane `[.., tokens at token_axis, ..]` of `dtype`, row-major when contiguous.
struct StaticState {
  StateKey key;
  CacheKind cache_kind = CacheKind::kOrdinaryKv;
  DType dtype = DType::kU8;
  Codec codec = Codec::kRaw;
  std::uint16_t codec_version = 1;
  Layout layout = Layout::kContiguous;
  TokenAxisRule token_axis_rule = TokenAxisRule::kDirect;
  std::uint8_t token_axis = 0;
  std::uint64_t elements_per_token = 0;  ///< Product of the fixed dimensions.
  std::vector<std::uint64_t>
      dimensions{};                      ///< 1 to 8; exactly the token axis is 0, the others are fixed sizes.
  std::vector<StateKey> dependencies{};  ///< States that this one is useless without; ascending.

  friend bool operator==(const StaticState&, const StaticState&) = default;
};

/// The part of an identity that says how bytes are represented. Ids come from the engine's adapter.
struct RepresentationFamily {
  Id32 engine_cache_abi;
  RepresentationMode mode = RepresentationMode::kNative;
  std::uint32_t page_size_tokens = 0;
  Id32 topology;
  Id32 shard_map;
  std::vector<StaticState> states{};  ///< Ascending by key.

  friend bool operator==(const RepresentationFamily&, const RepresentationFamily&) = default;
};

/// The standalone object. @error kBounds a count or name does not fit its field
Result<Bytes> encode_family(const RepresentationFamily& family);
/// Decodes and proves canonicity; does not validate. @error kTruncated kBadMagic kReserved kUnknownEnum
/// kBounds kSemantics
Result<RepresentationFamily> decode_family(ByteSpan bytes);
/// Rules F1 to F17 in order. @error kSemantics kBounds kCodec kGraph, with the state in the context
Status validate_family(const RepresentationFamily& family);

/// Body without the 12-byte object prefix, as manifests embed it.
Status write_family_body(ByteWriter& out, const RepresentationFamily& family);
Result<RepresentationFamily> read_family_body(CanonicalReader& in);

/// The state with this key, or null. @pre states ascend by key
const StaticState* find_state(const RepresentationFamily& family, const StateKey& key) noexcept;

/// Adds which state an error is about.
Error in_state(Error error, const StateKey& key);

/// A family together with its id, computed once. Immutable, so shareable between threads.
class IdentifiedFamily {
 public:
  /// Refuses a family that its own decoder would refuse, so that what is written under it can be read.
  /// @error kBounds the family cannot be encoded, or a state has more than 64 dependencies; kSemantics a name
  /// is no UTF-8
  static Result<IdentifiedFamily> create(RepresentationFamily family);

  const RepresentationFamily& family() const noexcept { return family_; }
  const Id32& id() const noexcept { return id_; }

 private:
  IdentifiedFamily(RepresentationFamily family, const Id32& id) : family_(std::move(family)), id_(id) {}
  RepresentationFamily family_;
  Id32 id_;
};

// ---------------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kFamilyTexts{magic("KVFAM1"), "unsupported family version",
                                          "family reserved field is nonzero",
                                          "family encoding is not canonical"};

inline Error in_state(Error error, const StateKey& key) {
  return std::move(error).with("layer", std::to_string(key.layer)).with("state", key.name);
}

inline const StaticState* find_state(const RepresentationFamily& family, const StateKey& key) noexcept {
  const auto found = std::ranges::lower_bound(family.states, key, {}, &StaticState::key);
  if (found == family.states.end() || found->key != key) return nullptr;
  return &*found;
}

namespace detail {

inline Status write_static_state(ByteWriter& out, const StaticState& state) {
  KVPACK_TRY(write_state_key(out, state.key));
  out.le(static_cast<std::uint16_t>(state.cache_kind));
  out.le(static_cast<std::uint16_t>(state.dtype));
  out.le(static_cast<std::uint16_t>(state.codec));
  out.le(state.codec_version);
  out.le(static_cast<std::uint16_t>(state.layout));
  out.le(static_cast<std::uint16_t>(state.token_axis_rule));
  out.le(state.token_axis);
  out.le(std::uint8_t{0});
  out.le(state.elements_per_token);
  if (state.dimensions.size() > std::numeric_limits<std::uint8_t>::max())
    return fail(ErrorCode::kBounds, "family state rank exceeds u8");
  out.le(static_cast<std::uint8_t>(state.dimensions.size()));
  for (const std::uint64_t d : state.dimensions) out.le(d);
  if (state.dependencies.size() > std::numeric_limits<std::uint16_t>::max())
    return fail(ErrorCode::kBounds, "too many state dependencies");
  out.le(static_cast<std::uint16_t>(state.dependencies.size()));
  for (const StateKey& key : state.dependencies) KVPACK_TRY(write_state_key(out, key));
  return success();
}

inline Result<StaticState> read_static_state(CanonicalReader& in) {
  StaticState state;
  KVPACK_TRY_ASSIGN(state.key, read_state_key(in));
  KVPACK_TRY_ASSIGN(state.cache_kind, in.wire_enum<CacheKind>());
  KVPACK_TRY_ASSIGN(state.dtype, in.wire_enum<DType>());
  KVPACK_TRY_ASSIGN(state.codec, in.wire_enum<Codec>());
  KVPACK_TRY_ASSIGN(state.codec_version, in.le<std::uint16_t>());
  KVPACK_TRY_ASSIGN(state.layout, in.wire_enum<Layout>());
  KVPACK_TRY_ASSIGN(state.token_axis_rule, in.wire_enum<TokenAxisRule>());
  KVPACK_TRY_ASSIGN(state.token_axis, in.le<std::uint8_t>());
  KVPACK_TRY(in.zero<std::uint8_t>("family state reserved byte is nonzero"));
  KVPACK_TRY_ASSIGN(state.elements_per_token, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(const auto rank, in.count<std::uint8_t>(kMaxRank, "family state rank is outside 1..=8"));
  for (std::uint8_t i = 0; i < rank; ++i) {
    KVPACK_TRY_ASSIGN(const auto d, in.le<std::uint64_t>());
    state.dimensions.push_back(d);
  }
  KVPACK_TRY_ASSIGN(const auto dependency_count, in.le<std::uint16_t>());
  if (dependency_count > kMaxDependenciesPerState)
    return fail(ErrorCode::kBounds, "too many state dependencies");
  for (std::uint16_t i = 0; i < dependency_count; ++i) {
    KVPACK_TRY_ASSIGN(StateKey key, read_state_key(in));
    state.dependencies.push_back(std::move(key));
  }
  return state;
}

/// F7 to F10: the token axis and the number of elements that one token has.
inline Status validate_state_shape(const StaticState& state) {
  const std::size_t rank = state.dimensions.size();
  if (rank == 0 || rank > kMaxRank || state.token_axis >= rank)
    return fail(ErrorCode::kSemantics, "family token axis is outside its rank");
  if (std::ranges::count(state.dimensions, std::uint64_t{0}) != 1 || state.dimensions[state.token_axis] != 0)
    return fail(ErrorCode::kSemantics, "family must have exactly one declared token dimension");
  std::uint64_t product = 1;
  for (const std::uint64_t d : state.dimensions) {
    if (d == 0) continue;
    const auto next = checked_mul(product, d);
    if (!next) return fail(ErrorCode::kBounds, "family elements-per-token overflows u64");
    product = *next;
  }
  if (product != state.elements_per_token)
    return fail(ErrorCode::kSemantics, "family elements-per-token is not canonical");
  return success();
}

/// F4 and F6 to F13 of one state.
inline Status validate_static_state(const StaticState& state, RepresentationMode mode) {
  if (state.codec_version != 1) return fail(ErrorCode::kCodec, "unsupported family codec version");
  KVPACK_TRY(validate_state_shape(state));
  if (state.layout == Layout::kContiguous && state.token_axis_rule == TokenAxisRule::kGather)
    return fail(ErrorCode::kSemantics, "contiguous family cannot require strided token gathering");
  if (mode == RepresentationMode::kPortable &&
      (state.layout != Layout::kContiguous || state.token_axis_rule == TokenAxisRule::kGather))
    return fail(ErrorCode::kSemantics, "portable family requires contiguous direct token streams");
  return success();
}

/// F14 to F16, and each state's dependencies as indices into the family.
inline Result<std::vector<std::vector<std::uint32_t>>> resolve_dependencies(
    const RepresentationFamily& family) {
  std::vector<std::vector<std::uint32_t>> edges(family.states.size());
  for (std::size_t i = 0; i < family.states.size(); ++i) {
    const StaticState& state = family.states[i];
    const StateKey* previous = nullptr;
    for (const StateKey& dependency : state.dependencies) {
      if (dependency == state.key)
        return in_state(fail(ErrorCode::kGraph, "state depends on itself"), state.key);
      const StaticState* found = find_state(family, dependency);
      if (found == nullptr)
        return in_state(fail(ErrorCode::kGraph, "state dependency is missing"), state.key);
      if (previous != nullptr && dependency <= *previous)
        return in_state(fail(ErrorCode::kGraph, "state dependencies are not unique canonical order"),
                        state.key);
      previous = &dependency;
      edges[i].push_back(static_cast<std::uint32_t>(found - family.states.data()));
    }
  }
  return edges;
}

/// F17. Depth-first with a stack of its own: 65,536 states can form one long path.
inline bool has_cycle(const std::vector<std::vector<std::uint32_t>>& edges) {
  enum class Mark : std::uint8_t { kNew, kOpen, kClosed };
  struct Frame {
    std::uint32_t node;
    std::size_t next_edge;
  };
  std::vector<Mark> marks(edges.size(), Mark::kNew);
  std::vector<Frame> stack;
  for (std::uint32_t root = 0; root < edges.size(); ++root) {
    if (marks[root] != Mark::kNew) continue;
    marks[root] = Mark::kOpen;
    stack.push_back({root, 0});
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next_edge == edges[top.node].size()) {
        marks[top.node] = Mark::kClosed;
        stack.pop_back();
        continue;
      }
      const std::uint32_t target = edges[top.node][top.next_edge++];
      if (marks[target] == Mark::kOpen) return true;
      if (marks[target] == Mark::kNew) {
        marks[target] = Mark::kOpen;
        stack.push_back({target, 0});
      }
    }
  }
  return false;
}

}  // namespace detail

inline Status write_family_body(ByteWriter& out, const RepresentationFamily& family) {
  if (family.states.empty() || family.states.size() > kMaxStates)
    return fail(ErrorCode::kBounds, "family state count is outside bounds");
  out.bytes(family.engine_cache_abi);
  out.le(static_cast<std::uint16_t>(family.mode));
  out.le(std::uint16_t{0});
  out.le(family.page_size_tokens);
  out.bytes(family.topology);
  out.bytes(family.shard_map);
  out.le(static_cast<std::uint32_t>(family.states.size()));
  for (const StaticState& state : family.states) KVPACK_TRY(detail::write_static_state(out, state));
  return success();
}

inline Result<RepresentationFamily> read_family_body(CanonicalReader& in) {
  RepresentationFamily family;
  KVPACK_TRY_ASSIGN(family.engine_cache_abi, in.id());
  KVPACK_TRY_ASSIGN(family.mode, in.wire_enum<RepresentationMode>());
  KVPACK_TRY(in.zero<std::uint16_t>(kFamilyTexts.bad_reserved));
  KVPACK_TRY_ASSIGN(family.page_size_tokens, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(family.topology, in.id());
  KVPACK_TRY_ASSIGN(family.shard_map, in.id());
  KVPACK_TRY_ASSIGN(const auto count,
                    in.count<std::uint32_t>(kMaxStates, "family state count is outside bounds"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(StaticState state, detail::read_static_state(in));
    family.states.push_back(std::move(state));
  }
  return family;
}

inline Result<Bytes> encode_family(const RepresentationFamily& family) {
  ByteWriter out;
  write_object_prefix(out, kFamilyTexts.magic);
  KVPACK_TRY(write_family_body(out, family));
  return std::move(out).take();
}

inline Result<RepresentationFamily> decode_family(ByteSpan bytes) {
  return decode_object<RepresentationFamily>(bytes, kFamilyTexts, read_family_body, encode_family);
}

inline Status validate_family(const RepresentationFamily& family) {
  if (family.engine_cache_abi.is_zero() || family.topology.is_zero() || family.shard_map.is_zero())
    return fail(ErrorCode::kSemantics, "representation family contains a zero identity");
  if (family.page_size_tokens == 0)
    return fail(ErrorCode::kSemantics, "representation family page size must be nonzero");
  if (family.states.empty() || family.states.size() > kMaxStates)
    return fail(ErrorCode::kBounds, "family state count is outside bounds");
  const StateKey* previous = nullptr;
  for (const StaticState& state : family.states) {
    const std::string& name = state.key.name;
    if (name.empty() || name.size() > kMaxStateNameBytes || name.find('\0') != std::string::npos)
      return in_state(fail(ErrorCode::kSemantics, "invalid state name"), state.key);
    if (previous != nullptr && state.key <= *previous)
      return in_state(fail(ErrorCode::kSemantics, "family states are not unique canonical order"), state.key);
    previous = &state.key;
    if (auto status = detail::validate_static_state(state, family.mode); !status.has_value())
      return in_state(std::move(status.error()), state.key);
  }
  KVPACK_TRY_ASSIGN(const auto edges, detail::resolve_dependencies(family));
  if (detail::has_cycle(edges)) return fail(ErrorCode::kGraph, "state dependency cycle");
  return success();
}

inline Result<IdentifiedFamily> IdentifiedFamily::create(RepresentationFamily family) {
  for (const StaticState& state : family.states) {
    if (!is_utf8(state.key.name))
      return in_state(fail(ErrorCode::kSemantics, "state name is not UTF-8"), state.key);
    if (state.dependencies.size() > kMaxDependenciesPerState)
      return in_state(fail(ErrorCode::kBounds, "too many state dependencies"), state.key);
  }
  KVPACK_TRY_ASSIGN(const Bytes object, encode_family(family));
  return IdentifiedFamily(std::move(family),
                          hashed_identity(with_nul("kvpack/v1/representation-family"), object));
}

}  // namespace kvpack
