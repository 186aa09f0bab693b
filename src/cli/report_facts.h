/// What a report tells of a store: numbers alone, with the texts that kvpack itself has written. No label,
/// path or name of a tenant. docs/cli.md §Report
#pragma once

#include "cli/report_forest.h"

namespace kvpack::cli {

/// Chunks that this many cuts name.
struct SharingClass {
  std::uint64_t least_users = 0;
  std::uint64_t most_users = 0;  ///< 2^64 - 1: and more.
  std::uint64_t chunks = 0;
  std::uint64_t object_bytes = 0;
  std::uint64_t saved_bytes = 0;  ///< What they would take more if each cut had its own.
};

/// Something that whoever runs the store should know.
struct ReportFinding {
  bool is_problem = false;  ///< Else a notice: nothing is broken.
  std::string name;         ///< For programs: `damage_met`, ...
  std::string text;         ///< For people.
  std::uint64_t count = 0;
};

/// What a report is asked to compare with, where it is known.
struct ReportRates {
  std::optional<std::uint64_t> prefill_tokens_per_second{};
  std::optional<std::uint64_t> wire_bytes_per_second{};

  bool has_both() const noexcept { return prefill_tokens_per_second && wire_bytes_per_second; }
};

/// What the store has saved its users. Estimates take the average cut that is stored for the average cut that
/// was restored.
struct ReportEconomics {
  ReportRates rates{};
  std::uint64_t hits = 0;  ///< Lookups that found the whole input or a part of it.
  std::uint64_t misses = 0;
  std::uint64_t restores = 0;                    ///< That were committed.
  std::uint64_t served_bytes = 0;                ///< Plaintext that restores have given out.
  std::optional<std::uint64_t> served_tokens{};  ///< Estimate; nothing where no cut is stored.
  std::optional<std::uint64_t> recompute_ms{};   ///< To compute these tokens, at the prefill rate.
  std::optional<std::uint64_t> move_ms{};        ///< To move these bytes, at the wire's rate.
  /// With both rates: tokens from which on moving a cache of Muse's geometry is faster; nothing: never.
  std::optional<std::uint64_t> muse_break_even_tokens{};
};

struct ReportFacts {
  std::uint64_t taken_ms = 0;  ///< Milliseconds since 1970.
  StoreStatus status{};
  std::uint64_t manifest_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t token_count = 0;     ///< Of all cuts together.
  std::uint64_t restored_bytes = 0;  ///< Payload of all cuts together.
  std::uint64_t damaged_cuts = 0;
  std::uint64_t evicting_cuts = 0;
  std::uint64_t expired_cuts = 0;
  std::vector<SharingClass> sharing{};  ///< Ascending; every class, also those without chunks.
  ShownForest forest{};
  std::vector<QuarantineGroup> quarantine{};  ///< Those with most files.
  std::uint64_t quarantined_files = 0;        ///< All of them.
  std::vector<ReportFinding> findings{};      ///< Problems first.

  /// What neither objects nor reservations take of the quota.
  std::uint64_t free_bytes() const noexcept;
  /// @pre there is a counter of this name
  std::uint64_t counter(std::string_view name) const;
};

ReportEconomics economics_of(const ReportFacts& facts, const ReportRates& rates);

/// Reads the catalog once, in short transactions: what a writer changes meanwhile may be in one number and
/// not in another.
/// @param max_shown_cuts  see CutForest::show
/// @error kCatalog kIo
Result<ReportFacts> gather_facts(Store& store, std::uint64_t now_ms, std::size_t max_shown_cuts);

}  // namespace kvpack::cli
