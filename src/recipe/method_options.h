// The options that choose how a model learns: storage, product, learner, optimizer.
#pragma once

#include <span>

#include "base/options.h"

namespace jackscrew {

// Their choices come from the tables of those who offer them: a new format, product, learner or
// optimizer is one by its row there.
std::span<const OptionSpec> method_options();

}  // namespace jackscrew
