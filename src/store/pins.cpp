#include "store/pins.h"

#include <vector>

namespace kvpack::store {
namespace {

constexpr std::string_view kPinSuffix = ".pin";

std::string pin_name(const Id32& id) {
  return id.hex() + std::string(kPinSuffix);
}

/// Opens the file, or makes it.
Result<std::unique_ptr<File>> open_or_create(Directory& pins, const std::string& name) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto file = pins.open(name, OpenMode::kReadWrite);
    if (file.has_value() || file.error().code != ErrorCode::kNotFound) return file;
    file = pins.create(name);
    if (file.has_value() || file.error().code != ErrorCode::kExpectation) return file;
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

/// Removes a pin file that nobody holds. @return whether somebody does
Result<bool> remove_unless_held(Directory& pins, const std::string& name) {
  auto file = pins.open(name, OpenMode::kReadWrite);
  if (!file.has_value()) {
    if (file.error().code == ErrorCode::kNotFound) return false;
    return std::move(file.error());
  }
  KVPACK_TRY_ASSIGN(const bool ours, (*file)->try_lock(LockMode::kExclusive));
  if (!ours) return true;
  // Removed while the lock is held: a reader that opened the file meanwhile sees that its name is gone.
  const Status gone = pins.unlink(name);
  if (!gone.has_value() && gone.error().code != ErrorCode::kNotFound) return Error(gone.error());
  return false;
}

}  // namespace

Pins::Pin::Pin(Pin&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      id_(other.id_),
      file_(std::move(other.file_)),
      directory_(other.directory_) {}

Pins::Pin& Pins::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release();
    owner_ = std::exchange(other.owner_, nullptr);
    id_ = other.id_;
    file_ = std::move(other.file_);
    directory_ = other.directory_;
  }
  return *this;
}

Pins::Pin::~Pin() {
  release();
}

void Pins::Pin::release() noexcept {
  if (owner_ == nullptr) return;
  if (file_ != nullptr) {
    // Best effort: what stays behind is removed by the collector, which finds that nobody holds it.
    try {
      const auto last = file_->try_lock(LockMode::kExclusive);
      if (last.has_value() && *last) (void)directory_->unlink(pin_name(id_));
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    }
    file_.reset();
  } else {
    const std::lock_guard lock(owner_->mutex_);
    const auto found = owner_->counts_.find(id_);
    if (--found->second == 0) owner_->counts_.erase(found);
  }
  owner_ = nullptr;
}

Pins::Pin Pins::pin(const Id32& id) {
  Pin pin;
  pin.owner_ = this;
  pin.id_ = id;
  const std::lock_guard lock(mutex_);
  ++counts_[id];
  return pin;
}

Result<Pins::Pin> Pins::pin_file(Directory& pins, const Id32& manifest_id) {
  const std::string name = pin_name(manifest_id);
  for (int attempt = 0; attempt < 100; ++attempt) {
    KVPACK_TRY_ASSIGN(auto file, open_or_create(pins, name));
    KVPACK_TRY_ASSIGN(const bool locked, file->try_lock(LockMode::kShared));
    if (!locked) continue;  // the collector or a leaving reader is about to remove it
    // The name may have been removed between opening and locking; then the lock protects nothing.
    KVPACK_TRY_ASSIGN(const FileFacts mine, file->facts());
    const auto named = pins.facts(name);
    if (!named.has_value() && named.error().code != ErrorCode::kNotFound) return Error(named.error());
    if (mine.links != 1 || !named.has_value() || !named->is_same_file(mine)) continue;
    Pin pin;
    pin.owner_ = this;
    pin.id_ = manifest_id;
    pin.file_ = std::move(file);
    pin.directory_ = &pins;
    return pin;
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

Result<bool> Pins::is_pinned(Directory* pins, const Id32& id) {
  {
    const std::lock_guard lock(mutex_);
    if (counts_.contains(id)) return true;
  }
  if (pins == nullptr) return false;
  return remove_unless_held(*pins, pin_name(id));
}

Status Pins::sweep(Directory& pins) {
  std::vector<std::string> names;
  KVPACK_TRY(pins.list([&](std::string_view name) {
    if (name.ends_with(kPinSuffix)) names.emplace_back(name);
    return true;
  }));
  for (const std::string& name : names) KVPACK_TRY(remove_unless_held(pins, name));
  return success();
}

}  // namespace kvpack::store
