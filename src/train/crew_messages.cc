#include "train/crew_messages.h"

namespace jackscrew {

void put(MessageWriter& out, const StepBatch& batch) {
  size_t indices = 0;
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    indices += 3 * micro_batch.ids.size() + micro_batch.cu_seqlens.size();
  }
  // Beside them the counts of the batch, and of each micro-batch with the sizes of its vectors.
  out.reserve(indices * sizeof(int32_t) + (4 + 5 * batch.micro_batches.size()) * sizeof(int64_t));
  out.put(batch);
}

void put(MessageWriter& out, const StateRef& state) {
  out.put(state.name).put(state.role).put(state.save).put(state.elements);
  out.put(state.joins).put(state.joins_along);
  out.put(state.file.string()).put(state.view.dtype()).put(state.view.rank());
  for (int i = 0; i < state.view.rank(); ++i) out.put(state.view.dim(i));
}

StateRef get_state(MessageReader& in) {
  StateRef state;
  state.name = in.get_text();
  state.role = in.get<StateRole>();
  state.save = in.get<bool>();
  state.elements = in.get<int64_t>();
  state.joins = in.get_text();
  state.joins_along = in.get<int>();
  state.file = in.get_text();
  const auto dtype = in.get<DType>();
  int64_t dims[Tensor::kMaxRank] = {};
  const auto rank = in.get<int>();
  if (rank < 1 || rank > Tensor::kMaxRank) fail(ErrorKind::device, "a tensor of rank {}", rank);
  for (int i = 0; i < rank; ++i) dims[i] = in.get<int64_t>();
  state.view = rank == 1   ? Tensor(nullptr, dtype, {dims[0]})
               : rank == 2 ? Tensor(nullptr, dtype, {dims[0], dims[1]})
                           : Tensor(nullptr, dtype, {dims[0], dims[1], dims[2]});
  return state;
}

void put_failure(MessageWriter& out, const std::optional<Error>& failure) {
  out.put(failure.has_value());
  if (failure) out.put(failure->kind()).put(std::string(failure->what())).put(failure->hint());
}

std::optional<Error> get_failure(MessageReader& in) {
  if (!in.get<bool>()) return std::nullopt;
  const auto kind = in.get<ErrorKind>();
  const std::string what = in.get_text();
  return Error(kind, what, in.get_text());
}

}  // namespace jackscrew
