#include "conversion/fitting_layouts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "conversion/storage_rounder.h"
#include "formats/exl2_writer.h"
#include "formats/gptq_writer.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

std::vector<WeightSpec> block_matrices(const ModelConfig& config) {
  std::vector<WeightSpec> matrices = weights_of(config, StageSpec::whole(config));
  std::erase_if(matrices, [](const WeightSpec& weight) { return !weight.is_block_matrix(); });
  return matrices;
}

std::optional<Error> refusal(const ModelConfig& config, const ShapeCheck& check) {
  try {
    for (const WeightSpec& weight : block_matrices(config)) check(weight);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return error;
  }
  return std::nullopt;
}

// Every layout is asked, so that the hint never leads to another refusal.
std::string hint_of(const ModelConfig& config) {
  std::string ways;
  for (const int64_t bits : {4, 8, 3, 2}) {
    const GptqLayout layout{.bits = bits};
    if (refusal(config, [&](const auto& weight) { check_gptq_shape(weight, layout); })) continue;
    ways += fmt::format("format=gptq bits={} output_dir=DIR, or ", bits);
    break;
  }
  if (!refusal(config, check_exl2_shape)) ways += "format=exl2 output_dir=DIR, or ";
  if (has_mixed_types(config)) ways += "storage=q8_0 output=FILE.gguf, or ";
  return fmt::format(
      "quantize takes {}format=hf storage=nf4 output_dir=DIR; export writes it in storage=f16",
      ways);
}

}  // namespace

void require_shapes(const ModelConfig& config, const ShapeCheck& check) {
  if (const auto error = refusal(config, check)) {
    throw Error(error->kind(), error->what(), hint_of(config));
  }
}

bool has_mixed_types(const ModelConfig& config) {
  return std::ranges::any_of(block_matrices(config),
                             [](const WeightSpec& weight) { return !mixed_types(weight).empty(); });
}

void fail_to_round(const ModelConfig& config) {
  throw Error(ErrorKind::model,
              "none of this model's matrices can be rounded so: their rows do not fill blocks",
              hint_of(config));
}

}  // namespace jackscrew
