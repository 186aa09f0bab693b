// A small private file that is replaced as a whole: how both ledgers are kept.
#pragma once

#include "kvpack/base/fs.h"

namespace kvpack::net {

/// Creates or opens `.{name}.lock` and locks it, exclusively and without waiting. The lock lasts as long as
/// the handle; the file stays. @error kBusy another process holds it
Result<std::unique_ptr<File>> take_lock_file(Directory& directory, std::string_view name);

/// The same of the named file itself. @error kBusy another handle holds it
Result<std::unique_ptr<File>> lock_or_create(Directory& directory, const std::string& name);

/// Replaces the content of `name`: temporary file with mode 0600, sync, rename, sync of the directory. When
/// this succeeds the new content is on the medium; when it fails either content is there, whole.
/// @return the new file, open
Result<std::unique_ptr<File>> replace_file(Directory& directory, std::string_view name, ByteSpan content);

/// Removes the temporary files of replacements that were interrupted. Only under the lock.
Status sweep_replacements(Directory& directory, std::string_view name);

}  // namespace kvpack::net
