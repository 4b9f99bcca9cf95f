// Session: everything that a run holds on one device, and the work on it. The same class plans (on
// the plan device, without arithmetic) and runs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress_callback.h"
#include "data/batch.h"
#include "kernels/device.h"
#include "model/stage.h"
#include "optim/clip.h"
#include "parallel/lanes.h"
#include "parallel/peers.h"
#include "recipe/recipe.h"
#include "session/flight.h"
#include "session/model_files.h"
#include "session/place.h"

namespace jackscrew {

class FileBacking;

// What a session is for; with the recipe and the model's configuration it decides every byte.
struct SessionUse {
  bool training = false;
  int64_t tokens = 0;         // in a micro-batch at most
  int64_t max_positions = 0;  // of a sequence at most
  int64_t kv_tokens = 0;      // capacity of the KV cache; 0: none
  int64_t logits_rows = 0;    // rows of logits asked for at once; 0: none
  Place place = {};
};

// The arenas' capacities, found by rehearsing on the plan device.
struct ArenaSizes {
  int64_t scratch = 0, stash = 0, staging = 0;
  int64_t gradients = 0;  // that weights share, with update=fused
};

// The outcome of a rehearsal.
struct SessionPlan {
  ArenaSizes arenas;
  Ledger ledger;   // of the device
  Ledger masters;  // beside it: on the host, or with masters_in_files on the disk
  bool masters_in_files = false;
  int64_t weight_bytes = 0;  // of the model as it is stored
  int64_t mapped_bytes = 0;  // of them, those that stay in the maps of their files
  bool recompute = false;    // what gradient_checkpointing=auto came to
  Traffic sent;              // in a step of full micro-batches
};

// What others may do and hear while a session comes into being.
struct SessionHooks {
  // Puts something between the model and the hardware: benchmarks measure what passes.
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> wrap = {};
  // Told of the bytes of every weight that is in place: in all, the plan's weight_bytes.
  ProgressCallback loaded = {};
  // Where to compute, when it is not where the recipe says.
  std::shared_ptr<const Device> device = {};
  // To the other ranks, where `place` says that there are some.
  Transport* transport = nullptr;
};

// The device that the recipe chooses. Throws as open_device() does.
std::unique_ptr<Device> open_device(const Recipe& recipe);

// Where exact values wait in files while a run lasts (master=mmap), those of each rank by
// themselves. Its own: it is emptied.
fs::path masters_directory(const fs::path& output_dir, int rank = 0);

struct StepResult {
  int64_t step = 0;  // counted from 0
  double loss = 0;   // mean over the step's targets, nats
  double grad_norm = 0;
  bool finite = true;
};

// Tokens and targets of a step that come before a micro-batch.
struct Progress {
  int64_t tokens = 0, targets = 0;
};

class Session {
 public:
  // On the recipe's device, with memory reserved as planned. Throws Error(does_not_fit) before
  // anything is allocated when plan.ledger.peak exceeds the budget (require_fit() says more, and
  // earlier).
  Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
          const SessionPlan& plan, const SessionHooks& hooks = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs loading, and one step, evaluation or generation as `use` says, on the plan device.
  static SessionPlan rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use);
  // A session on the plan device: nothing is read or computed, and what visit() shows has names,
  // types and shapes as in a run, but no values. Pass its steps by pass_step().
  static std::unique_ptr<Session> planned(const Recipe& recipe, const ModelFiles& files,
                                          const SessionUse& use);

  Stage& stage() { return *stage_; }
  Learner& learner() { return *learner_; }
  const Device& device() const { return *device_; }
  Ops& ops() { return *ops_; }
  Memory& memory() { return *memory_; }
  const Memory& memory() const { return *memory_; }
  Memory& masters() { return *masters_; }
  const Memory& masters() const { return *masters_; }
  // Before a checkpoint links the files of masters: makes room for those that take their place, so
  // that no later step can run out of it. Throws Error(generic) where the disk has none.
  void reserve_master_files();
  // Of all weights that product_exclude does not name.
  const Product& product() const { return arithmetic_->product(); }

  // Everything that a checkpoint holds, and what must follow when it was overwritten: first, when
  // the states of the role `schedule` were, then when the others were.
  void visit(const StateVisitor& visitor) const;
  void schedule_restored();
  void restored();

  // Called when logits() is, before anything else: whoever has the other stages calls theirs.
  using LogitsListener =
      std::function<void(std::span<const int32_t> ids, int64_t rows, bool use_cache)>;
  void set_logits_listener(LogitsListener listener) { logits_listener_ = std::move(listener); }

  // What large products of the device reach now, with operands as the run's product rounds them.
  struct Peak {
    DType operands = DType::f32;  // or bf16
    double flops = 0.0;  // multiply-adds a second, times two; 0: too little scratch memory to tell
  };
  Peak measure_peak();

  // One optimizer step in two halves: gradients of all micro-batches, then the update. `accumulate`
  // counts steps from 0 for random numbers. From the first step on that is not finite, updates
  // change nothing.
  void accumulate(const StepBatch& batch, double learning_rate, int64_t step);
  void apply(const WeightDecay& weight_decay);
  // Waits for the device and returns what came of the last step, or of the first that was not
  // finite; after that, updates work again.
  StepResult result();
  // The second half, for those who look at every step.
  StepResult update(const WeightDecay& weight_decay) {
    apply(weight_decay);
    return result();
  }

