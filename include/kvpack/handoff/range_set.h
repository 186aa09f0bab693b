/// Disjoint ranges on many lines, found and added in logarithmic time in any order.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

namespace kvpack::handoff {

/// Half-open ranges [start, stop) on numbered lines. Ranges that touch become one, so that a line filled in
/// order costs one entry; a million that never touch cost about 35 MB and well under a microsecond each.
///
/// Sorted blocks under a directory of their first entries: a tree of nodes would miss the cache at every
/// level.
class RangeSet {
 public:
  /// Adds the range unless it intersects one on its line. @pre start < stop @return whether it was added
  bool add(std::uint64_t line, std::uint64_t start, std::uint64_t stop);

  /// Ranges held after merging.
  std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t kBlockEntries = 256;

  struct Key {
    std::uint64_t line;
    std::uint64_t start;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key;
    std::uint64_t stop;
  };
  /// An entry, or where one belongs: `index` may be one past the end of its block.
  struct Place {
    std::size_t block;
    std::size_t index;
  };

  Place lower_bound(const Key& key) const;
  Entry* at(const Place& place) noexcept {
    if (place.block >= blocks_.size() || place.index >= blocks_[place.block].size()) return nullptr;
    return &blocks_[place.block][place.index];
  }
  Place next(Place place) const noexcept;
  bool previous(Place& place) const noexcept;
  void insert(Place place, const Entry& entry);
  void erase(const Place& place);
  void split(std::size_t block);

  std::vector<std::vector<Entry>> blocks_;  ///< None is empty.
  std::vector<Key> firsts_;                 ///< Key of the first entry of each block.
  std::size_t size_ = 0;
};

// ---------------------------------------------------------------------------------------------------------

/// Where an entry with this key belongs: behind every smaller one, in the block of the one before it.
inline RangeSet::Place RangeSet::lower_bound(const Key& key) const {
  const auto above = std::ranges::upper_bound(firsts_, key);
  const auto block = above == firsts_.begin() ? 0 : static_cast<std::size_t>(above - firsts_.begin()) - 1;
  if (block == blocks_.size()) return {block, 0};
  const auto& entries = blocks_[block];
  const auto found = std::ranges::lower_bound(entries, key, {}, &Entry::key);
  return {block, static_cast<std::size_t>(found - entries.begin())};
}

/// The first entry at or behind a place.
inline RangeSet::Place RangeSet::next(Place place) const noexcept {
  if (place.block < blocks_.size() && place.index == blocks_[place.block].size()) return {place.block + 1, 0};
  return place;
}

/// The entry before a place; false when there is none.
inline bool RangeSet::previous(Place& place) const noexcept {
  if (place.index == 0 && place.block == 0) return false;
  if (place.index == 0) {
    --place.block;
    place.index = blocks_[place.block].size();
  }
  --place.index;
  return true;
}

inline bool RangeSet::add(std::uint64_t line, std::uint64_t start, std::uint64_t stop) {
  const Place place = lower_bound({line, start});
  const Place behind = next(place);
  Entry* after = at(behind);
  if (after != nullptr && after->key.line != line) after = nullptr;
  if (after != nullptr && after->key.start < stop) return false;
  Place ahead = place;
  Entry* before = previous(ahead) ? at(ahead) : nullptr;
  if (before != nullptr && before->key.line != line) before = nullptr;
  if (before != nullptr && before->stop > start) return false;

  const bool joins_before = before != nullptr && before->stop == start;
  const bool joins_after = after != nullptr && after->key.start == stop;
  if (joins_before) {
    before->stop = joins_after ? after->stop : stop;
    if (joins_after) erase(behind);
    return true;
  }
  if (joins_after) {
    after->key.start = start;
    if (behind.index == 0) firsts_[behind.block].start = start;
    return true;
  }
  insert(place, {{line, start}, stop});
  return true;
}

inline void RangeSet::insert(Place place, const Entry& entry) {
  ++size_;
  const bool is_last = place.block + 1 >= blocks_.size();
  const bool is_full = place.block < blocks_.size() && blocks_[place.block].size() == kBlockEntries;
  // Behind the last full block another one begins: entries that come in order fill their blocks.
  if (blocks_.empty() || (is_last && is_full && place.index == kBlockEntries)) {
    blocks_.emplace_back().reserve(kBlockEntries);
    blocks_.back().push_back(entry);
    firsts_.push_back(entry.key);
    return;
  }
  if (is_full) {
    split(place.block);
    const std::size_t half = blocks_[place.block].size();
    if (place.index > half) place = {place.block + 1, place.index - half};
  }
  auto& entries = blocks_[place.block];
  entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(place.index), entry);
  if (place.index == 0) firsts_[place.block] = entry.key;
}

/// Moves the upper half of a full block into a new one behind it.
inline void RangeSet::split(std::size_t block) {
  constexpr auto kHalf = static_cast<std::ptrdiff_t>(kBlockEntries / 2);
  std::vector<Entry> upper;
  upper.reserve(kBlockEntries);
  auto& lower = blocks_[block];
  upper.assign(lower.begin() + kHalf, lower.end());
  lower.resize(kBlockEntries / 2);
  firsts_.insert(firsts_.begin() + static_cast<std::ptrdiff_t>(block) + 1, upper.front().key);
  blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(block) + 1, std::move(upper));
}

inline void RangeSet::erase(const Place& place) {
  --size_;
  auto& entries = blocks_[place.block];
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(place.index));
  const auto offset = static_cast<std::ptrdiff_t>(place.block);
  if (entries.empty()) {
    blocks_.erase(blocks_.begin() + offset);
    firsts_.erase(firsts_.begin() + offset);
    return;
  }
  if (place.index == 0) firsts_[place.block] = entries.front().key;
}

}  // namespace kvpack::handoff
