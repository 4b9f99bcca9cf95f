// Whether two machines have the same model.
#pragma once

#include "base/file.h"
#include "session/model_files.h"

namespace jackscrew {

// A checksum of the configuration, of all tensors' names, shapes, formats and sizes, of each one's
// first bytes, and of the weights of an `adapter` (empty: none). Another model, or another training
// of the same, has another; a file that is damaged further within may not.
uint32_t model_fingerprint(const ModelFiles& files, const fs::path& adapter);

}  // namespace jackscrew
