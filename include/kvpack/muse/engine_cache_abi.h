/// The identity of cache bytes: what a layout's classes hash to, version 3. Everything that changes the
/// meaning or the order of a byte is in it. docs/format/muse.md §Engine cache ABI
#pragma once

#include <optional>

#include "kvpack/muse/domain_hash.h"
#include "kvpack/muse/layout.h"

namespace kvpack::muse {

/// The kernel that rotates keys at install, where a cache holds them unrotated. From local configuration,
/// never from a peer.
struct RotationKernelPin {
  std::string engine;
  std::string kernel;
  std::string dtype_path;
  RopeConvention convention = RopeConvention::kNeox;

  friend bool operator==(const RotationKernelPin&, const RotationKernelPin&) = default;
};

/// What engine_cache_abi hashes.
struct EngineCacheAbi {
  std::string_view portable_abi;
  std::string_view consumer_engine_abi;
  const Layout* layout = nullptr;
  std::uint32_t max_context_tokens = 0;
  const Id32* transform = nullptr;         ///< Null: none.
  const RotationKernelPin* pin = nullptr;  ///< Null: none, and then no part of the hash.
};

/// Numbers of all classes in order, then the context bound.
/// @pre the layout is registered or validate_owned_layout has passed; also of the functions below
Bytes bare_geometry(const Layout& layout, std::uint32_t max_context_tokens);
/// The same, each class followed by its label, the names of its states and its rotation.
Bytes labeled_geometry(const Layout& layout, std::uint32_t max_context_tokens);
/// @pre each text is shorter than 4 GiB
Bytes pin_bytes(const RotationKernelPin& pin);

Id32 engine_cache_abi_id(const EngineCacheAbi& abi);
/// Of the bare geometry: classes that differ in label or rotation alone share it.
Id32 topology_id(const Layout& layout, std::uint32_t max_context_tokens);
/// One rank that holds everything, in the order of the layout table.
Id32 shard_map_id();

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline void write_lp32(ByteWriter& out, std::string_view text) {
  out.le(static_cast<std::uint32_t>(text.size()));
  out.bytes(byte_view(text));
}

inline void write_bare_class(ByteWriter& out, const LayoutClass& c) {
  for (const std::uint32_t value : {c.from, c.until, c.step, c.kv_heads, c.head_dim, c.window_tokens})
    out.le(value);
  // Without a count: the format has none.
  for (const std::uint32_t layer : c.except) out.le(layer);
}

inline void write_labeled_class(ByteWriter& out, const LayoutClass& c) {
  write_bare_class(out, c);
  write_lp32(out, c.label);
  const auto names = state_names(c);
  out.le(static_cast<std::uint32_t>(names.size()));
  for (const std::string_view name : names) write_lp32(out, name);
  out.le(c.rope_base_bits);
  out.le(c.rope_dims);
  write_lp32(out, c.rope_scaling);
  write_lp32(out, rope_convention_label(c.rope_convention));
}

}  // namespace detail

inline Bytes bare_geometry(const Layout& layout, std::uint32_t max_context_tokens) {
  ByteWriter out;
  for (const LayoutClass& c : layout.classes) detail::write_bare_class(out, c);
  out.le(max_context_tokens);
  return std::move(out).take();
}

inline Bytes labeled_geometry(const Layout& layout, std::uint32_t max_context_tokens) {
  ByteWriter out;
  for (const LayoutClass& c : layout.classes) detail::write_labeled_class(out, c);
  out.le(max_context_tokens);
  return std::move(out).take();
}

inline Bytes pin_bytes(const RotationKernelPin& pin) {
  ByteWriter out;
  for (const std::string_view text :
       {std::string_view(pin.engine), std::string_view(pin.kernel), std::string_view(pin.dtype_path),
        rope_convention_label(pin.convention)})
    detail::write_lp32(out, text);
  return std::move(out).take();
}

inline Id32 engine_cache_abi_id(const EngineCacheAbi& abi) {
  const Bytes geometry = labeled_geometry(*abi.layout, abi.max_context_tokens);
  // An absent transform is an empty part, an absent pin is no part.
  std::vector<ByteSpan> parts{byte_view(abi.portable_abi), byte_view(abi.consumer_engine_abi), geometry,
                              abi.transform != nullptr ? ByteSpan(*abi.transform) : ByteSpan()};
  const Bytes pin = abi.pin != nullptr ? pin_bytes(*abi.pin) : Bytes();
  if (abi.pin != nullptr) parts.push_back(pin);
  return domain_hash(with_nul("kvpack/spark-prefill/engine-cache-abi/v3"), parts);
}

inline Id32 topology_id(const Layout& layout, std::uint32_t max_context_tokens) {
  return domain_hash(with_nul("kvpack/spark-prefill/topology/v2"),
                     {bare_geometry(layout, max_context_tokens)});
}

inline Id32 shard_map_id() {
  return domain_hash(with_nul("kvpack/spark-prefill/shard-map/v2"),
                     {byte_view("single-rank-layout-table-declared-order")});
}

}  // namespace kvpack::muse
