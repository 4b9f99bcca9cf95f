// Row kernels for the virtual tokens that every sequence begins with.
#pragma once

#include <cstdint>

#include "kernels/row_kernel.h"

namespace jackscrew {

// x[t] = prompt[positions[t]] where the position is a virtual token's. A row is a token.
struct PlacePrompt {
  const float* prompt;       // [prompt_tokens, hidden]
  const int32_t* positions;  // [tokens]
  float* x;                  // [tokens, hidden]
  int64_t prompt_tokens, hidden;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t position = positions[row];
    if (position >= prompt_tokens) return;
    const float* from = prompt + position * hidden;
    float* to = x + row * hidden;
    team.each(hidden, [&](int64_t i) { to[i] = from[i]; });
  }
};
JACKSCREW_ROW_KERNEL(PlacePrompt)

// d[p] += dy[t] for every token t at position p, in token order. A row is a virtual token.
struct PromptGradient {
  const float* dy;           // [tokens, hidden]
  const int32_t* positions;  // [tokens]
  float* d;                  // [prompt_tokens, hidden]
  int64_t tokens, hidden;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    float* to = d + row * hidden;
    for (int64_t t = 0; t < tokens; ++t) {
      if (positions[t] != row) continue;
      const float* from = dy + t * hidden;
      team.each(hidden, [&](int64_t i) { to[i] += from[i]; });
    }
  }
};
JACKSCREW_ROW_KERNEL(PromptGradient)

}  // namespace jackscrew
