#include "session/micro_batch_buffers.h"

#include <utility>

namespace jackscrew {

namespace {

OwnedTensor indices(Memory& memory, int64_t count) {
  return {memory, Purpose::io, DType::i32, {count}};
}

// Copies `values` to the beginning of `to`, and returns that part.
Tensor put(Ops& ops, const OwnedTensor& to, std::vector<int32_t> values) {
  const auto count = static_cast<int64_t>(values.size());
  const Tensor part(to.view().raw(), DType::i32, {count});
  if (count > 0 && !ops.plans_only()) {
    ops.copy(part, Tensor(values.data(), DType::i32, {count}));
  }
  return part;
}

}  // namespace

MicroBatchBuffers::MicroBatchBuffers(Memory& memory, int64_t tokens, Arena stash)
    : tokens_(tokens),
      stash_(std::move(stash)),
      ids_(indices(memory, tokens)),
      positions_(indices(memory, tokens)),
      cu_seqlens_(indices(memory, tokens + 1)),
      target_rows_(indices(memory, tokens)),
      targets_(indices(memory, tokens)),
      counts_before_(memory, Purpose::io, DType::i64, {2}) {}

Batch MicroBatchBuffers::upload(Ops& ops, const MicroBatch& batch, const CountsBefore& before) {
  if (batch.tokens() > tokens_) {
    fail(ErrorKind::generic, "micro-batch of {} tokens in a session for {}", batch.tokens(),
         tokens_);
  }
  TargetRows target_rows = batch.target_rows();
  int64_t counts[2] = {before.tokens, before.targets};
  ops.copy(counts_before_.view(), Tensor(counts, DType::i64, {2}));
  return {put(ops, ids_, batch.ids),
          put(ops, positions_, batch.positions),
          put(ops, cu_seqlens_, batch.cu_seqlens),
          put(ops, target_rows_, std::move(target_rows.rows)),
          put(ops, targets_, std::move(target_rows.targets)),
          counts_before_.view()};
}

Stash MicroBatchBuffers::begin(bool keep, bool recompute) {
  stash_.reset();
  return {&stash_, keep, recompute, {}, {}};
}

}  // namespace jackscrew
