#include "conversion/fitting_layouts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "conversion/storage_rounder.h"
#include "formats/exl2_writer.h"
#include "formats/gguf_model_writer.h"
#include "formats/gptq_writer.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

std::vector<WeightSpec> block_matrices(const ModelConfig& config) {
  std::vector<WeightSpec> matrices = weights_of(config, StageSpec::whole(config));
  std::erase_if(matrices, [](const WeightSpec& weight) { return !weight.is_block_matrix(); });
  return matrices;
}

// The Error(model) that a check throws; nullopt where it passes.
template <class Check>
std::optional<Error> refusal_by(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return error;
  }
  return std::nullopt;
}

std::optional<Error> refusal(const ModelConfig& config, const ShapeCheck& check) {
  return refusal_by([&] {
    for (const WeightSpec& weight : block_matrices(config)) check(weight);
  });
}

std::optional<Error> gguf_refusal(const ModelConfig& config) {
  return refusal_by([&] { check_gguf_config(config); });
}

// The hint names only what fits, so that following it never leads to another refusal. format=gptq
// and exl2 come with storage=keep, since they refuse the types of GGUF that `storage` may name.
std::string hint_of(const ModelConfig& config) {
  std::string ways;
  for (const int64_t bits : {4, 8, 3, 2}) {
    const GptqLayout layout{.bits = bits};
    if (refusal(config, [&](const auto& weight) { check_gptq_shape(weight, layout); })) continue;
    ways += fmt::format("format=gptq bits={} storage=keep output_dir=DIR, or ", bits);
    break;
  }
  if (!refusal(config, check_exl2_shape)) {
    ways += "format=exl2 storage=keep output_dir=DIR, or ";
  }
  if (has_mixed_types(config) && !gguf_refusal(config)) {
    ways += "storage=q8_0 output=FILE.gguf, or ";
  }
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

void require_gguf_place(const ModelConfig& config) {
  if (const auto error = gguf_refusal(config)) {
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
