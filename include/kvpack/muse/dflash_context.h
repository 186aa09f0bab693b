/// The draft model's context that may travel with a Muse cache. docs/muse-handoff.md §Draft context
#pragma once

#include "kvpack/muse/shared_bytes.h"
#include "kvpack/muse/span_schedule.h"

namespace kvpack::muse {

/// K and V rows of one draft layer, f32 little-endian, `[rows][elements_per_token]`.
struct DflashLayer {
  SharedBytes key{};
  SharedBytes value{};

  friend bool operator==(const DflashLayer&, const DflashLayer&) = default;
};

/// The rows that dflash_ranges names, in that order, of every layer. Copies share the planes.
struct DflashContext {
  std::uint64_t position = 0;
  DflashGeometry geometry{};
  std::vector<DflashLayer> layers{};

  friend bool operator==(const DflashContext&, const DflashContext&) = default;
};

/// Geometry, position, then layer by layer the plane sizes.
/// @error kExpectation `DFlash context geometry is outside bounds`, `DFlash context position must be
/// nonzero`,
///        `DFlash context carries {n} layers, expected {m}`,
///        `DFlash context layer {i} has K/V bytes {k}/{v}, expected {n}`
Status validate_dflash(const DflashContext& context);

// ---------------------------------------------------------------------------------------------------------

inline Status validate_dflash(const DflashContext& context) {
  const auto refuse = [](std::string text) { return fail(ErrorCode::kExpectation, std::move(text)); };
  if (!is_bounded(context.geometry)) return refuse("DFlash context geometry is outside bounds");
  if (context.position == 0) return refuse("DFlash context position must be nonzero");
  if (context.layers.size() != context.geometry.layers)
    return refuse("DFlash context carries " + std::to_string(context.layers.size()) + " layers, expected " +
                  std::to_string(context.geometry.layers));
  const std::uint64_t plane =
      dflash_payload_bytes(context.position, context.geometry) / (std::uint64_t{2} * context.geometry.layers);
  for (std::size_t i = 0; i < context.layers.size(); ++i) {
    const DflashLayer& layer = context.layers[i];
    if (layer.key.size() != plane || layer.value.size() != plane)
      return refuse("DFlash context layer " + std::to_string(i) + " has K/V bytes " +
                    std::to_string(layer.key.size()) + "/" + std::to_string(layer.value.size()) +
                    ", expected " + std::to_string(plane));
  }
  return success();
}

}  // namespace kvpack::muse
