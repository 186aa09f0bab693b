#include "kvpack/core/canonical_json.h"
#include "kvpack/net/receiver.h"

namespace kvpack::net {

std::string_view attempt_end_name(AttemptEnd end) noexcept {
  switch (end) {
    case AttemptEnd::kCommitted: return "committed";
    case AttemptEnd::kExcess: return "excess";
    case AttemptEnd::kStopped: return "stopped";
    case AttemptEnd::kHandshake: return "handshake";
    case AttemptEnd::kBegin: return "begin";
    case AttemptEnd::kBusy: return "busy";
    case AttemptEnd::kVerify: return "verify";
    case AttemptEnd::kTransfer: return "transfer";
    case AttemptEnd::kInstall: return "install";
    case AttemptEnd::kLedger: return "ledger";
    case AttemptEnd::kCount: break;
  }
  return "unknown";
}

std::string receipt_json(const AttemptReceipt& receipt) {
  JsonValue out = JsonValue::object();
  out.set("end", attempt_end_name(receipt.end));
  out.set("ended_unix_ms", receipt.ended_unix_ms);
  out.set("peer", receipt.peer);
  if (receipt.error.has_value()) {
    JsonValue error = JsonValue::object();
    error.set("category", category_token(receipt.error->code));
    error.set("message", receipt.error->message);
    out.set("error", std::move(error));
  }
  if (!receipt.peer_leaf_sha256.empty()) out.set("peer_leaf_sha256", receipt.peer_leaf_sha256);
  if (!receipt.transfer_id.empty()) {
    out.set("transfer_id", receipt.transfer_id);
    out.set("generation", receipt.generation);
  }
  out.set("installed_segments", receipt.installed_segments);
  out.set("installed_bytes", receipt.installed_bytes);
  out.set("refusal_sent", receipt.refusal_sent);
  const AttemptPhases& phases = receipt.phases;
  out.set("accept_ns", phases.accept_ns);
  out.set("transfer_commit_ns", phases.transfer_commit_ns);
  out.set("total_ns", phases.total_ns);
  JsonValue detail = JsonValue::object();
  detail.set("segment_process_ns", phases.segment_process_ns);
  detail.set("segment_read_ns", phases.segment_read_ns);
  detail.set("sink_install_ns", phases.sink_ns);
  detail.set("seal_ns", phases.seal_ns);
  detail.set("reserve_ns", phases.reserve_ns);
  detail.set("commit_ns", phases.commit_ns);
  detail.set("ack_ns", phases.ack_ns);
  out.set("phases", std::move(detail));
  return canonical_json_text(out);
}

}  // namespace kvpack::net
