/// Pack sets: one file with one chain of packs and every chunk it refers to, which can be copied, range-read
/// and checked. docs/format/pack-set.md. Proofs, which are JSON, are in core/pack_set_proof.h.
#pragma once

#include "kvpack/core/pack_set_format.h"
#include "kvpack/core/pack_set_reader.h"
#include "kvpack/core/pack_set_verify.h"
#include "kvpack/core/pack_set_writer.h"
