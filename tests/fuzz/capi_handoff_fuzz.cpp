// Bytes of any peer through the C interface: a stream into a receiver, in push and in pull form, with a sink
// that checks its calls; an answer into a sender; a begin as text. The first byte chooses which, and how.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kvpack_c.h"

namespace kvpack::capi_handoff_fuzz {
namespace {

void require(bool good) {
  if (!good) std::abort();
}

// The verdict of a call; frees the error.
std::string verdict_of(kvpack_status status, kvpack_error* error) {
  require((status == KVPACK_OK) == (error == nullptr) && status != KVPACK_ERR_INTERNAL);
  if (status == KVPACK_OK) return "ok";
  require(kvpack_error_status(error) == status);
  std::string out = kvpack_error_category(error) + std::string(":") + kvpack_error_message(error);
  kvpack_error_free(error);
  return out;
}

const kvpack_mac_key* key() {
  static const kvpack_mac_key* made = [] {
    const std::vector<std::uint8_t> secret(32, 9);
    kvpack_mac_key_options options{};
    options.struct_size = sizeof(options);
    options.secret = secret.data();
    options.secret_size = secret.size();
    kvpack_mac_key* out = nullptr;
    require(kvpack_mac_key_new(&out, &options, nullptr) == KVPACK_OK);
    return out;
  }();
  return made;
}

struct CheckingSink {
  bool lends = false;
  bool begun = false;
  bool prepared = false;
  bool reserved = false;
  bool committed = false;
  bool aborted = false;
  std::uint64_t generation = 0;
  std::uint64_t received = 0;
  std::vector<std::uint8_t> shadow{};

