#include "conversion/quantise.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "conversion/column_order.h"
#include "conversion/convert.h"
#include "conversion/exl2_fit.h"
#include "conversion/result_texts.h"
#include "conversion/write_model.h"
#include "formats/hf_config.h"
#include "model/weights.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

// Of calibration sequences, where the recipe has no length: what GPTQ's own experiments have a
// quarter of, at which a small model's Hessians are full and a large one's text is still short.
constexpr int64_t kCalibrationLength = 512;

// Of the text, the share on which ways of rounding are compared: they are ranked by sums over many
// tokens, and each block is run once more for it.
constexpr int64_t kMeasuredShare = 4;

// At least what makes Hessians of full rank.
CalibrationText measured_part(const CalibrationText& text, const QuantisationPlan& plan) {
  return part_of(text, std::max(text.sequences / kMeasuredShare,
                                ceil_div(plan.least_tokens(), text.sequence_len)));
}

// Visits the matrices of a block, each with what rounding it needs.
class MatrixVisits {
 public:
  MatrixVisits(CalibrationRun& run, const Rounder& rounder, QuantisationReport& report)
      : run_(run), rounder_(rounder), report_(report) {}

  // use(matrix, w): the matrix' w has its columns in the order of rounding, as a copy of
  // weight.as_f32().
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
    use(RoundedMatrix{ops, run_.memory(), spec, ordered.view(), factor_.u.view(), order_, energy},
        hessian);
  }
  // Of the block in hand; the next has other inputs.
  void end_block() {
    factor_ = {};
    input_.reset();
  }

  OwnedTensor scratch(const Tensor& like) const {
    return {run_.memory(), Purpose::workspace, DType::f32, {like.rows(), like.cols()}};
  }

 private:
  void factor(const Hessian& hessian, const WeightSpec& weight) {
    order_.clear();
    if (rounder_.by_activation()) order_ = hessian.falling_order();
    factor_ = {};
    if (!rounder_.compensates()) return;
    const double damping = rounder_.damping();
    factor_ = inverse_factor(run_.ops(), run_.memory(), hessian.matrix(), order_, damping);
    if (factor_.damping == damping) return;
    const std::string note =
        fmt::format("the inputs of {} are nearly dependent: damp_percent is {:g} there",
                    weight.name, factor_.damping);
    if (std::ranges::find(report_.notes, note) == report_.notes.end())
      report_.notes.push_back(note);
  }

  CalibrationRun& run_;
  const Rounder& rounder_;
  QuantisationReport& report_;
  std::optional<size_t> input_;
  std::vector<int32_t> order_;
  InverseFactor factor_;
};

// Rounds matrices for good: the model's weights become what the files will say.
class BlockQuantiser {
 public:
  BlockQuantiser(CalibrationRun& run, Rounder& rounder, QuantisationReport& report)
      : run_(run), rounder_(rounder), report_(report), visits_(run, rounder, report) {}

  // The tensors of the block's matrices, by the weight's name.
  std::map<std::string, std::vector<TensorBytes>> quantise(const BlockHessians& hessians,
                                                           const ProgressStyle& style) {
    std::map<std::string, std::vector<TensorBytes>> out;
    for (const Weight* weight : run_.linears()) {
      if (style.check) style.check();
      out.emplace(weight->name(), round(*weight, weight->spec(), hessians));
    }
    visits_.end_block();
    return out;
  }

  // `spec`: the weight as what it is rounded as.
  std::vector<TensorBytes> round(const Weight& weight, const WeightSpec& spec,
                                 const BlockHessians& hessians) {
    std::vector<TensorBytes> out;
    visits_.visit(weight, spec, hessians, [&](const RoundedMatrix& matrix, const Hessian& hessian) {
      out = rounder_.round(matrix);
      reorder_columns(matrix.ops, matrix.w, matrix.order, Reorder::back);
      const Tensor w = weight.as_f32();
      const float* rounded = matrix.w.data<float>();
      float* values = w.data<float>();
      for (int64_t i = 0; i < w.size(); ++i) values[i] -= rounded[i];
      const OwnedTensor product = visits_.scratch(w);
      const double off = output_error(matrix.ops, w, hessian.matrix(), product.view());
      matrix.ops.copy(w, matrix.w);
      const auto row = std::ranges::find(report_.matrices, spec.name,
                                         [](const QuantisedMatrix& m) { return m.weight.name; });
      row->error = matrix.energy > 0.0 ? off / matrix.energy : 0.0;
    });
    return out;
  }

