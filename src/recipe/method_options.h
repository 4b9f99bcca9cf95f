// The options that choose how a model learns: storage, product, learner, optimizer.
#pragma once

#include <span>

#include "base/options.h"

namespace jackscrew {

// Their choices come from the tables of formats, products, learners and optimizers: a new row there
// is a new choice.
std::span<const OptionSpec> method_options();

}  // namespace jackscrew
