#include "conversion/quantise_blocks.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>

#include "conversion/column_order.h"
#include "conversion/for_rows.h"
#include "conversion/value_checks.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

// A matrix is measured by so many of its rows, spread evenly. The errors of all ways come from the
// same rows and are compared with the outputs of these, so that little of the chance remains.
constexpr int64_t kMeasuredRows = 256;

WeightSpec measured_rows_of(const WeightSpec& weight) {
  WeightSpec rows = weight;
  rows.rows = std::min(weight.rows, kMeasuredRows);
  return rows;
}

// Visits the matrices that read one input, and prepares each for rounding.
class MatrixVisits {
 public:
  // `notes` gets a line for an input that needs more damping than was asked for.
  MatrixVisits(CalibrationRun& run, const Rounder& rounder, Hessian hessian,
               std::vector<std::string>& notes)
      : run_(run), rounder_(rounder), hessian_(std::move(hessian)), notes_(notes) {}

  // Calls use(matrix, h). matrix.w is a copy of as many rows of weight.as_f32() as `spec` has,
  // spread evenly, with its columns in the order of rounding; h is the Hessian's matrix. `spec`
  // describes the weight in the files, or rows of it.
  template <class Use>
  void visit(const Weight& weight, const WeightSpec& spec, const Use& use) {
    if (!is_factored_) factor(spec);
    is_factored_ = true;
    Ops& ops = run_.ops();
    const Tensor w = weight.as_f32();
    const OwnedTensor ordered = scratch(spec);
    for_rows(ops.threads(), spec.rows, [&](int64_t row) {
      const int64_t from = row * w.rows() / spec.rows;
      std::copy_n(w.data<float>() + from * spec.cols, spec.cols,
                  ordered.view().data<float>() + row * spec.cols);
    });
    double energy = 0.0;
    {
      const OwnedTensor product = scratch(spec);
      energy = output_error(ops, ordered.view(), hessian_.matrix(), product.view());
    }
    reorder_columns(ops, ordered.view(), order_, Reorder::forth);
    use(MatrixToRound{ops, run_.memory(), spec, ordered.view(), factor_.u.view(), order_, energy},
        hessian_.matrix());
  }

  OwnedTensor scratch(const WeightSpec& of) const {
    return {run_.memory(), Purpose::workspace, DType::f32, {of.rows, of.cols}};
  }

 private:
  void factor(const WeightSpec& weight) {
    order_ = hessian_.order(rounder_.column_order());
    if (!rounder_.compensates()) return;
    const double damping = rounder_.damping();
    factor_ = inverse_factor(run_.ops(), run_.memory(), hessian_.matrix(), order_, damping);
    if (factor_.damping == damping) return;
    notes_.push_back(
        fmt::format("the inputs of {} are nearly dependent: damp_percent is {:g} there",
                    weight.name, factor_.damping));
  }

  CalibrationRun& run_;
  const Rounder& rounder_;
  Hessian hessian_;
  std::vector<std::string>& notes_;
  bool is_factored_ = false;
  std::vector<int32_t> order_;
  InverseFactor factor_;
};

// Rounds a matrix for good: its tensors of the files go into the checkpoint, and the model's weight
// becomes the values that they hold.
void round_matrix(MatrixVisits& visits, const BlockWork& work, const Weight& weight,
                  const WeightSpec& spec, QuantisationProgress& progress) {
  visits.visit(weight, spec, [&](const MatrixToRound& matrix, const Tensor& h) {
    {
      const Buffer held = matrix.memory.book(Purpose::staging, work.rounder.held_bytes(spec));
      work.checkpoint.add(work.rounder.round(matrix));
    }
    reorder_columns(matrix.ops, matrix.w, matrix.order, Reorder::back);
    const Tensor w = weight.as_f32();
    const float* rounded = matrix.w.data<float>();
    float* values = w.data<float>();
    float largest = 0.0f;
    for (int64_t i = 0; i < w.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      values[i] -= rounded[i];
    }
    const OwnedTensor product = visits.scratch(spec);
    const double off = output_error(matrix.ops, w, h, product.view());
    matrix.ops.copy(w, matrix.w);
    const double error = matrix.energy > 0.0 ? off / matrix.energy : 0.0;
    if (may_vanish(largest) && error > kVanished) fail_below_f16(spec, largest);
    progress.errors[spec.name] = error;
  });
}

// The tensors that the rounded ones of these weights are stored in, in their order.
std::vector<SafetensorsSpec> specs_of(const Rounder& rounder,
                                      const std::vector<WeightSpec>& weights) {
  std::vector<SafetensorsSpec> specs;
  for (const WeightSpec& weight : weights) {
    if (rounder.rounds(weight)) std::ranges::move(rounder.specs(weight), std::back_inserter(specs));
  }
  return specs;
}

