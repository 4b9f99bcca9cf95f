#include "conversion/quantise.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "base/text.h"
#include "conversion/convert.h"
#include "conversion/gptq_rounding.h"
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

// What weights outside the blocks are kept in.
std::string rest_storage(const Recipe& recipe, const ModelFiles& files) {
  if (recipe.storage != "keep") {
    if (safetensors_dtype(find_format(recipe.storage)) != nullptr) return recipe.storage;
    throw Error(ErrorKind::usage,
                fmt::format("storage={}, but weights outside of GPTQ's codes are f32, bf16 or f16",
                            recipe.storage),
                "bits sets what the linear layers of the blocks have");
  }
  const StoredTensor& embedding = stored_tensor(files, *files.source, "model.embed_tokens.weight");
  return embedding.format.get() == &bf16_format() ? "bf16" : "f16";
}

// The codes of the block's matrices, by name; its weights become what those stand for.
class BlockQuantiser {
 public:
  BlockQuantiser(CalibrationRun& run, const QuantisationSettings& settings,
                 QuantisationReport& report)
      : run_(run), settings_(settings), report_(report) {}

  std::map<std::string, GptqMatrix> quantise(const BlockHessians& hessians,
                                             const ProgressStyle& style) {
    std::map<std::string, GptqMatrix> out;
    std::optional<size_t> input;
    for (const Weight* weight : run_.linears()) {
      if (style.check) style.check();
      const Hessian& hessian = hessians.of(weight->spec());
      if (input != hessians.input_of(weight->spec())) factor(hessian, weight->spec());
      input = hessians.input_of(weight->spec());
      out.emplace(weight->name(), round(*weight, hessian));
    }
    factor_ = {};
    return out;
  }

 private:
  void factor(const Hessian& hessian, const WeightSpec& weight) {
    order_.clear();
    if (settings_.layout.activation_order) order_ = hessian.falling_order();
    factor_ = {};
    if (!settings_.compensates) return;
    factor_ =
        inverse_factor(run_.ops(), run_.memory(), hessian.matrix(), order_, settings_.damping);
    if (factor_.damping != settings_.damping) {
      report_.notes.push_back(
          fmt::format("the inputs of {} are nearly dependent: damp_percent is {:g} there",
                      weight.name, factor_.damping));
    }
  }

  GptqMatrix round(const Weight& weight, const Hessian& hessian) {
    Ops& ops = run_.ops();
    const Tensor w = weight.as_f32();
    const auto copy = [&] {
      return OwnedTensor(run_.memory(), Purpose::workspace, DType::f32, {w.rows(), w.cols()});
    };
    const OwnedTensor before = copy(), product = copy();
    ops.copy(before.view(), w);
    GptqMatrix matrix = round_gptq(ops, run_.memory(), weight.spec(), w, factor_.u.view(), order_,
                                   settings_.layout);
    const double all = output_error(ops, before.view(), hessian.matrix(), product.view());
    float* change = before.view().data<float>();
    for (int64_t i = 0; i < w.size(); ++i) change[i] -= w.data<float>()[i];
    const double off = output_error(ops, before.view(), hessian.matrix(), product.view());
    const auto row = std::ranges::find(report_.matrices, weight.name(),
                                       [](const QuantisedMatrix& m) { return m.weight.name; });
    row->error = all > 0.0 ? off / all : 0.0;
    return matrix;
  }

  CalibrationRun& run_;
  const QuantisationSettings& settings_;
  QuantisationReport& report_;
  std::vector<int32_t> order_;
  InverseFactor factor_;
};

void write_gptq_texts(const Recipe& recipe, const ModelFiles& files,
                      const QuantisationSettings& settings, const QuantisationPlan& plan,
                      const ModelOutput& output, std::vector<std::string>& notes) {
  std::set<std::string_view> dtypes;
  for (const ModelTensor& tensor : plan.tensors()) {
    if (tensor.format != nullptr) dtypes.insert(safetensors_dtype(*tensor.format));
  }
  Texts texts = directory_texts(recipe, files, torch_dtype(dtypes), notes);
  std::string& config = texts["config.json"];
  config =
      add_quantization_config(config, gptq_quantization_config(settings.layout, settings.damping));
  write_texts(texts, output.path());
}

}  // namespace

