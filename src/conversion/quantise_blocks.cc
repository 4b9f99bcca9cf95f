#include "conversion/quantise_blocks.h"

#include <algorithm>
#include <iostream>
#include <iterator>

#include "conversion/column_order.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

// Visits the matrices of a block and prepares each for rounding.
class MatrixVisits {
 public:
  // `notes` gets a line for every input that needs more damping than was asked for.
  MatrixVisits(CalibrationRun& run, const Rounder& rounder, std::vector<std::string>& notes)
      : run_(run), rounder_(rounder), notes_(notes) {}

  // Calls use(matrix, hessian). matrix.w is a copy of weight.as_f32() with its columns in the order
  // of rounding; `spec` describes the weight in the files.
  template <class Use>
  void visit(const Weight& weight, const WeightSpec& spec, const BlockHessians& hessians,
             const Use& use) {
    const Hessian& hessian = hessians.of(weight.spec());
    const size_t input = hessians.input_of(weight.spec());
    if (input_ != input) factor(hessian, spec);
    input_ = input;
    Ops& ops = run_.ops();
    const Tensor w = weight.as_f32();
    const OwnedTensor ordered = scratch(w);
    double energy = 0.0;
    {
      const OwnedTensor product = scratch(w);
      energy = output_error(ops, w, hessian.matrix(), product.view());
    }
    ops.copy(ordered.view(), w);
    reorder_columns(ops, ordered.view(), order_, Reorder::forth);
    use(MatrixToRound{ops, run_.memory(), spec, ordered.view(), factor_.u.view(), order_, energy},
        hessian);
  }
  // Forgets the block's inputs; the next block has others.
  void end_block() {
    factor_ = {};
    input_.reset();
  }

  OwnedTensor scratch(const Tensor& like) const {
    return {run_.memory(), Purpose::workspace, DType::f32, {like.rows(), like.cols()}};
  }

 private:
  void factor(const Hessian& hessian, const WeightSpec& weight) {
    order_ = hessian.order(rounder_.column_order());
    factor_ = {};
    if (!rounder_.compensates()) return;
    const double damping = rounder_.damping();
    factor_ = inverse_factor(run_.ops(), run_.memory(), hessian.matrix(), order_, damping);
    if (factor_.damping == damping) return;
    const std::string note =
        fmt::format("the inputs of {} are nearly dependent: damp_percent is {:g} there",
                    weight.name, factor_.damping);
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
  }

  CalibrationRun& run_;
  const Rounder& rounder_;
  std::vector<std::string>& notes_;
  std::optional<size_t> input_;
  std::vector<int32_t> order_;
  InverseFactor factor_;
};

// Quantises matrices for good: the model's weights become the values that the files will hold.
class BlockQuantiser {
 public:
  BlockQuantiser(CalibrationRun& run, const Rounder& rounder, QuantisationProgress& progress)
      : run_(run), rounder_(rounder), progress_(progress), visits_(run, rounder, progress.notes) {}

  // The tensors of the block's matrices.
  std::vector<TensorBytes> round_block(const BlockHessians& hessians, const ProgressStyle& style) {
    std::vector<TensorBytes> out;
    for (const Weight* weight : run_.linears()) {
      if (style.check) style.check();
      if (!rounder_.rounds(weight->spec())) continue;
      std::vector<TensorBytes> tensors = round(*weight, weight->spec(), hessians);
      std::ranges::move(tensors, std::back_inserter(out));
    }
    visits_.end_block();
    return out;
  }

  // `spec` describes the weight in the files.
  std::vector<TensorBytes> round(const Weight& weight, const WeightSpec& spec,
                                 const BlockHessians& hessians) {
    std::vector<TensorBytes> out;
    visits_.visit(weight, spec, hessians, [&](const MatrixToRound& matrix, const Hessian& hessian) {
      out = rounder_.round(matrix);
      reorder_columns(matrix.ops, matrix.w, matrix.order, Reorder::back);
      const Tensor w = weight.as_f32();
      const float* rounded = matrix.w.data<float>();
      float* values = w.data<float>();
      for (int64_t i = 0; i < w.size(); ++i) values[i] -= rounded[i];
      const OwnedTensor product = visits_.scratch(w);
      const double off = output_error(matrix.ops, w, hessian.matrix(), product.view());
      matrix.ops.copy(w, matrix.w);
      progress_.errors[spec.name] = matrix.energy > 0.0 ? off / matrix.energy : 0.0;
    });
    return out;
  }

 private:
  CalibrationRun& run_;
  const Rounder& rounder_;
  QuantisationProgress& progress_;
  MatrixVisits visits_;
};

