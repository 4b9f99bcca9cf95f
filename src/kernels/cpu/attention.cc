#include "kernels/cpu/attention.h"

#include "base/checked.h"

namespace jackscrew {

namespace {

constexpr int64_t kPad = kAttentionPad;

int64_t transposed_elements(int64_t tokens, int64_t head_dim) {
  return checked_mul(head_dim, round_up(tokens, kPad) + kPad);
}

int64_t padded_elements(int64_t tokens, int64_t head_dim) {
  return checked_mul(tokens, attention_padded_head_dim(head_dim));
}

}  // namespace

int64_t attention_padded_head_dim(int64_t head_dim) {
  return round_up(head_dim, kPad);
}

int64_t attention_forward_packed(int64_t tokens_k, int64_t head_dim) {
  return transposed_elements(tokens_k, head_dim) + padded_elements(tokens_k, head_dim);
}

int64_t attention_backward_packed(int64_t tokens_k, int64_t head_dim) {
  return 2 * transposed_elements(tokens_k, head_dim) + padded_elements(tokens_k, head_dim);
}

int64_t attention_forward_thread(int64_t head_dim) {
  const int64_t tile = kAttentionQueryBlock * attention_padded_head_dim(head_dim);
  return 2 * tile + kAttentionQueryBlock * (kAttentionKeyBlock + 2);
}

int64_t attention_backward_thread(int64_t longest, int64_t head_dim) {
  return 2 * kAttentionQueryBlock * kAttentionKeyBlock + round_up(longest, kPad) +
         3 * padded_elements(longest, head_dim);
}

}  // namespace jackscrew