QuantisationSettings quantisation_settings(const Recipe& recipe) {
  const OptionSet& options = recipe.options;
  QuantisationSettings settings;
  settings.layout = {options.integer("bits"), options.integer("group_size"),
                     options.boolean("desc_act"), options.boolean("sym")};
  settings.compensates = options.text("rounding") == "gptq";
  settings.damping = options.number("damp_percent");
  settings.sequences = options.integer("calibration_sequences");
  settings.sequence_len =
      options.was_set("sequence_len") ? recipe.sequence_len : kCalibrationLength;
  check_gptq_layout(settings.layout);
  return settings;
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
                                   const QuantisationSettings& settings) {
  const StorageChoice rest{ModelFormat::hf, rest_storage(recipe, files), files.source.get()};
  std::vector<std::string> ignored;  // of the weights that will be in codes
  tensors_ = tensors_to_write(files, rest, ignored);
  double bits = 0.0, elements = 0.0;
  std::map<int64_t, int64_t> uneven;  // matrices by their width
  for (auto& [weight, format] : tensors_) {
    if (!weight.is_block_matrix()) continue;
    format = nullptr;
    int64_t bytes = 0;
    for (const SafetensorsSpec& spec : gptq_specs(weight, settings.layout)) {
      bytes += safetensors_dtype_size(spec.dtype) * spec.shape[0] *
               (spec.shape.size() > 1 ? spec.shape[1] : 1);
    }
    const auto size = static_cast<double>(weight.size());
    report_.matrices.push_back({weight, 0.0, 8.0 * static_cast<double>(bytes) / size});
    bits += 8.0 * static_cast<double>(bytes);
    elements += size;
    least_tokens_ = std::max(least_tokens_, weight.cols);
    const int64_t group = settings.layout.group_size;
    if (group > 0 && weight.cols % group != 0) ++uneven[weight.cols];
  }
  for (const auto& [cols, count] : uneven) {
    report_.notes.push_back(
        fmt::format("groups of {} do not divide the {} inputs of {}: some programs refuse that",
                    settings.layout.group_size, cols, counted(count, "matrix", "matrices")));
  }
  report_.bits = bits / std::max(1.0, elements);
  bytes_ = GptqModelWriter::bytes(tensors_, settings.layout, recipe.max_shard_bytes);
  report_.bytes = bytes_;
}

QuantisationReport write_quantised(const Recipe& recipe, const ModelFiles& files,
                                   const QuantisationSettings& settings,
                                   const QuantisationPlan& plan, const CalibrationText& text,
                                   ModelOutput& output, const ProgressStyle& style) {
  QuantisationReport report = plan.report();
  report.calibration_tokens = text.tokens();
  if (text.sequences < settings.sequences) {
    report.notes.push_back(
        fmt::format("calibrated on {}: the text has no more", counted(text.sequences, "sequence")));
  }
  CalibrationRun run(recipe, files, text);
  output.begin(plan.bytes());
  write_gptq_texts(recipe, files, settings, plan, output, report.notes);
  GptqModelWriter writer(output.path(), plan.tensors(), settings.layout, recipe.max_shard_bytes);
  WeightWriter plain(recipe, files, writer);
  const int64_t blocks = files.config.num_hidden_layers;
  ProgressBar bar(std::cerr, style, "quantising", 2 * blocks * text.tokens(), "tokens");
  BlockQuantiser quantiser(run, settings, report);
  std::map<std::string, GptqMatrix> codes;
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
    } else {
      writer.write_codes(tensor.spec, codes.at(tensor.spec.name));
    }
  }
  bar.advance(text.tokens());  // nobody reads what the last block makes
  writer.close();
  bar.finish();
  report.memory = run.memory().ledger().peak;
  report.bytes = output.written_bytes();
  return report;
}

}  // namespace jackscrew