// What a part of the model takes while its matrices are rounded, or measured, one after another.
int64_t visits_memory(const CalibrationMemory& part, const Rounder& rounder,
                      const std::vector<WeightSpec>& weights, bool measures) {
  int64_t most = 0;
  for (const WeightSpec& weight : weights) {
    if (!rounder.rounds(weight)) continue;
    const int64_t matrix = booked_f32(weight.rows, weight.cols);
    // The copy in the order of rounding, beside it what an error is computed with, or the rounder.
    const int64_t rounding = matrix + std::max(matrix, measures ? rounder.measure_bytes(weight)
                                                                : rounder.round_bytes(weight));
    int64_t factor = 0, factoring = 0;
    if (rounder.compensates()) {
      factor = booked_f32(weight.cols, weight.cols);
      factoring = inverse_factor_bytes(weight.cols);
    }
    most = std::max(most, factor + std::max(factoring, rounding));
  }
  return part.stream + part.part + part.hessians + most;
}

// Continues the run from the checkpoint, after `done` blocks.
void restore_stream(CalibrationRun& run, const QuantisationCheckpoint& checkpoint, int64_t done) {
  if (done == 0) return;
  checkpoint.read_stream(run.ops(), run.stream());
  run.resume_at(done);
}

}  // namespace

int64_t blocks_memory(const Recipe& recipe, const ModelFiles& files, const Rounder& rounder,
                      const CalibrationSize& measured, const CalibrationSize& text,
                      const std::optional<WeightSpec>& head) {
  const int64_t blocks = files.config.num_hidden_layers;
  int64_t most = 0;
  const auto add_pass = [&](const CalibrationSize& size, bool measures) {
    const auto plan = [&](const StageSpec& spec) {
      return CalibrationRun::plan(recipe, files, size, spec);
    };
    const CalibrationMemory embedding = plan({0, 0, true, false});
    most = std::max(most, embedding.stream + embedding.part);
    for (int64_t block = 0; block < blocks; ++block) {
      const StageSpec spec{block, block + 1, false, false};
      const CalibrationMemory part = plan(spec);
      if (!measures) {
        most = std::max(most, part.stream + part.part + part.hessians + part.batch);
      }
      most = std::max(most, visits_memory(part, rounder, weights_of(files.config, spec), measures));
    }
    if (head && !measures) {
      const CalibrationMemory part = plan({blocks, blocks, false, true});
      most = std::max(most, visits_memory(part, rounder, {*head}, false));
    }
  };
  if (rounder.measures()) add_pass(measured, true);
  add_pass(text, false);
  return most;
}

int64_t measure_blocks(const BlockWork& work, const CalibrationText& text) {
  QuantisationProgress progress = work.checkpoint.progress();
  const int64_t blocks = work.files.config.num_hidden_layers;
  if (progress.measured == blocks) return 0;
  CalibrationRun run(work.recipe, work.files, text);
  restore_stream(run, work.checkpoint, progress.measured);
  ProgressBar bar(std::cerr, work.style, "measuring", blocks * text.tokens(), "tokens");
  bar.advance(progress.measured * text.tokens());
  MatrixVisits visits(run, work.rounder, progress.notes);
  while (progress.measured < blocks) {
    run.begin_block();
    const BlockHessians hessians = run.observe_and_advance(bar.callback());
    for (const Weight* weight : run.linears()) {
      if (work.style.check) work.style.check();
      if (!work.rounder.rounds(weight->spec())) continue;
      visits.visit(*weight, weight->spec(), hessians,
                   [&](const MatrixToRound& matrix, const Hessian&) {
                     progress.costs[weight->name()] = work.rounder.measure(matrix);
                   });
    }
    visits.end_block();
    ++progress.measured;
    work.checkpoint.keep(run.ops(), progress, {},
                         progress.measured < blocks ? &run.stream() : nullptr);
  }
  bar.finish();
  return run.memory().ledger().peak;
}

int64_t round_blocks(const BlockWork& work, const CalibrationText& text,
                     const std::optional<WeightSpec>& head) {
  QuantisationProgress progress = work.checkpoint.progress();
  const int64_t blocks = work.files.config.num_hidden_layers;
  if (progress.rounded == blocks + (head ? 1 : 0)) return 0;
  CalibrationRun run(work.recipe, work.files, text);
  restore_stream(run, work.checkpoint, progress.rounded);
  // Without a head, nobody reads the outputs of the last block.
  ProgressBar bar(std::cerr, work.style, "quantising",
                  (2 * blocks + (head ? 1 : -1)) * text.tokens(), "tokens");
  bar.advance(2 * progress.rounded * text.tokens());
  BlockQuantiser quantiser(run, work.rounder, progress);
  while (progress.rounded < blocks) {
    run.begin_block();
    const auto tensors = quantiser.round_block(run.observe(bar.callback()), work.style);
    ++progress.rounded;
    const bool is_read = head || progress.rounded < blocks;
    if (is_read) run.advance(bar.callback());
    work.checkpoint.keep(run.ops(), progress, tensors, is_read ? &run.stream() : nullptr);
  }
  if (head) {
    run.begin_head();
    const auto tensors = quantiser.round(run.head(), *head, run.observe_head(bar.callback()));
    ++progress.rounded;
    work.checkpoint.keep(run.ops(), progress, tensors, nullptr);
  }
  bar.finish();
  return run.memory().ledger().peak;
}

}  // namespace jackscrew