  static CheckingSink& of(void* user) { return *static_cast<CheckingSink*>(user); }
  bool is_receiving() const { return begun && !prepared && !aborted; }
};

constexpr std::uint64_t kRoom = 1 << 16;

kvpack_status on_begin(void* user, const kvpack_handoff_begin* begin, std::uint64_t* max_total_bytes) {
  CheckingSink& self = CheckingSink::of(user);
  require(!self.begun && begin->component_count != 0 && begin->prompt_token_count != 0);
  for (std::uint64_t i = 0; i < begin->segment_count; ++i)
    require(begin->segments[i].sequence == i && begin->segments[i].byte_len != 0);
  self.begun = true;
  self.generation = begin->generation;
  *max_total_bytes = kRoom;
  return KVPACK_OK;
}

kvpack_status on_lend(void* user, const kvpack_handoff_segment* segment, std::uint64_t,
                      kvpack_handoff_place* place) {
  CheckingSink& self = CheckingSink::of(user);
  require(self.is_receiving() && segment->byte_len <= kRoom);
  if (!self.lends) return KVPACK_OK;
  self.shadow.resize(segment->byte_len);
  const std::uint64_t half = segment->byte_len / 2;
  require(kvpack_handoff_place_add(place, self.shadow.data(), half, nullptr) == KVPACK_OK);
  require(kvpack_handoff_place_add(place, self.shadow.data() + half, segment->byte_len - half, nullptr) ==
          KVPACK_OK);
  require(kvpack_handoff_place_add(place, self.shadow.data(), 1, nullptr) == KVPACK_ERR_LIMIT);
  return KVPACK_OK;
}

kvpack_status on_segment_ready(void* user, const kvpack_handoff_segment* segment, std::uint64_t,
                               const kvpack_span* pieces, std::uint64_t piece_count, std::uint32_t lent) {
  CheckingSink& self = CheckingSink::of(user);
  kvpack_id digest{};
  require(self.is_receiving() && lent == (self.lends ? 1U : 0U));
  require(kvpack_handoff_payload_sha256(&digest, pieces, piece_count, nullptr) == KVPACK_OK);
  require(std::memcmp(digest.bytes, segment->sha256.bytes, sizeof(digest.bytes)) == 0);
  self.received += segment->byte_len;
  return KVPACK_OK;
}

kvpack_status on_prepare_commit(void* user, const kvpack_handoff_seal* seal) {
  CheckingSink& self = CheckingSink::of(user);
  require(self.is_receiving() && seal->generation == self.generation && seal->total_bytes == self.received);
  self.prepared = true;
  return KVPACK_OK;
}

kvpack_status on_commit(void* user) {
  CheckingSink& self = CheckingSink::of(user);
  require(self.prepared && self.reserved && !self.aborted && !self.committed);
  self.committed = true;
  return KVPACK_OK;
}

void on_abort(void* user) {
  CheckingSink& self = CheckingSink::of(user);
  require(self.begun && !self.committed && !self.aborted);
  self.aborted = true;
}

kvpack_status on_admit(void*, const char*, std::uint64_t, std::uint64_t, std::uint64_t generation) {
  return generation == 0 ? KVPACK_ERR_ZERO_GENERATION : KVPACK_OK;
}

kvpack_status on_reserve(void* user, const char*, std::uint64_t, std::uint64_t, std::uint64_t generation) {
  CheckingSink& self = CheckingSink::of(user);
  require(self.prepared && generation == self.generation);
  self.reserved = true;
  return KVPACK_OK;
}

kvpack_status accept(kvpack_handoff_receiver* receiver, CheckingSink& self, kvpack_error** error) {
  kvpack_handoff_offer offer{};
  offer.struct_size = sizeof(offer);
  require(kvpack_handoff_receiver_offer(receiver, &offer, nullptr) == KVPACK_OK);
  require(std::strlen(offer.transfer_id) <= offer.transfer_id_size);
  kvpack_handoff_sink sink{};
  sink.struct_size = sizeof(sink);
  sink.user = &self;
  sink.begin = on_begin;
  sink.lend = on_lend;
  sink.segment_ready = on_segment_ready;
  sink.prepare_commit = on_prepare_commit;
  sink.commit = on_commit;
  sink.abort = on_abort;
  kvpack_handoff_ledger ledger{};
  ledger.struct_size = sizeof(ledger);
  ledger.user = &self;
  ledger.admit = on_admit;
  ledger.reserve = on_reserve;
  kvpack_handoff_accept_options options{};
  options.struct_size = sizeof(options);
  options.now_unix_ms = 15;
  options.sink = &sink;
  options.ledger = &ledger;
  return kvpack_handoff_receiver_accept(receiver, &options, error);
}

// One piece of the stream, `*used` of it. What it gives is the receiver's; what it leaves alone is 0.
kvpack_status feed(kvpack_handoff_receiver* receiver, const std::uint8_t* data, std::uint64_t size, bool pull,
                   std::uint32_t* step, std::uint64_t* used, kvpack_error** error) {
  if (!pull) return kvpack_handoff_receiver_push(receiver, step, used, data, size, error);
  std::uint8_t* place = nullptr;
  std::uint64_t room = 0;
  require(kvpack_handoff_receiver_want(receiver, &place, &room, nullptr) == KVPACK_OK);
  require(room != 0 && place != nullptr);
  *used = std::min(size, room);
  std::memcpy(place, data, *used);
  return kvpack_handoff_receiver_advance(receiver, step, *used, error);
}

std::string judge(const std::uint8_t* data, std::uint64_t size, std::uint8_t mode, std::uint64_t piece,
                  bool pull, bool lends) {
  CheckingSink sink;
  sink.lends = lends;
  kvpack_handoff_accepted_key accepted{};
  accepted.key_id = "k";
  accepted.key_id_size = 1;
  accepted.key = key();
  accepted.minimum_epoch = 2;
  kvpack_handoff_receiver_options options{};
  options.struct_size = sizeof(options);
  options.keys = &accepted;
  options.key_count = 1;
  options.max_header_bytes = 1 << 16;
  options.max_payload_bytes = 1 << 20;
  options.max_segments = 64;
  options.lenient = mode & 1;
  options.recording = (mode >> 1) & 1;
  options.refusals = 1;
  kvpack_handoff_receiver* receiver = nullptr;
  require(kvpack_handoff_receiver_new(&receiver, &options, nullptr) == KVPACK_OK);
  kvpack_error* error = nullptr;
  kvpack_status status = KVPACK_OK;
  std::uint32_t step = KVPACK_HANDOFF_MORE;
  while (status == KVPACK_OK && step != KVPACK_HANDOFF_COMMITTED && size != 0) {
    std::uint64_t used = 0;
    status = feed(receiver, data, std::min(piece, size), pull, &step, &used, &error);
    data += used;
    size -= used;
    if (status == KVPACK_OK && step == KVPACK_HANDOFF_BEGIN) status = accept(receiver, sink, &error);
  }
  if (status == KVPACK_OK) status = kvpack_handoff_receiver_end(receiver, &step, &error);
  require((status == KVPACK_OK) == sink.committed);
  const std::string verdict = verdict_of(status, error);
  error = nullptr;
  status = kvpack_handoff_receiver_end(receiver, &step, &error);
  require(verdict_of(status, error) == verdict);
  std::uint64_t reply_size = 0;
  require((kvpack_handoff_receiver_reply(receiver, &reply_size) != nullptr) ==
          (sink.committed || !sink.reserved));
  kvpack_handoff_receiver_free(receiver);
  require(sink.aborted == (sink.begun && !sink.committed));
  return verdict;
}

// A text that is a begin gives the frame of itself: the same begin once more, sealed and sent to a receiver.
void send_text(const std::uint8_t* data, std::uint64_t size) {
  kvpack_handoff_sender_options options{};
  options.struct_size = sizeof(options);
  options.key = key();
  options.begin_json = data;
  options.begin_json_size = size;
  kvpack_handoff_sender* sender = nullptr;
  kvpack_error* error = nullptr;
  const kvpack_status status = kvpack_handoff_sender_new(&sender, &options, &error);
  require((status == KVPACK_OK) == (sender != nullptr));
  verdict_of(status, error);
  if (sender == nullptr) return;
  const std::uint8_t* frame = nullptr;
  std::uint64_t frame_size = 0;
  require(kvpack_handoff_sender_begin(sender, &frame, &frame_size, nullptr) == KVPACK_OK);
  const std::string stream(frame, frame + frame_size);
  kvpack_handoff_sender_free(sender);
  CheckingSink sink;
  kvpack_handoff_receiver_options receiving{};
  receiving.struct_size = sizeof(receiving);
  kvpack_handoff_receiver* receiver = nullptr;
  std::uint32_t step = 0;
  std::uint64_t used = 0;
  require(kvpack_handoff_receiver_new(&receiver, &receiving, nullptr) == KVPACK_OK);
  require(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data(), stream.size(), nullptr) ==
          KVPACK_OK);
  require(step == KVPACK_HANDOFF_BEGIN && used == stream.size());
  kvpack_handoff_receiver_free(receiver);
}

constexpr const char* kBegin =
    R"({"components":[{"id":"t","identity_sha256":)"
    R"("ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff","kind":"target_kv",)"
    R"("required":true}],"created_unix_ms":10,"deferred_segments":true,"expires_unix_ms":20,"generation":7,)"
    R"("hmac":{"epoch":2,"key_id":"k"},"identity":{)"
    R"("adapter_sha256":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",)"
    R"("chat_template_sha256":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",)"
    R"("context_policy_sha256":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",)"
    R"("model_revision":"m","model_sha256":)"
    R"("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","tokenizer_revision":"r",)"
    R"("tokenizer_sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},)"
    R"("prompt_token_ids":[1],"protocol":"kvpack-live-handoff-v2","segments":[],"transfer_id":"t"})";

