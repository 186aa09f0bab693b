/// DESC.json: everything that `pack` needs to know of a cut, and what `unpack` leaves behind. Schema:
/// docs/cli.md
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvpack/base/fs.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/core/cut_builder.h"
#include "kvpack/core/expectation.h"
#include "kvpack/core/family_builder.h"

namespace kvpack::cli {

inline constexpr std::string_view kDescriptionSchema = "kvpack.description.v1";

/// One plane of a description, in family order.
struct DescribedPlane {
  std::string file;
  bool npy = false;
  std::uint64_t token_start = 0;
  std::uint64_t token_count = 0;
  std::vector<std::uint64_t> byte_strides{};
  std::vector<std::uint64_t> chunk_tokens{};
  std::uint16_t sidecar_sinks = 0;
};

struct Description {
  IdentifiedFamily family;
  SemanticModelId semantic_model;
  std::vector<AuxiliaryInputId> auxiliary{};
  std::string tokens_file{};  ///< u32, little-endian; empty when the cut is known by identity.
  std::optional<InputCutId> known_cut{};
  SpanPolicy spans{};
  std::vector<AtomicGroup> groups{};
  std::vector<DescribedPlane> planes{};  ///< One per family state, in family order.
};

/// @error kJson a member is missing, unknown or wrong, named by its path; as build_family
Result<Description> parse_description(ByteSpan json);

/// The description of a restored cut: full planes, every chunk boundary, the cut by its identity.
/// @param plane_files  one name per state
JsonValue describe_cut(const CutManifest& head, const std::vector<std::vector<std::uint64_t>>& chunk_tokens,
                       const std::vector<std::string>& plane_files);

/// Planes and tokens of a description, read into memory. Views into it stay valid while it lives.
struct LoadedInput {
  std::vector<Bytes> files;
  std::vector<PlaneView> planes;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint16_t> sidecar_sinks;
  std::vector<std::vector<std::uint64_t>> chunk_tokens;  ///< Empty when no state chooses its own.
};
/// @param folder  what relative file names start at
/// @error kIo a file cannot be opened; kState its size or header does not fit
Result<LoadedInput> load_input(FileSystem& fs, const Description& description, const std::string& folder);

/// The tokens of a description, or none where it knows its cut by identity. @error as load_input
Result<std::vector<std::uint32_t>> load_tokens(FileSystem& fs, const Description& description,
                                               const std::string& folder);

/// The fields of an identity that a description fixes by itself: not manifest_id, and of a cut that is given
/// by its tokens neither token_root nor auxiliary_root, which are keyed.
Identity identity_of(const Description& description);

/// An identity JSON: an object with any of the identity fields.
/// @error kJson an unknown or ill-formed member, named
Result<Identity> parse_identity(ByteSpan json);

/// True for a JSON object with a "schema" member, which only descriptions have.
bool is_description(const JsonValue& value) noexcept;

}  // namespace kvpack::cli
