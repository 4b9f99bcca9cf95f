// A model on calibration text, block after block: what the layers of a block read, and what leaves
// it. Of the weights one block is in memory, of the activations those between two blocks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conversion/hessian.h"
#include "data/dataset.h"
#include "kernels/device.h"
#include "model/stage.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/flight.h"
#include "session/model_files.h"

namespace jackscrew {

struct CalibrationText {
  int64_t sequences = 0, sequence_len = 0;
  std::vector<int32_t> ids;  // [sequences, sequence_len]

  int64_t tokens() const { return sequences * sequence_len; }
};

// So many sequences of the data, whose examples are laid end to end: as many as there are, where
// there are fewer; if more, from equal distances. Throws Error(data) where there are fewer tokens
// than `least`, saying how many there are.
CalibrationText calibration_text(const Dataset& data, int64_t sequences, int64_t sequence_len,
                                 int64_t least);

// So many of its sequences, from equal distances.
CalibrationText part_of(const CalibrationText& text, int64_t sequences);

// The Hessians of a block, or of the head: one for each input that its linear layers read.
class BlockHessians {
 public:
  const Hessian& of(const WeightSpec& weight) const { return *inputs_.at(reads_.at(weight.name)); }
  // Weights that read one input have one number.
  size_t input_of(const WeightSpec& weight) const { return reads_.at(weight.name); }

 private:
  friend class CalibrationRun;
  friend class ObservedProduct;
  std::vector<std::unique_ptr<Hessian>> inputs_;
  std::map<std::string, size_t> reads_;  // by the weight's name, its place in inputs_
};

// What a run's products are asked to show.
struct Observation {
  BlockHessians* hessians = nullptr;  // filled where there are some
  std::string_view unread = {};       // the module whose outputs nobody reads, and are not computed
};

class CalibrationRun {
 public:
  // Computes on the CPU, with the recipe's threads and product (f32 or bf16), all weights in f32.
  // `files` must outlive it. Throws Error(usage) for another product.
  CalibrationRun(const Recipe& recipe, const ModelFiles& files, const CalibrationText& text);
  ~CalibrationRun();

  Ops& ops() { return *ops_; }
  Memory& memory() { return memory_; }

  // f32 [tokens, hidden]: the residual stream before the next block, from the first on.
  const Tensor& stream() const { return stream_.view(); }
  // The stream, which the caller has filled, is what block `next` reads, or the head behind all.
  void go_on(int64_t next) { next_block_ = next; }

  // Loads the next block; the first call embeds the text before that.
  void begin_block();
  // The linear layers of the block, in the model's order, for whoever changes them: as_f32().
  std::vector<const Weight*> linears() const;
  // Runs the block as it is. Its outputs are not asked for.
  BlockHessians observe(const ProgressCallback& progress);
  // Runs the block, as it is by now, for good: its outputs are what the next one reads.
  void advance(const ProgressCallback& progress);
  // Both at once, of a block that stays as it is.
  BlockHessians observe_and_advance(const ProgressCallback& progress);

  // Behind the last block, which is advanced: loads the head in its place, and nothing is
  // multiplied by it.
  void begin_head();
  const Weight& head() const;
  BlockHessians observe_head(const ProgressCallback& progress);

 private:
  struct Loaded;  // a part of the model, with its arenas
  std::unique_ptr<Loaded> load(const StageSpec& spec);
  // Calls use(output [tokens, hidden], first) for every batch, first being its first token.
  template <class Use>
  void run(const Use& use, const ProgressCallback& progress);
  MicroBatch batch_at(int64_t first_sequence) const;
  std::string_view head_module() const;  // of the weight that is the head
  // Runs body() with the Hessians that it is to fill.
  template <class Body>
  BlockHessians observed(const Body& body, std::string_view unread, const std::string& where);

  const ModelFiles& files_;
  Recipe recipe_;
  const CalibrationText& text_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  Observation observation_;
  std::unique_ptr<Arithmetic> arithmetic_;
  int64_t next_block_ = 0;
  OwnedTensor stream_;  // f32 [tokens, hidden], the residual stream before the block
  std::unique_ptr<Loaded> block_;
};

}  // namespace jackscrew
