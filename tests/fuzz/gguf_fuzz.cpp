// Input: a model file. What opens can be walked again with the same counts, every tensor lies inside it, and
// what is read out of it ends in a verdict; a configuration survives its JSON form.
#include <cstdlib>

#include "kvpack/muse/config_json.h"
#include "kvpack/muse/layout_derivation.h"
#include "kvpack/muse/model_config.h"
#include "kvpack/muse/model_identity.h"

namespace kvpack::muse::gguf_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void walk(const GgufFile& file, std::uint64_t size) {
  std::uint64_t pairs = 0;
  std::uint64_t tensors = 0;
  require(file.for_each_pair([&](const GgufPair& pair) {
                require(pair.offset <= size);
                ++pairs;
                return success();
              })
              .has_value());
  require(file.for_each_tensor([&](const GgufTensor& tensor) {
                require(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
                ++tensors;
                return success();
              })
              .has_value());
  require(pairs == file.pair_count() && tensors == file.tensor_count());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SpanSource source({data, size});
  const auto file = GgufFile::open(source, is_model_key);
  if (!file.has_value()) return 0;
  walk(*file, size);
  const auto layout = derive_layout(*file);
  require(!layout.has_value() ||
          (validate_owned_layout(*layout).has_value() && validate_rope(layout->classes.front()).has_value()));
  const auto latent = derive_mla_layout(*file);
  require(!latent.has_value() || latent->num_layers > kMaxLayoutLayers ||
          validate_owned_layout(*latent).has_value());
  const auto tokenizer = tokenizer_sha256(*file);
  const auto chat_template = chat_template_sha256(*file);
  const auto precision = weight_precision(*file, std::nullopt);
  require(precision.has_value() || !precision.error().message.empty());
  const auto config = read_model_config(*file);
  if (!config.has_value()) return 0;
  const Bytes json = encode_muse_config(*config);
  const auto parsed = parse_muse_config(json);
  require(parsed.has_value() && encode_muse_config(*parsed) == json);
  if (!tokenizer.has_value() || !chat_template.has_value()) return 0;
  const ModelStatement said{.model_revision = "m", .tokenizer_revision = "t", .weight_precision = "q4_k_m"};
  const auto identity = identify_model(*file, *config, said);
  require(!identity.has_value() || identity->model_sha256 == Id32{sha256({data, size})});
  return 0;
}

}  // namespace kvpack::muse::gguf_fuzz