 private:
  CalibrationRun& run_;
  Rounder& rounder_;
  QuantisationReport& report_;
  MatrixVisits visits_;
};

// Lets the rounder measure, over the model as it is.
int64_t measure_matrices(const Recipe& recipe, const ModelFiles& files, Rounder& rounder,
                         const CalibrationText& text, QuantisationReport& report,
                         const ProgressStyle& style) {
  CalibrationRun run(recipe, files, text);
  const int64_t blocks = files.config.num_hidden_layers;
  ProgressBar bar(std::cerr, style, "measuring", blocks * text.tokens(), "tokens");
  MatrixVisits visits(run, rounder, report);
  for (int64_t block = 0; block < blocks; ++block) {
    run.begin_block();
    const BlockHessians hessians = run.observe_and_advance(bar.callback());
    for (const Weight* weight : run.linears()) {
      if (style.check) style.check();
      visits.visit(*weight, weight->spec(), hessians,
                   [&](const RoundedMatrix& matrix, const Hessian&) { rounder.measure(matrix); });
    }
    visits.end_block();
  }
  bar.finish();
  return run.memory().ledger().peak;
}

void write_quantised_texts(const Recipe& recipe, const ModelFiles& files, const Rounder& rounder,
                           const QuantisationPlan& plan, const CalibrationText& text,
                           const ModelOutput& output, std::vector<std::string>& notes) {
  std::set<std::string_view> dtypes;
  for (const ModelTensor& tensor : plan.tensors()) {
    if (tensor.format != nullptr) dtypes.insert(safetensors_dtype(*tensor.format));
  }
  Texts texts = directory_texts(recipe, files, torch_dtype(dtypes), notes);
  std::string& config = texts["config.json"];
  config = add_quantization_config(config, rounder.config(text.sequences, text.sequence_len));
  // The head is a matrix of its own now.
  if (plan.rounds_head()) config = set_untied(config);
  write_texts(texts, output.path());
}

// Of every matrix the bits that its tensors take; of those in blocks all together.
void set_bits(QuantisationReport& report, const Rounder& rounder) {
  double bits = 0.0, elements = 0.0;
  for (QuantisedMatrix& matrix : report.matrices) {
    const double of = 8.0 * static_cast<double>(bytes_of(rounder.specs(matrix.weight)));
    matrix.bits = of / static_cast<double>(matrix.weight.size());
    if (!matrix.weight.is_block_matrix()) continue;
    bits += of;
    elements += static_cast<double>(matrix.weight.size());
  }
  report.bits = bits / std::max(1.0, elements);
}

}  // namespace

std::string rest_storage(const Recipe& recipe, const ModelFiles& files) {
  if (recipe.storage != "keep") {
    if (safetensors_dtype(find_format(recipe.storage)) != nullptr) return recipe.storage;
    throw Error(
        ErrorKind::usage,
        fmt::format("storage={}, but what is not in codes is f32, bf16 or f16", recipe.storage),
        "bits sets what the linear layers of the blocks have");
  }
  const StoredTensor& embedding = stored_tensor(files, *files.source, "model.embed_tokens.weight");
  return embedding.format.get() == &bf16_format() ? "bf16" : "f16";
}

CalibrationSize calibration_size(const Recipe& recipe, const ModelConfig& config) {
  // Of a run that is to fit, sequence_len is its own.
  const bool given = recipe.options.was_set("sequence_len") && !exl2_fits_a_run(recipe);
  return {recipe.options.integer("calibration_sequences"),
          given ? recipe.sequence_len : std::min(kCalibrationLength, config.longest_sequence())};
}

JsonObject QuantisationReport::to_json() const {
  std::string rows;
  for (const QuantisedMatrix& matrix : matrices) {
    const JsonObject row = JsonObject()
                               .add("name", matrix.weight.name)
                               .add("bits", matrix.bits)
                               .add("error", matrix.error);
    rows += (rows.empty() ? "" : ", ") + row.text();
  }
  return JsonObject()
      .add("bytes", bytes)
      .add("bits", bits)
      .add("calibration_tokens", calibration_tokens)
      .add("memory", memory)
      .add_json("matrices", "[" + rows + "]")
      .add("notes", notes);
}

