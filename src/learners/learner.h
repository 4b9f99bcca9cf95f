// Learners: who learns, and how. One Learner coordinates a run; it makes one slot per weight of the
// model. A slot sees the weight's forward and backward and decides what to accumulate and how to
// apply it; everything it keeps is reached through visit(). Adding a learner is a pair of files
// here and a line in the table of learner.cc.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_object.h"
#include "base/options.h"
#include "learners/adapter_merge.h"
#include "optim/optimizer.h"
#include "products/product.h"

namespace jackscrew {

class LearnerSlot {
 public:
  virtual ~LearnerSlot() = default;

  // Whether anything here learns: if not, backward() is never called.
  virtual bool learns() const = 0;
  // The arithmetic of backward(), about, in products as large as forward's: that of the gradient of
  // the whole weight, or of a factor for each of its rows, is one.
  virtual double gradient_products() const { return learns() ? 1.0 : 0.0; }
  // Whether forward() adds to y.
  virtual bool adds() const { return false; }
  // Whether forward() makes more of the product than a sum: y is then the product alone, and
  // product_gradient() leads back to its gradient.
  virtual bool transforms() const { return false; }
  // Adds the learner's own branch to y, f32; called after the product's forward.
  virtual void forward(Context&, const Operand&, const Tensor& /*y*/) {}
  // The gradient of the product from that of what forward() made of it, both [tokens, out] and of
  // one dtype; in context.scratch. Called where transforms() alone.
  virtual Tensor product_gradient(Context&, const Tensor& dy) const { return dy; }
  // Of the embedding: changes the vectors that were gathered, x f32 [tokens, hidden]. `positions`,
  // i32 [tokens], are the tokens' places in their sequences; backward() has them too.
  virtual void gathered(Context&, const Tensor& /*positions*/, const Tensor& /*x*/) {}
  // Takes from the gradient, the product's, what it needs. `dx` is where the branch adds its share
  // of the input's gradient, after the product's own; null when nobody below needs it.
  virtual void backward(const Gradient&, const Tensor* /*dx*/) {}
  // Hears, where Context::last says that gradients are complete, that backward() will not be called
  // again in this step, nor the weight be read.
  virtual void complete(Context&) {}
  // Updates from what was accumulated over the step, and clears it.
  virtual void apply(Context&, double /*weight_decay*/) {}
  virtual void visit(const StateVisitor&) const {}
  // The parameters behind visit() were overwritten: brings everything that depends on them in line.
  virtual void restored(Context&) {}
};

// A sum to which every stage of a model adds: each is given what those before it have, returns that
// with its own added, and is told the end of it. All stages must ask for it in the same order.
using SumOverStages = std::function<double(const std::function<double(double)>& add)>;

// What slots are made with.
struct LearnerContext {
  Memory& memory;   // of the device
  Memory& masters;  // where exact values wait while others are trained
  Arena& scratch;   // for what ends with the call
  StepScalars* scalars;
  Ops& ops;
  const Optimizer& optimizer;
  uint64_t seed = 0;
  bool training = true;  // false: slots take no memory for gradients and optimizer states
  // Writes a weight's values as they were before its storage rounded them, f32 [rows, cols]: how a
  // master begins.
  std::function<void(const Weight&, const Tensor&)> original = {};
  Arena* shared_gradients = nullptr;  // see GradientBuffer
  // Sums of lanes that wait at once (lane_sums.h), beside a gradient and beside a window.
  int64_t lane_sums = 0, window_sums = 0;
  SumOverStages sum_over_stages = [](const std::function<double(double)>& add) { return add(0.0); };
  // The ids of a text by the model's tokenizer. Throws Error(model) where it has none.
  std::function<std::vector<int32_t>(const std::string& text)> encode = {};
  double learning_rate = 0.0;  // of the run, before its schedule
  // What products of the slot's own may round their operands to: Product::operand_dtype() of who
  // multiplies the weight.
  DType operand_dtype = DType::f32;
};

// Lines for the user, and warnings.
struct LearnerNotes {
  std::vector<std::string> lines, warnings;
};

// A line for the log.
struct LearnerEvent {
  std::string name;  // of its kind: "rotate"
  JsonObject fields;
};

class Learner {
 public:
  virtual ~Learner() = default;
  virtual const char* name() const = 0;

