// The span schedule that the vectors of the handoff are made with.
#pragma once

#include "cli/span_schedule.h"

namespace kvpack::testing {

using cli::span_schedule;

}  // namespace kvpack::testing