QuantisationPlan::QuantisationPlan(const Recipe& recipe, const ModelFiles& files,
                                   const Rounder& rounder) {
  const StorageChoice rest{ModelFormat::hf, rest_storage(recipe, files), files.source.get()};
  std::vector<std::string> ignored;  // of the weights that will be in codes
  tensors_ = tensors_to_write(files, rest, ignored);
  const WeightSpec head = head_of(files.config);
  rounds_head_ = rounder.rounds(head);
  if (rounds_head_ && files.config.tie_word_embeddings) tensors_.push_back({head, nullptr});
  std::vector<WeightSpec> rounded;
  for (auto& [weight, format] : tensors_) {
    if (!rounder.rounds(weight)) continue;
    format = nullptr;
    rounded.push_back(weight);
    report_.matrices.push_back({weight, 0.0, std::numeric_limits<double>::quiet_NaN()});
    least_tokens_ = std::max(least_tokens_, weight.cols);
  }
  report_.notes = rounder.notes(rounded);
  const int64_t most = rounder.most_bytes(rounded);
  if (!rounder.measures()) set_bits(report_, rounder);
  std::vector<ModelTensor> plain = tensors_;
  std::erase_if(plain, [](const ModelTensor& tensor) { return tensor.format == nullptr; });
  report_.bytes =
      checked_add(most, QuantisedModelWriter::bytes(
                            plain, [](const WeightSpec&) { return std::vector<SafetensorsSpec>(); },
                            recipe.max_shard_bytes));
}

QuantisationReport write_quantised(const Recipe& recipe, const ModelFiles& files, Rounder& rounder,
                                   const QuantisationPlan& plan, const CalibrationText& text,
                                   ModelOutput& output, const ProgressStyle& style) {
  QuantisationReport report = plan.report();
  report.calibration_tokens = text.tokens();
  if (const int64_t asked = calibration_size(recipe, files.config).sequences;
      text.sequences < asked) {
    report.notes.push_back(
        fmt::format("calibrated on {}: the text has no more", counted(text.sequences, "sequence")));
  }
  output.begin(report.bytes);
  int64_t measured = 0;
  if (rounder.measures()) {
    measured = measure_matrices(recipe, files, rounder, measured_part(text, plan), report, style);
    rounder.choose();
    set_bits(report, rounder);
  }
  write_quantised_texts(recipe, files, rounder, plan, text, output, report.notes);
  CalibrationRun run(recipe, files, text);
  QuantisedModelWriter writer(
      output.path(), plan.tensors(),
      [&](const WeightSpec& weight) { return rounder.specs(weight); }, recipe.max_shard_bytes);
  WeightWriter plain(recipe, files, writer);
  const int64_t blocks = files.config.num_hidden_layers;
  ProgressBar bar(std::cerr, style, "quantising", (2 * blocks + 1) * text.tokens(), "tokens");
  BlockQuantiser quantiser(run, rounder, report);
  std::map<std::string, std::vector<TensorBytes>> codes;
  int64_t ready = -1;  // the block whose codes there are
  for (const auto& tensor : plan.tensors()) {
    if (tensor.spec.layer > ready) {
      if (ready >= 0) run.advance(bar.callback());
      ready = tensor.spec.layer;
      run.begin_block();
      codes = quantiser.quantise(run.observe(bar.callback()), style);
    }
    if (tensor.format != nullptr) {
      plain.write(tensor, [](int64_t) {});
    } else if (tensor.spec.is_block_matrix()) {
      writer.write_coded(codes.at(tensor.spec.name));
    } else {
      run.advance(bar.callback());
      run.begin_head();
      writer.write_coded(
          quantiser.round(run.head(), tensor.spec, run.observe_head(bar.callback())));
    }
  }
  if (!plan.rounds_head())
    bar.advance(2 * text.tokens());  // nobody reads what the last block makes
  writer.close();
  bar.finish();
  report.memory = std::max(measured, run.memory().ledger().peak);
  report.bytes = output.written_bytes();
  return report;
}

}  // namespace jackscrew
