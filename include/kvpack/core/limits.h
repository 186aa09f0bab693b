/// The numbers that bound every object: docs/format/conventions.md §Bounds.
#pragma once

#include <cstdint>

namespace kvpack {

inline constexpr std::uint16_t kWireVersion = 1;
inline constexpr std::uint32_t kAlignment =
    4096;  ///< Unit of object sizes; also chunk header, pack header, pack footer.
inline constexpr std::uint32_t kPageBytes = kAlignment;
inline constexpr std::uint32_t kMaxChunkPlaintextBytes = 4'194'304;
inline constexpr std::uint32_t kCodecFrameHeaderBytes = 16;
inline constexpr std::uint32_t kMaxCodecOverheadBytes =
    kCodecFrameHeaderBytes + kMaxChunkPlaintextBytes / 128;
inline constexpr std::uint32_t kMaxCodecFrameBytes = kMaxChunkPlaintextBytes + kMaxCodecOverheadBytes;
inline constexpr std::uint32_t kMaxChunkObjectBytes =
    kPageBytes + kMaxChunkPlaintextBytes + kMaxCodecOverheadBytes + 16 + kPageBytes;
inline constexpr std::uint8_t kMaxRank = 8;
inline constexpr std::uint8_t kMaxDeltaDepth = 7;
inline constexpr std::uint32_t kPrefixBlockTokens = 256;
inline constexpr std::size_t kMaxCutChainCuts = 512;
inline constexpr std::size_t kMaxStateNameBytes = 255;
inline constexpr std::uint32_t kMaxStates = 65'536;
inline constexpr std::uint32_t kMaxAtomicGroups = 65'536;
inline constexpr std::uint32_t kMaxChunksPerState = 65'536;
inline constexpr std::uint16_t kMaxDependenciesPerState = 64;
inline constexpr std::uint64_t kMaxManifestBytes = 268'435'456;
inline constexpr std::uint64_t kDefaultMaxRestoredBytes = 4'398'046'511'104;
inline constexpr std::uint32_t kFlagEncrypted = 1;

static_assert(kMaxChunkObjectBytes == 4'235'296);

}  // namespace kvpack
