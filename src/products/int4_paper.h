// The mode `paper` of the product int4: INT4 training as Xi et al. 2023 publish it ("Training
// Transformers with 4-bit Integers", arXiv 2306.11987), for the linears of
// the blocks. The head is multiplied in f32, and embedding and attention are not rounded.
//
// Forward: x and W are transformed by a Hadamard matrix along the contraction, and rounded to 16
// levels with one step for all of W and one for all of x of a micro-batch. Steps are parameters
// (LSQ), which learners train; in a run's first steps, and wherever nobody trains them, the step is
// 2 mean|.| / sqrt(7). Sums are exact integers up to kInt8Depth columns, beyond that sums in f32.
//
// Backward: every number of dy is split into two of four bits, with one scale for the whole
// micro-batch, the second rounded stochastically. Of the rows of both, as many as there are tokens
// are kept on average, sampled by leverage scores. Both gradients are formed from one number, 14
// times the first plus the second, in f32: without sampling their sums are integers, exact below
// 2^24. Where x or W was clipped its gradient is 0. The gradient of a step takes a product of its
// own, in panels.
//
// The largest magnitude of dy is taken as it is: the paper adds 1e-8, which would matter here,
// where dy is divided by all targets of a step.
#pragma once

#include "products/product.h"

namespace jackscrew {

// Their defaults are those of the options (int4_options.cc).
struct Int4PaperOptions {
  // The block of the transform: a power of two up to 128 that divides the width of every weight; 0:
  // the largest up to 32 that divides it.
  int64_t block;
  // From a run's second step on, each weight takes the block whose product of x's and W's rounding
  // errors was the smallest in the first step.
  bool searches_block;
  bool learns_steps;
  double step_learning_rate;
  int64_t cold_steps;  // of the optimizer, before learned steps count
  // The largest magnitude of either half of dy: 6, as published, or 7, with which rounding has no
  // bias; 0: dy is not rounded.
  int64_t split_limit;
  bool samples_dw, samples_dx;
};

std::unique_ptr<const Product> make_int4_paper_product(const Int4PaperOptions& options);

}  // namespace jackscrew
