#include "base/error.h"

#include <new>

namespace jackscrew {

Error error_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorKind::does_not_fit, "out of host memory",
            "use a smaller model, batch or sequence_len, or fewer threads"};
  }
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  return {ErrorKind::generic, exception.what()};
}

}  // namespace jackscrew
