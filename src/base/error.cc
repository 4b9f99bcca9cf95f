#include "base/error.h"

#include <new>

#include "base/process_memory.h"
#include "base/text.h"

namespace jackscrew {

bool is_unreadable(const std::exception& exception) {
  return dynamic_cast<const Unreadable*>(&exception) != nullptr;
}

Error error_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    const auto limit = address_limit();
    const std::string raise = limit ? fmt::format("raise the limit ({} is {}), or ", limit->command,
                                                  human_bytes(limit->bytes))
                                    : std::string();
    return {ErrorKind::does_not_fit, "out of host memory",
            raise + "use a smaller model, batch or sequence_len, or fewer threads"};
  }
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  return {ErrorKind::generic, exception.what()};
}

bool is_own_error(const std::exception& exception) {
  return dynamic_cast<const std::bad_alloc*>(&exception) != nullptr ||
         dynamic_cast<const Error*>(&exception) != nullptr;
}

}  // namespace jackscrew
