// llama.cpp's mixtures: files whose matrices have several types, with more bits for those that
// suffer most from quantisation. A mixture's name determines which matrix has which type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quant/format.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// A set of a model's blocks.
enum class MixtureBlocks : uint8_t {
  all,
  first_two,
  first_four,
  first_eighth,
  first_sixteenth,
  ends_and_thirds,  // the first and the last eighth, and every third between them
  // All blocks, but of certain models only:
  with_grouped_values,  // those in which four query heads or more share a value head
  of_70b                // those of 80 blocks with shared value heads, where v_proj is a small part
};

// The format of the linear layers of one module, in some blocks.
struct MixtureRule {
  std::string_view module;
  MixtureBlocks blocks;
  const Format& (*format)();
};

// What of a model decides where rules apply.
struct MixtureModel {
  int64_t layers, heads, value_heads;
};

struct GgufMixture {
  std::string_view name;              // as in recipes: "q4_k_m"
  const Format& (*default_format)();  // of matrices that no rule applies to
  std::span<const MixtureRule> rules;

  // The format of a matrix, by the first rule that applies to it. Its width is not considered, and
  // the result is not meant for the head.
  const Format& format_of(const MixtureModel& model, const WeightSpec& weight) const;
};

// All mixtures that can be written. They are not calibrated: they match those that llama.cpp makes
// without an importance matrix.
std::span<const GgufMixture> gguf_mixtures();
// Null where there is no mixture of that name.
const GgufMixture* find_gguf_mixture(std::string_view name);
// The names of mixtures that are not also names of formats, separated by spaces.
std::string gguf_mixture_names();

// llama.cpp's name for a file with that general.file_type, as recipes spell it: "q4_k_m"; "file
// type 99" where it is not known.
std::string gguf_file_type_name(int64_t file_type);
// general.file_type (llama.cpp's llama_ftype) of a mixture, or of a file most of whose matrices
// have the format of that name; for a k-quant, that of its medium mixture. nullopt where there is
// none.
std::optional<uint32_t> gguf_file_type_of(std::string_view name);

}  // namespace jackscrew
