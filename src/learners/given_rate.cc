#include "learners/given_rate.h"

#include <fmt/format.h>

#include "base/error.h"

namespace jackscrew {

std::optional<double> given_rate(const OptionSet& options, const char* name) {
  if (options.is_word(name)) return std::nullopt;
  const double rate = options.number(name);
  if (rate > 0.0 && options.number("learning_rate") == 0.0) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} is {}, but with learning_rate=0 the schedule is 0 for all "
                            "weights",
                            options.origin(name), name, rate),
                "set learning_rate, too; what is not to learn is chosen by the method's options");
  }
  return rate;
}

}  // namespace jackscrew
