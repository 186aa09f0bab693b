// Model files for tests: GGUF written field by field, also such as no honest writer would write.
#pragma once

#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/muse/gguf.h"

namespace kvpack::testing {

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::uint32_t type = 0;
    std::vector<std::uint64_t> dimensions;
    std::uint64_t offset = 0;
  };

  // A pair with any value. One that is there already is replaced in its place.
  GgufWriter& raw(std::string_view key, muse::GgufType type, Bytes value) {
    const auto found = std::ranges::find(pairs_, key, &Pair::key);
    const auto number = static_cast<std::uint32_t>(type);
    if (found != pairs_.end()) {
      *found = {std::string(key), number, std::move(value)};
    } else {
      pairs_.push_back({std::string(key), number, std::move(value)});
    }
    return *this;
  }
  // The same key once more.
  GgufWriter& repeat(std::string_view key) {
    pairs_.push_back(*std::ranges::find(pairs_, key, &Pair::key));
    return *this;
  }
  GgufWriter& erase(std::string_view key) {
    std::erase_if(pairs_, [key](const Pair& pair) { return pair.key == key; });
    return *this;
  }

  GgufWriter& u8(std::string_view key, std::uint8_t value) {
    return raw(key, muse::GgufType::kU8, number(value));
  }
  GgufWriter& u32(std::string_view key, std::uint32_t value) {
    return raw(key, muse::GgufType::kU32, number(value));
  }
  GgufWriter& i32(std::string_view key, std::int32_t value) {
    return raw(key, muse::GgufType::kI32, number(static_cast<std::uint32_t>(value)));
  }
  GgufWriter& u64(std::string_view key, std::uint64_t value) {
    return raw(key, muse::GgufType::kU64, number(value));
  }
  GgufWriter& f32(std::string_view key, float value) {
    return raw(key, muse::GgufType::kF32, number(std::bit_cast<std::uint32_t>(value)));
  }
  GgufWriter& f64(std::string_view key, double value) {
    return raw(key, muse::GgufType::kF64, number(std::bit_cast<std::uint64_t>(value)));
  }
  GgufWriter& boolean(std::string_view key, std::uint8_t value) {
    return raw(key, muse::GgufType::kBool, {value});
  }
  GgufWriter& string(std::string_view key, std::string_view value) {
    return raw(key, muse::GgufType::kString, string_bytes(value));
  }
  template <std::unsigned_integral U>
  GgufWriter& array(std::string_view key, muse::GgufType element, const std::vector<U>& values) {
    ByteWriter out;
    out.le(static_cast<std::uint32_t>(element));
    out.le(std::uint64_t{values.size()});
    for (const U value : values) out.le(value);
    return raw(key, muse::GgufType::kArray, std::move(out).take());
  }
  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter out;
    out.le(static_cast<std::uint32_t>(muse::GgufType::kString));
    out.le(std::uint64_t{values.size()});
    for (const std::string& value : values) out.bytes(string_bytes(value));
    return raw(key, muse::GgufType::kArray, std::move(out).take());
  }

  // A tensor with data of its own.
  GgufWriter& tensor(std::string name, std::uint32_t type, std::vector<std::uint64_t> dimensions,
                     ByteSpan data) {
    data_.resize(static_cast<std::size_t>(round_up(data_.size(), alignment)));
    tensors.push_back({std::move(name), type, std::move(dimensions), data_.size()});
    data_.insert(data_.end(), data.begin(), data.end());
    return *this;
  }

  // Their order is that of the file; what an offset points at is nobody's business but the reader's.
  std::vector<Tensor> tensors;
  std::uint64_t alignment = 32;
  std::uint32_t version = 3;

  Tensor& find_tensor(std::string_view name) { return *std::ranges::find(tensors, name, &Tensor::name); }
  void erase_tensor(std::string_view name) {
    std::erase_if(tensors, [name](const Tensor& tensor) { return tensor.name == name; });
  }

  // Where the data begins, and all bytes.
  std::size_t data_offset() const { return static_cast<std::size_t>(round_up(head().size(), alignment)); }
  Bytes finish() const {
    Bytes out = head();
    out.resize(data_offset());
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

  static Bytes string_bytes(std::string_view text) {
    ByteWriter out;
    out.le(std::uint64_t{text.size()});
    out.bytes(byte_view(text));
    return std::move(out).take();
  }
  template <std::unsigned_integral U>
  static Bytes number(U value) {
    const auto bytes = le_bytes(value);
    return {bytes.begin(), bytes.end()};
  }

 private:
  struct Pair {
    std::string key;
    std::uint32_t type = 0;
    Bytes value;
  };

  Bytes head() const {
    ByteWriter out;
    out.bytes(byte_view("GGUF"));
    out.le(version);
    out.le(std::uint64_t{tensors.size()});
    out.le(std::uint64_t{pairs_.size()});
    for (const Pair& pair : pairs_) {
      out.bytes(string_bytes(pair.key));
      out.le(pair.type);
      out.bytes(pair.value);
    }
    for (const Tensor& tensor : tensors) {
      out.bytes(string_bytes(tensor.name));
      out.le(static_cast<std::uint32_t>(tensor.dimensions.size()));
      for (const std::uint64_t n : tensor.dimensions) out.le(n);
      out.le(tensor.type);
      out.le(tensor.offset);
    }
    return std::move(out).take();
  }

  std::vector<Pair> pairs_;
  Bytes data_;
};