// Lets the text pass the next block up to its last part, and calls use(visits, weight) for every
// matrix that is rounded, as the text gets there.
template <class Use>
void visit_block(const BlockWork& work, CalibrationRun& run, const ProgressCallback& passed,
                 std::vector<std::string>& notes, const Use& use) {
  run.begin_block();
  for (const BlockPart part : kBlockParts) {
    MatrixVisits visits(run, work.rounder, run.observe(part, passed), notes);
    for (const Weight* weight : run.linears(part)) {
      if (work.style.check) work.style.check();
      if (work.rounder.rounds(weight->spec())) use(visits, *weight);
    }
  }
}

// What a part of the model takes while its matrices are rounded, or measured, one after another.
int64_t visits_memory(const CalibrationMemory& part, const Rounder& rounder,
                      const std::vector<WeightSpec>& weights, bool measures) {
  int64_t most = 0;
  for (const WeightSpec& of : weights) {
    const WeightSpec weight = measures ? measured_rows_of(of) : of;
    const int64_t hessian = booked_f32(weight.cols, weight.cols);
    int64_t rounding = 0;
    if (rounder.rounds(weight)) {
      const int64_t matrix = booked_f32(weight.rows, weight.cols);
      const int64_t books = measures ? rounder.measure_bytes(weight) : rounder.round_bytes(weight);
      // The copy in the order of rounding, beside it what an error is computed with, or the
      // rounder.
      rounding = matrix + std::max(matrix, books + booked_bytes(rounder.held_bytes(weight)));
      if (rounder.compensates()) {
        rounding = hessian + std::max(inverse_factor_bytes(weight.cols), rounding);
      }
    }
    most = std::max(most, hessian + rounding);
  }
  return part.text + part.part + most;
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
    most = std::max(most, embedding.text + embedding.part);
    const auto add = [&](const StageSpec& spec, const std::vector<WeightSpec>& weights) {
      most = std::max(most, visits_memory(plan(spec), rounder, weights, measures));
    };
    for (int64_t block = 0; block < blocks; ++block) {
      const StageSpec spec{block, block + 1, false, false};
      add(spec, linears_of(files.config, spec));
    }
    if (head && !measures) add({blocks, blocks, false, true}, {*head});
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
  // Nobody reads the outputs of the last block.
  ProgressBar bar(std::cerr, work.style, "measuring",
                  (std::ssize(kBlockPasses) * blocks - 1) * text.tokens(), "tokens");
  bar.advance(std::ssize(kBlockPasses) * progress.measured * text.tokens());
  std::vector<std::string> notes;  // rounding will make its own
  while (progress.measured < blocks) {
    visit_block(work, run, bar.callback(), notes, [&](MatrixVisits& visits, const Weight& weight) {
      const WeightSpec rows = measured_rows_of(weight.spec());
      visits.visit(weight, rows, [&](const MatrixToRound& matrix, const Tensor&) {
        const Buffer held = matrix.memory.book(Purpose::staging, work.rounder.held_bytes(rows));
        progress.costs[weight.name()] = work.rounder.measure(matrix);
      });
    });
    ++progress.measured;
    const bool is_read = progress.measured < blocks;
    if (is_read) run.end_block(bar.callback());
    work.checkpoint.keep(run.ops(), progress, is_read ? &run.stream() : nullptr);
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
  const int64_t passes = std::ssize(kBlockPasses) * blocks + (head ? 1 : -1);
  ProgressBar bar(std::cerr, work.style, "quantising", passes * text.tokens(), "tokens");
  bar.advance(std::ssize(kBlockPasses) * progress.rounded * text.tokens());
  while (progress.rounded < blocks) {
    const StageSpec spec{progress.rounded, progress.rounded + 1, false, false};
    work.checkpoint.begin_part(specs_of(work.rounder, linears_of(work.files.config, spec)));
    visit_block(work, run, bar.callback(), progress.notes,
                [&](MatrixVisits& visits, const Weight& weight) {
                  round_matrix(visits, work, weight, weight.spec(), progress);
                });
    ++progress.rounded;
    const bool is_read = head || progress.rounded < blocks;
    if (is_read) run.end_block(bar.callback());
    work.checkpoint.keep(run.ops(), progress, is_read ? &run.stream() : nullptr);
  }
  if (head) {
    run.begin_head();
    MatrixVisits visits(run, work.rounder, run.observe_head(bar.callback()), progress.notes);
    work.checkpoint.begin_part(work.rounder.specs(*head));
    round_matrix(visits, work, run.head(), *head, progress);
    ++progress.rounded;
    work.checkpoint.keep(run.ops(), progress, nullptr);
  }
  bar.finish();
  return run.memory().ledger().peak;
}

}  // namespace jackscrew
