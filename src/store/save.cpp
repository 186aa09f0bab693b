#include "kvpack/store/save.h"

#include "store/save_session.h"

namespace kvpack {

SaveSession::SaveSession(std::unique_ptr<store::Saving> saving) : saving_(std::move(saving)) {}
SaveSession::SaveSession(SaveSession&&) noexcept = default;
SaveSession& SaveSession::operator=(SaveSession&&) noexcept = default;
SaveSession::~SaveSession() = default;

Result<SaveSession> SaveSession::begin(Store& store, const SaveRequest& request) {
  KVPACK_TRY_ASSIGN(auto saving, store::Saving::begin(store.context(), request));
  return SaveSession(std::move(saving));
}

bool SaveSession::is_replay() const noexcept {
  return saving_->is_replay();
}

const Id32& SaveSession::idempotency_key() const noexcept {
  return saving_->plan().declaration.idempotency_key;
}

const InputCutId& SaveSession::cut() const noexcept {
  return saving_->writer().cut();
}

const std::vector<PrefixNode>& SaveSession::prefix_nodes() const noexcept {
  return saving_->writer().prefix_nodes();
}

const StateKey* SaveSession::next_state() const noexcept {
  const CutWriter& writer = saving_->writer();
  if (saving_->states_left() == 0) return nullptr;
  return &writer.plans()[writer.states_written()].fixed->key;
}

Status SaveSession::write_state(const StateKey& key, ByteSpan plane) {
  return saving_->write_plane(key, plane);
}

Status SaveSession::write_state(const StateKey& key, StateSource& source) {
  return saving_->write_stream(key, source);
}

Status SaveSession::write_states(std::span<const ByteSpan> planes) {
  return saving_->write_planes(planes);
}

Result<SaveResult> SaveSession::commit() {
  return saving_->commit();
}

void SaveSession::cancel() noexcept {
  saving_->cancel();
}

Result<SaveResult> save(Store& store, const SaveRequest& request, std::span<const ByteSpan> planes) {
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(store, request));
  KVPACK_TRY(session.write_states(planes));
  return session.commit();
}

}  // namespace kvpack
