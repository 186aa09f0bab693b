// A replay ledger in memory behind the seam of the receive loop, with the file that a ledger on disk would
// have.
#pragma once

#include <string>
#include <vector>

#include "kvpack/handoff/receive_loop.h"
#include "kvpack/net/replay_watermarks.h"

namespace kvpack::testing {

class LedgerModel final : public handoff::ReplayLedger {
 public:
  LedgerModel() : file(net::encode_replay_watermarks({})) {}

  // What a receiver that starts again finds. @error as decode_replay_watermarks
  static Result<LedgerModel> load(Bytes content) {
    LedgerModel ledger;
    KVPACK_TRY_ASSIGN(ledger.highest, net::decode_replay_watermarks(content));
    ledger.file = std::move(content);
    return ledger;
  }

  Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    calls.push_back("admit");
    return judge(key_id, epoch, generation);
  }
  Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    calls.push_back("reserve");
    KVPACK_TRY(judge(key_id, epoch, generation));
    if (persist_fails) {
      latch_ = "ledger cannot be written";
      return fail(ErrorCode::kIo, *latch_);
    }
    highest[net::watermark_key(key_id, epoch)] = generation;
    file = net::encode_replay_watermarks(highest);
    return success();
  }

  net::ReplayWatermarks highest;
  Bytes file;
  std::vector<std::string> calls;
  bool persist_fails = false;

 private:
  Status judge(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) const {
    if (latch_.has_value())
      return fail(ErrorCode::kConfig, "replay ledger is latched degraded until restart: " + *latch_);
    return net::judge_generation(highest, key_id, epoch, generation);
  }
  std::optional<std::string> latch_;
};

}  // namespace kvpack::testing
