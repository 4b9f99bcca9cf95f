// The messages from rank 0 to the other ranks, and their encoding.
#pragma once

#include <optional>
#include <tuple>

#include "base/error.h"
#include "data/batch.h"
#include "parallel/message.h"
#include "session/session.h"

namespace jackscrew {

// Each command is followed by its arguments, in the order in which worker.cc reads them.
enum class Command : uint8_t {
  // The program's version, recipe, what rank 0 was started with, place, facts. Answers with the
  // rank's facts, the memory that it needs, how many tensors learn in it and the settings that only
  // it was given, or with a failure.
  open,
  load,              // output_dir; creates the session; answers success or failure
  begin_run,         // total steps
  accumulate,        // step, learning rate, batch
  apply,             // weight decay
  result,            // also forgets a step that was not finite; answers when it has
  losses,            // batch; the last stages answer
  logits,            // ids, rows, use of the cache, tokens of it to keep
  list_states,       // answers
  read_state,        // name; answers with pieces, then an empty one
  write_state,       // name, size; pieces follow
  learner_restored,  //
  restored,          //
  non_finite,        // answers with a name
  take_events,       // answers
  list_weights,      // answers
  write_weight,      // name; answers with pieces, then an empty one
  memory,            // answers with ledgers and times
  finish             // the last
};

// The largest message between ranks, except for pieces of tensors.
inline constexpr int64_t kLargestMessage = int64_t{1} << 30;

auto fields(Either<MicroBatch> auto& batch) {
  return std::tie(batch.ids, batch.positions, batch.targets, batch.cu_seqlens, batch.target_count);
}
auto fields(Either<StepBatch> auto& batch) {
  return std::tie(batch.targets, batch.tokens, batch.first_token, batch.micro_batches);
}
auto fields(Either<Place> auto& place) {
  return std::tie(place.layout, place.rank, place.stage_split);
}
auto fields(Either<Ledger> auto& ledger) {
  return std::tie(ledger.current, ledger.at_peak, ledger.total, ledger.peak, ledger.phase,
                  ledger.peak_at);
}

// A batch in memory that is taken at once.
void put(MessageWriter& out, const StepBatch& batch);
// A state without its values: name, role, type, shape, and how checkpoints treat it.
void put(MessageWriter& out, const StateRef& state);
StateRef get_state(MessageReader& in);
// Why a rank could not do what it was asked, after which it waits for the next command; nullopt
// where it could.
void put_failure(MessageWriter& out, const std::optional<Error>& failure);
std::optional<Error> get_failure(MessageReader& in);

}  // namespace jackscrew
