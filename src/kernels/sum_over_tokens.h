// Sums over tokens, column by column: the two passes of kernels/rows/model.rows.h.
#pragma once

#include <algorithm>

#include "kernels/context.h"
#include "kernels/rows/model.rows.h"

namespace jackscrew {

// Adds a sum over tokens to d [width]: launches `args`, whose kernel writes partial sums of chunks,
// then AddColumns.
template <class Args>
void add_over_tokens(Context& context, Args args, const Tensor& d) {
  args.tokens_of_chunk = std::max(kTokenChunk, ceil_div(args.tokens, kMostTokenChunks));
  const int64_t chunks = ceil_div(args.tokens, args.tokens_of_chunk);
  const int64_t blocks = ceil_div(d.size(), kColumnBlock);
  const Arena::Frame frame(context.scratch);
  const Tensor partial = context.scratch.tensor(DType::f32, {chunks, d.size()});
  args.partial = partial.data<float>();
  context.ops.launch(args, chunks * blocks);
  context.ops.launch(AddColumns{args.partial, d.data<float>(), chunks, d.size()}, blocks);
}

}  // namespace jackscrew