inline Bytes f32_bytes(const std::vector<float>& values) {
  ByteWriter out;
  for (const float value : values) out.le(std::bit_cast<std::uint32_t>(value));
  return std::move(out).take();
}

// A model of the Muse architecture with the smallest geometry that has one of everything: 2 layers, 4 query
// heads on 2 KV heads of 2 elements, hidden size 6, FFN 10, vocabulary 12. Layer 0 slides. All matrices lie
// on the same zeros; the Q norms are 3.5 and the K norms 1.
inline GgufWriter small_muse_model() {
  GgufWriter file;
  const std::string a = "muse-glimmer.";
  file.string("general.architecture", "muse-glimmer");
  file.string("tokenizer.ggml.model", "none");
  file.u32(a + "vocab_size", 12);
  file.u32(a + "context_length", 64);
  file.u32(a + "embedding_length", 6);
  file.u32(a + "block_count", 2);
  file.u32(a + "feed_forward_length", 10);
  file.u32(a + "attention.head_count", 4);
  file.u32(a + "attention.head_count_kv", 2);
  file.u32(a + "attention.key_length", 2);
  file.u32(a + "attention.value_length", 2);
  file.u32(a + "attention.sliding_window", 8);
  file.u32(a + "attention.sliding_window_pattern", 2);
  file.u32(a + "rope.dimension_count", 2);
  file.f32(a + "attention.layer_norm_rms_epsilon", 1e-5F);
  file.f32(a + "logit_scale", 0.25F);
  file.f32(a + "rope.freq_base", 500'000.0F);
  const auto zeros = [&](std::string name, std::vector<std::uint64_t> dimensions) {
    file.tensors.push_back({std::move(name), muse::kGgufTensorF32, std::move(dimensions), 0});
  };
  file.tensor("token_embd.weight", muse::kGgufTensorF32, {6, 12}, Bytes(6 * 12 * 4));
  zeros("output.weight", {6, 12});
  zeros("output_norm.weight", {6});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string b = "blk." + std::to_string(layer) + ".";
    zeros(b + "attn_norm.weight", {6});
    zeros(b + "attn_q.weight", {6, 8});
    zeros(b + "attn_k.weight", {6, 4});
    zeros(b + "attn_v.weight", {6, 4});
    file.tensor(b + "attn_q_norm.weight", muse::kGgufTensorF32, {2}, f32_bytes({3.5F, 3.5F}));
    file.tensor(b + "attn_k_norm.weight", muse::kGgufTensorF32, {2}, f32_bytes({1.0F, 1.0F}));
    zeros(b + "attn_gate.weight", {6, 8});
    zeros(b + "attn_output.weight", {8, 6});
    zeros(b + "post_attention_norm.weight", {6});
    zeros(b + "ffn_norm.weight", {6});
    zeros(b + "ffn_gate.weight", {6, 10});
    zeros(b + "ffn_up.weight", {6, 10});
    zeros(b + "ffn_down.weight", {10, 6});
    zeros(b + "post_ffw_norm.weight", {6});
  }
  return file;
}

}  // namespace kvpack::testing
