// What a control server reads off a connection: frames in pieces of any size, then a request. However the
// bytes are cut, the same frames come out, nothing is held that has not come, and a request that is taken is
// canonical and inside its bounds. The first byte gives the size of the pieces.
#include <algorithm>
#include <cstdlib>

#include "kvpack/net/control_server.h"
#include "net/control_frame_reader.h"

namespace kvpack::net::control_stream_fuzz {
namespace {

constexpr std::uint32_t kMaxBodyBytes = 4096;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Reading {
  std::vector<Bytes> bodies;
  std::string refusal;

  friend bool operator==(const Reading&, const Reading&) = default;
};

Reading read_in_pieces(ByteSpan stream, std::size_t piece_bytes) {
  Reading out;
  ControlFrameReader reader(kMaxBodyBytes);
  std::size_t given = 0;
  while (!stream.empty()) {
    ByteSpan piece = stream.first(std::min(piece_bytes, stream.size()));
    stream = stream.subspan(piece.size());
    given += piece.size();
    while (!piece.empty()) {
      const auto whole = reader.push(piece);
      if (!whole.has_value()) {
        out.refusal = whole.error().message;
        return out;
      }
      require(reader.held_bytes() <= std::min<std::size_t>(given, kMaxBodyBytes));
      if (!*whole) continue;
      out.bodies.push_back(std::move(reader).take_body());
      reader = ControlFrameReader(kMaxBodyBytes);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan stream(data + 1, size - 1);
  const Reading seen = read_in_pieces(stream, std::size_t{data[0]} + 1);
  require(seen == read_in_pieces(stream, stream.size()));
  for (const Bytes& body : seen.bodies) {
    require(!body.empty() && body.size() <= kMaxBodyBytes);
    const auto request = decode_control_request(body);
    if (!request.has_value()) continue;
    require(std::ranges::equal(encode_control_request(*request), body));
    // What it would be answered: never longer than a response may be.
    const Status judged = check_control_request(*request, 0);
    if (judged.has_value()) {
      const auto positions = request_positions(*request);
      require(positions.size() >= 2 && positions.size() <= kMaxControlPositions);
      static_cast<void>(decode_control_images(*request));
    }
  }
  return 0;
}

}  // namespace kvpack::net::control_stream_fuzz