  // On the plan device: goes by a step without its arithmetic, so that what learns, and where it
  // lies, is as after the step. True when that is another than before.
  bool pass_step(int64_t step);

  // The name of a parameter that learns and holds a value that is not finite; empty: there is none.
  std::string non_finite_parameter();

  // The sum of the negative log-likelihoods over the batch's targets, nats. `progress` is told of
  // tokens.
  double evaluate(const StepBatch& batch, const ProgressCallback& progress = {});
  // Where several ranks evaluate: that of each micro-batch that is this replica's, every
  // `replicas`th. Empty on a stage without the head.
  std::vector<double> losses(const StepBatch& batch, const ProgressCallback& progress = {});

  // Rows [begin, end) of a weight, at most panel_rows() of f32 in a training session, to `out` on
  // the host, f32 [end - begin, cols].
  void read_weight(const Weight& weight, int64_t begin, int64_t end, const Tensor& out);

  // With several ranks: bytes sent to others, and seconds spent waiting for them, so far.
  const Peers& peers() const { return *peers_; }

  // The logits of the last `rows` tokens of one sequence, f32 [rows, vocab], on the device, valid
  // until the next call. With a cache, the tokens follow those already in it. All stages of a
  // replica must be asked at once; the first and the last have the logits.
  Tensor logits(std::span<const int32_t> ids, int64_t rows, bool use_cache);
  // Drops from the cache all but its first tokens. Throws Error(generic) where it holds fewer.
  void keep_cached(int64_t tokens);
  int64_t tokens_at_once() const { return use_.tokens - virtual_tokens(); }
  int64_t cached_tokens() const { return std::max<int64_t>(0, cache_.length - virtual_tokens()); }
  // That the learner begins every sequence with. logits() puts them before a text by itself, and
  // they are counted nowhere; who makes batches puts them there.
  int64_t virtual_tokens() const { return learner_->virtual_tokens(); }

 private:
  // The plan device when `plan` is null: arenas measure, and nothing is read.
  Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
          const SessionPlan* plan, bool plans_only, bool recompute, const SessionHooks& hooks = {});
  static SessionPlan rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                              bool recompute);
  // Has room for the virtual tokens before a text of which logits are asked.
  void make_room();
  void build_stage(const Recipe& recipe, const ModelFiles& files, Arena staging,
                   const ProgressCallback& loaded);
  // Returns what one step sends.
  Traffic rehearse_work();
  void begin_accumulation(const StepBatch& batch, double learning_rate, int64_t step);
  void accumulate_whole(const StepBatch& batch);
  // The same of a step that is cut into lanes or of a model that is cut into stages.
  void accumulate_parts(const StepBatch& batch);
  // Forward of what is in flight through this stage, nothing kept; what others need is sent on.
  Tensor pass_through(Context& run, InFlight& flight, KvCache* cache);
  void pass_forward(Context& run, const MicroBatch& micro_batch, const Progress& before,
                    InFlight& flight);
  void pass_backward(Context& run, InFlight& flight);
  void end_lane(bool last);
  void sum_lanes();
  // A sum among StepScalars, at `offset`.
  double read_sum(size_t offset);
  void write_sum(size_t offset, double sum);
  void apply_parts(const WeightDecay& weight_decay);
  std::vector<Tensor> tied_gradients() const;
  bool counts_elsewhere(const StateRef& state) const;
  bool begin_step(Context& run, int64_t step);
  void watch_gradients();
  Context context(bool training);
  void write_scalars(const StepScalars& scalars, int64_t bytes);
  StepScalars read_scalars();
  std::unique_ptr<Learner> make_learner(const Recipe& recipe);
  std::unique_ptr<Memory> make_masters(const Recipe& recipe, bool plans_only);
  Arena make_arena(Purpose purpose, int64_t ArenaSizes::*size);

  SessionUse use_;
  std::optional<ArenaSizes> sizes_;  // absent while measuring
  bool recompute_;
  uint64_t seed_;
  double max_grad_norm_;
  std::shared_ptr<const Device> device_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Learner> learner_;
  FileBacking* master_files_ = nullptr;  // in masters_, where they are in files
  std::unique_ptr<Memory> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Arithmetic> arithmetic_;
  Arena scratch_;
  int64_t staging_high_water_ = 0;
  Arena shared_gradients_;
  OwnedTensor scalars_;  // StepScalars
  std::vector<InFlight> flights_;
  std::unique_ptr<Peers> peers_;
  std::shared_ptr<const WeightSource> source_;  // whose maps hold weights of the stage
  LaneSums lane_sums_;
  std::vector<double> lane_losses_;  // of this replica's lanes that have ended in this step
  std::unique_ptr<Stage> stage_;
  std::optional<GradientNorm> norm_;
  KvCache cache_;
  LogitsListener logits_listener_;
  OwnedTensor logits_;                      // f32 [logits_rows, vocab]
  int64_t arrangement_ = 0;                 // changes with what learns, and where it lies
  std::unique_ptr<NoAllocation> step_ban_;  // from accumulate() to update()
};

}  // namespace jackscrew
