/// A snapshot as the network asks for it. docs/cluster.md
#pragma once

#include "kvpack/muse/handoff_source.h"
#include "kvpack/net/producer.h"

namespace kvpack::cli {

/// The segments of a source, which must outlive it, in wire order.
class SnapshotSegments final : public net::SegmentSource {
 public:
  explicit SnapshotSegments(const muse::HandoffSource& source) : source_(&source) {}
  Result<std::optional<net::OutgoingSegment>> next() override {
    std::optional<net::OutgoingSegment> segment;
    if (next_ == source_->segment_count()) return segment;
    segment = net::OutgoingSegment{source_->shape(next_), source_->payload(next_)};
    ++next_;
    return segment;
  }

 private:
  const muse::HandoffSource* source_;
  std::size_t next_ = 0;
};

}  // namespace kvpack::cli
