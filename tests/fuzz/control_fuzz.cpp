// A message of the control channel, taken as a request and as a response: what is read is canonical, so
// encoding it gives the input back, and whether it may be acted upon does not depend on who asks twice.
#include <algorithm>
#include <cstdlib>

#include "kvpack/net/control.h"

namespace kvpack::net::control_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  if (size >= kControlPreambleBytes) {
    std::array<std::uint8_t, kControlPreambleBytes> preamble{};
    copy_bytes(input.first(preamble.size()), preamble);
    if (const auto length = read_control_preamble(preamble); length.has_value())
      require(*length != 0 && *length <= kMaxControlFrameBytes);
  }
  if (const auto request = decode_control_request(input); request.has_value()) {
    require(std::ranges::equal(encode_control_request(*request), input));
    if (check_control_request(*request, 0).has_value())
      require(!request->request_id.empty() && request->receiver_port != 0);
  }
  if (const auto response = decode_control_response(input); response.has_value()) {
    require(std::ranges::equal(encode_control_response(*response), input));
    if (check_control_response(*response, response->request_id).has_value())
      require(response->error.has_value() == (response->status == ControlStatus::kFailed));
  }
  return 0;
}

}  // namespace kvpack::net::control_fuzz
