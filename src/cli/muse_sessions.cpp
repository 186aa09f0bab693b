#include <fmt/core.h>

#include "cli/muse_command.h"
#include "cli/store_command.h"
#include "kvpack/base/clock.h"
#include "kvpack/muse/identity_label.h"

namespace kvpack::cli {

namespace {

struct SessionsOptions {
  StoreArguments store;
};

/// What the catalog says of one Muse cut.
struct ListedSession {
  StoredCut cut;
  muse::IdentityLabel label;
  std::uint64_t logits_bytes = 0;  ///< What the cut has beside its KV rows.
  std::uint64_t age_ms = 0;
};

/// Nothing for a cut of another model: it has no label of a Muse identity.
std::optional<ListedSession> read_session(const StoredCut& cut, std::uint64_t now_ms) {
  auto label = muse::read_identity_label(cut.label);
  if (!label.has_value()) return std::nullopt;
  ListedSession session{.cut = cut, .label = *std::move(label)};
  if (cut.token_count <= muse::kMaxContextTokens) {
    const std::uint64_t rows = muse::kv_bytes(cut.token_count);
    if (cut.restored_bytes > rows) session.logits_bytes = cut.restored_bytes - rows;
  }
  const std::uint64_t published_ms = cut.published_ns / 1'000'000;
  session.age_ms = now_ms > published_ms ? now_ms - published_ms : 0;
  return session;
}

std::uint64_t stored_bytes(const StoredCut& cut) noexcept {
  return cut.file_bytes + cut.chunk_bytes;
}

JsonValue session_json(const ListedSession& session) {
  const StoredCut& cut = session.cut;
  JsonValue identity = JsonValue::object();
  for (const muse::MuseDigestField& field : muse::kMuseDigestFields)
    identity.set(field.name, (session.label.identity.*field.member).hex());
  for (const muse::MuseTextField& field : muse::kMuseTextFields)
    identity.set(field.name, session.label.identity.*field.member);
  JsonValue value = JsonValue::object();
  value.set("manifest_id", cut.manifest_id.hex());
  value.set("identity", std::move(identity));
  value.set("layout", session.label.layout);
  value.set("state", cut_state_name(cut.state));
  value.set("token_count", cut.token_count);
  value.set("exact", session.logits_bytes != 0);
  value.set("logits_bytes", session.logits_bytes);
  value.set("restored_bytes", cut.restored_bytes);
  value.set("stored_bytes", stored_bytes(cut));
  value.set("shared_bytes", cut.shared_bytes);
  value.set("key_epoch", cut.key_epoch);
  value.set("published_ns", cut.published_ns);
  value.set("age_ms", session.age_ms);
  value.set("access_ns", cut.access_ns);
  value.set("expires_ns", cut.expires_ns ? JsonValue(*cut.expires_ns) : JsonValue());
  return value;
}

/// In the largest unit that leaves a whole number: `0s` `59s` `3m` `26h` `12d`.
std::string age_text(std::uint64_t age_ms) {
  const std::uint64_t seconds = age_ms / 1000;
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 60 * 60) return fmt::format("{}m", seconds / 60);
  if (seconds < 48 * 60 * 60) return fmt::format("{}h", seconds / (60 * 60));
  return fmt::format("{}d", seconds / (24 * 60 * 60));
}

std::string session_prose(const ListedSession& session) {
  const muse::MuseIdentity& identity = session.label.identity;
  const StoredCut& cut = session.cut;
  return fmt::format("{} {:>7} tokens {:8} {:>13} bytes {:>4} {} {} {}{}", cut.manifest_id.hex(),
                     cut.token_count, session.logits_bytes != 0 ? "exact" : "KV only", stored_bytes(cut),
                     age_text(session.age_ms), printable(identity.model_revision),
                     printable(identity.tokenizer_revision), printable(identity.weight_precision),
                     cut.state == CutState::kAvailable ? "" : fmt::format(" {}", cut_state_name(cut.state)));
}

int run_muse_sessions(const Environment& environment, const SessionsOptions& options) {
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter& reporter) {
                      JsonValue sessions = JsonValue::array();
                      std::string prose;
                      std::uint64_t others = 0;
                      SystemClock clock;
                      const std::uint64_t now_ms = clock.wall_ms();
                      const bool as_json = environment.common->json;
                      const auto listed = list_cuts(store, [&](const StoredCut& cut) {
                        const auto session = read_session(cut, now_ms);
                        if (!session) {
                          ++others;
                        } else if (as_json) {
                          sessions.push(session_json(*session));
                        } else {
                          prose += fmt::format("{}{}", prose.empty() ? "" : "\n", session_prose(*session));
                        }
                        return true;
                      });
                      if (!listed.has_value()) return reporter.failure(listed.error(), options.store.root);
                      JsonValue result = store_result("muse_sessions");
                      result.set("sessions", std::move(sessions));
                      result.set("other_cuts", others);
                      return reporter.success(result, prose);
                    });
}

}  // namespace

void add_muse_sessions(CLI::App& muse, const Environment& environment) {
  auto* command = muse.add_subcommand("sessions", "List the Muse sessions of a store");
  command->footer(
      "In the order in which they were first saved: cut, whether final logits are with it (`exact`), bytes\n"
      "of its manifest and chunks, age, and the revisions and precision that it was saved under. The answer\n"
      "is what the catalog says; no object is read, and no token is shown: the store holds none.\n\n"
      "Example:\n"
      "  kvpack muse sessions --key store.key --tenant-id acme cache.store");
  const auto options = std::make_shared<SessionsOptions>();
  options->store.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_muse_sessions);
}

}  // namespace kvpack::cli