  // The calls, in order: plan(); changes() and make_slot() for every weight; in a run that trains,
  // reserve(), begin_run() and, where it continues, restored(); then for every step begin_step(),
  // the slots' forward() and backward(), their apply(), and beside_step().

  // All weights of the model, before any of them exists: those of other stages too, for which no
  // slot will be asked here.
  virtual void plan(std::span<const WeightSpec>) {}
  // Whether this learner changes the values of such a weight: it must then be stored in a format
  // that can be written.
  virtual bool changes(const WeightSpec& weight) const = 0;
  // Whether it changes such a weight where it is stored, in any format that can be written: no
  // exact copy of it needs memory.
  virtual bool updates_in_place(const WeightSpec& /*weight*/) const { return false; }
  // Whether slots are updated when their gradients are complete: then nothing accumulated is left
  // when backward has ended.
  virtual bool updates_in_backward() const { return false; }
  // How many virtual tokens begin every sequence, before its own: any id stands for them, and the
  // slot of the embedding gives their vectors.
  virtual int64_t virtual_tokens() const { return 0; }
  // The model that LearnerContext::original reads, where that is another than the run's; else
  // empty.
  virtual std::string original_model() const { return {}; }
  // Whether the masters of what waits its turn are to be kept in files rather than in memory.
  virtual bool masters_in_files() const { return false; }
  virtual std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) = 0;
  // All slots exist, in a session that trains: takes for a moment what memory the run will need at
  // its worst, so that a run that has begun does not fail for want of it.
  virtual void reserve(Context&) {}
  // The run will have that many steps in all, those before a checkpoint included.
  virtual void begin_run(int64_t /*total_steps*/) {}
  // Prepares step `step` (from 0), outside of any step. True when other slots learn from now on.
  virtual bool begin_step(Context&, int64_t /*step*/) { return false; }
  // The step's work has been issued: what the host does now, the device need not wait for.
  virtual void beside_step(Context&) {}
  // States of the slots, beside that of the first step, in which a step may take more scratch
  // memory: all of them are rehearsed on the plan device. enter_phase() brings one about, for good.
  virtual int64_t phases() const { return 0; }
  virtual void enter_phase(Context&, int64_t /*phase*/) {}
  // What the learner itself keeps beside its slots; the states have the role `schedule`.
  virtual void visit(const StateVisitor&) const {}
  // The states behind visit() were overwritten: the slots that learn become those that it says.
  virtual void restored(Context&) {}
  // What a user is told before the run; begin_run() has been called.
  virtual LearnerNotes notes() const { return {}; }
  // What has happened since the last call, for the log.
  virtual std::vector<LearnerEvent> take_events() { return {}; }
  // An object where the result is an adapter rather than a changed model, else null: what PEFT's
  // adapter_config.json says of it, peft_type included. The adapter's tensors are the parameters
  // that the slots visit, under the names that PEFT has for them less "base_model.model.".
  virtual nlohmann::json adapter() const;
  // Of such a result: how its tensors become a part of a weight; plan() has been called.
  virtual WeightMerge merge(const WeightSpec&, const AdapterValues&) const { return {}; }
};

// A setting of a learner with which a run takes less memory than without.
struct Saving {
  const char* setting;  // "name=value"
  const char* remark;   // what it costs
  double cost;          // the factor by which training takes longer for it; it only ranks
};

// A row of the table of learners.
struct LearnerEntry {
  const char* name;
  const char* help;
  std::span<const OptionSpec> options;
  std::span<const Saving> savings;  // those of one option together, each more than the one before
  std::unique_ptr<Learner> (*make)(const OptionSet& options);
};

std::span<const LearnerEntry> all_learners();
// Throws Error(usage) with the nearest name for an unknown one.
const LearnerEntry& find_learner(std::string_view name);

}  // namespace jackscrew
