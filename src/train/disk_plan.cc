#include "train/disk_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/directory.h"
#include "base/process_memory.h"
#include "data/dataset.h"
#include "session/fingerprint.h"
#include "session/loading.h"
#include "train/result.h"
#include "train/resume.h"
#include "train/run_exports.h"
#include "train/run_watch.h"

namespace jackscrew {

namespace {

// After multiples of these a run may save; 0: it does not.
struct SaveSteps {
  explicit SaveSteps(const Recipe& recipe)
      : regular(recipe.save_steps), best(recipe.load_best_model_at_end ? recipe.eval_steps : 0) {}

  // Whether it may after `done` steps, not counting the end.
  bool contain(int64_t done) const {
    return (regular > 0 && done % regular == 0) || (best > 0 && done % best == 0);
  }
  // How often it may within a run of `steps` steps, its end included.
  int64_t count(int64_t steps) const {
    if (regular == 0 && best == 0) return 0;
    int64_t saved = contain(steps) ? 0 : 1;
    if (regular > 0) saved += steps / regular;
    if (best > 0) saved += steps / best;
    // Steps that are multiples of both save once.
    if (regular > 0 && best > 0)
      saved -= steps / checked_mul(regular / std::gcd(regular, best), best);
    return saved;
  }

  int64_t regular, best;
};

// The most checkpoints that exist at once in a run of `steps` steps.
int64_t checkpoints_at_once(const Recipe& recipe, int64_t steps) {
  const int64_t saved = SaveSteps(recipe).count(steps);
  if (recipe.save_total_limit == 0) return saved;
  // A new checkpoint is complete before the oldest is removed, and that of the best evaluation does
  // not count towards the limit.
  return std::min(saved,
                  checked_add(recipe.save_total_limit, recipe.load_best_model_at_end ? 2 : 1));
}

// About what the log takes, which is larger than TensorBoard's file.
int64_t log_bytes(const Recipe& recipe, int64_t steps) {
  constexpr int64_t kLine = 256;
  const int64_t evaluations = recipe.eval_steps > 0 ? steps / recipe.eval_steps : 0;
  return checked_mul(kLine, checked_add(steps / recipe.logging_steps, evaluations));
}

// A hash of all that the size of a checkpoint depends on but what a run does not change. Of the few
// thousand that a plan compares, two are alike by chance once in 10^12 plans.
uint64_t hash_of_saved(Session& session) {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio: spreads bits
    hash = std::rotl((hash ^ value) * kGolden, 29);
  };
  session.visit([&](const StateRef& state) {
    if (!state.save && state.file.empty()) return;
    add(std::hash<std::string>{}(state.name));
    add((state.save ? 1U : 0U) + (state.file.empty() ? 2U : 0U));
    add(static_cast<uint64_t>(state.view.dtype()));
    for (int i = 0; i < state.view.rank(); ++i) add(static_cast<uint64_t>(state.view.dim(i)));
  });
  return hash;
}

// The most that a checkpoint takes, and that any file of one does.
FileSizes largest_checkpoint(const Recipe& recipe, const CheckpointInfo& info, Session& session,
                             int64_t total_steps) {
  const std::string recipe_yaml = recipe.to_yaml();
  const SaveSteps saves(recipe);
  const int64_t steps = std::min(total_steps, kPlannedSteps);
  FileSizes largest;
  // Sets of states come again: GaLore's windows do with each gap.
  std::unordered_set<uint64_t> measured;
  bool is_known = false;  // whether `largest` covers the present states
  for (int64_t done = 1; done <= steps; ++done) {
    if (session.pass_step(done - 1)) is_known = false;
    if (is_known || (done < steps && !saves.contain(done))) continue;
    is_known = true;
    if (!measured.insert(hash_of_saved(session)).second) continue;
    const FileSizes sizes = checkpoint_sizes(
        info, recipe_yaml, [&](const StateVisitor& visit) { session.visit(visit); });
    largest = {std::max(largest.all, sizes.all), std::max(largest.largest, sizes.largest)};
  }
  return largest;
}

}  // namespace

CheckpointInfo describe_run(const Recipe& recipe, const ModelFiles& files,
                            const Tokenizer& tokenizer, Session& session, const std::string& data) {
  const int64_t parts = std::max<int64_t>(1, std::ssize(recipe.data));
  const bool watches =
      evaluations_decide(recipe.options) || recipe.watch.loss_watchdog_threshold > 0;
  return {0,
          JACKSCREW_VERSION,
          session.ops().level(),
          session.product().name(),
          data,
          Dataset::longest_fingerprint(parts),
          inputs_fingerprint(files, tokenizer, recipe_chat_format(recipe, tokenizer),
                             &session.learner()),
          {},
          watches ? RunWatch::longest_state() : 0};
}

DiskPlan plan_disk(const Recipe& recipe, const ModelFiles& files, const Tokenizer& tokenizer,
                   int64_t total_steps) {
  const int64_t steps = total_steps > 0 ? total_steps : kPlannedSteps;
  const auto session = Session::planned(recipe, files, training_use(recipe));
  session->learner().begin_run(steps);
  DiskPlan disk;
  SessionResult result(*session);
  const FileSizes model =
      result_sizes(result, files, tokenizer, recipe_chat_format(recipe, tokenizer));
  const FileSizes exports = export_sizes(recipe, files, result.weights());
  const FileSizes checkpoint = largest_checkpoint(
      recipe, describe_run(recipe, files, tokenizer, *session, {}), *session, steps);
  disk.masters = session->disk_ledger().peak;  // with the files that rotations wrote beside others
  disk.checkpoints = checkpoints_at_once(recipe, steps);
  disk.result = model.all;
  disk.exports = exports.all;
  disk.checkpoint = checkpoint.all;
  disk.largest_file =
      std::max({model.largest, exports.largest, checkpoint.largest, log_bytes(recipe, steps)});
  return disk;
}

int64_t bytes_to_write(DiskPlan disk, int64_t masters, const fs::path& output_dir) {
  int64_t there = 0;
  for (const fs::path& checkpoint : list_checkpoints(output_dir)) {
    there = checked_add(there, bytes_of_files(checkpoint));
  }
  disk.masters = masters;
  return disk.peak() - std::min(there, disk.all_checkpoints());
}

int64_t bytes_in_memory(DiskPlan disk, const fs::path& output_dir) {
  if (!files_take_memory(output_dir)) return 0;
  disk.exports = 0;  // what trains is freed before them, and each is held against what is left then
  const int64_t wanted = bytes_to_write(disk, disk.masters, output_dir);
  // The file system refuses what it has no room for, and a full one ends no run.
  std::error_code unknown;
  const fs::space_info space = fs::space(output_dir, unknown);
  if (unknown || std::cmp_greater_equal(space.available, wanted)) return wanted;
  return static_cast<int64_t>(space.available);
}

}  // namespace jackscrew