// A sealed sender reads an answer, in pieces and at once.
std::string read_answer(const std::uint8_t* data, std::uint64_t size, std::uint8_t mode,
                        std::uint64_t piece) {
  kvpack_handoff_sender_options options{};
  options.struct_size = sizeof(options);
  options.key = key();
  options.begin_json = kBegin;
  options.begin_json_size = std::strlen(kBegin);
  options.refusals = mode & 1;
  kvpack_handoff_sender* sender = nullptr;
  require(kvpack_handoff_sender_new(&sender, &options, nullptr) == KVPACK_OK);
  const std::uint8_t* frame = nullptr;
  std::uint64_t frame_size = 0;
  require(kvpack_handoff_sender_begin(sender, &frame, &frame_size, nullptr) == KVPACK_OK);
  kvpack_handoff_shape shape{};
  shape.component_id = "t";
  shape.component_id_size = 1;
  shape.logical_count = 1;
  shape.role = KVPACK_ROLE_NOPE_KEY;
  shape.dtype = KVPACK_DTYPE_F16;
  shape.elements_per_token = 1;
  const kvpack_span payload{"kv", 2};
  require(kvpack_handoff_sender_add_segment(sender, &frame, &frame_size, &shape, &payload, 1, nullptr) ==
          KVPACK_OK);
  require(kvpack_handoff_sender_finish(sender, &frame, &frame_size, nullptr) == KVPACK_OK);
  kvpack_error* error = nullptr;
  kvpack_status status = KVPACK_OK;
  std::uint32_t step = KVPACK_HANDOFF_MORE;
  while (status == KVPACK_OK && step == KVPACK_HANDOFF_MORE && size != 0) {
    std::uint64_t used = 0;
    status = kvpack_handoff_sender_push_reply(sender, &step, &used, data, std::min(piece, size), &error);
    data += used;
    size -= used;
  }
  if (status == KVPACK_OK) status = kvpack_handoff_sender_end_reply(sender, &step, &error);
  kvpack_handoff_refusal refusal{};
  refusal.struct_size = sizeof(refusal);
  require((kvpack_handoff_sender_refusal(sender, &refusal, nullptr) == KVPACK_OK) ==
          (status == KVPACK_OK && step == KVPACK_HANDOFF_REFUSED));
  kvpack_handoff_sender_free(sender);
  return std::to_string(step) + verdict_of(status, error);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t mode = data[0];
  const std::uint8_t* bytes = data + 1;
  const std::uint64_t count = size - 1;
  const std::uint64_t piece = 1 + mode / 16;
  const bool lends = (mode & 8) != 0;
  switch ((mode >> 2) & 1) {
    case 0: {
      const std::string pushed = judge(bytes, count, mode, count + 1, false, lends);
      require(judge(bytes, count, mode, piece, false, !lends) == pushed);
      require(judge(bytes, count, mode, piece, true, lends) == pushed);
      break;
    }
    default:
      if (lends) {
        send_text(bytes, count);
      } else {
        require(read_answer(bytes, count, mode, count + 1) == read_answer(bytes, count, mode, piece));
      }
  }
  return 0;
}

}  // namespace kvpack::capi_handoff_fuzz
