// The durable tier on a model's file: what the tests and their other process open alike.
#pragma once

#include "engine/engine_fixture.h"
#include "kvpack/muse/durable_cache.h"
#include "kvpack/muse/model_config.h"
#include "kvpack/muse/model_identity.h"
#include "support/stores.h"

namespace kvpack::engine_fixture {

struct DescribedModel {
  muse::MuseConfig config{};
  muse::MuseIdentity identity{};
};

// Everything that the file says, and what an operator adds.
inline Result<DescribedModel> describe_model(const std::string& path) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(auto file, fs.open_file(path, Links::kFollow));
  KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));
  KVPACK_TRY_ASSIGN(const muse::GgufFile gguf, muse::GgufFile::open(source, muse::is_model_key));
  DescribedModel out;
  KVPACK_TRY_ASSIGN(out.config, muse::read_model_config(gguf));
  KVPACK_TRY_ASSIGN(out.identity, muse::identify_model(gguf, out.config,
                                                       {.model_revision = "tiny-1",
                                                        .tokenizer_revision = "none-1",
                                                        .weight_precision = {}}));
  return out;
}

// A store on this machine's clock and randomness, as two processes in a row open it.
inline Result<std::unique_ptr<Store>> open_store(const std::string& folder) {
  StoreOptions options;
  options.root = folder;
  options.keys = kvpack::testing::test_keys();
  if (std::filesystem::exists(folder)) return Store::open(options);
  options.quota_bytes = std::uint64_t{1} << 30;
  return Store::create(options);
}

}  // namespace kvpack::engine_fixture
