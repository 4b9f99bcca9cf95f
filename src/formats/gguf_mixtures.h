// Files of llama.cpp whose matrices have several types: its quantiser gives more bits to those that
// suffer most. What it calls such a file says which matrix has which type.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "quant/format.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Some blocks of a model.
enum class MixtureBlocks : uint8_t {
  all,
  first_two,
  first_four,
  first_eighth,
  first_sixteenth,
  ends_and_thirds,  // the first and the last eighth, and every third between them
  // all of a model ...
  with_few_values,  // in which four heads or more share a value
  of_70b            // of 80 blocks whose heads share values: v is then a small part of it
};

// The linear layers of one module, in those blocks.
struct MixtureRule {
  std::string_view module;
  MixtureBlocks blocks;
  const Format& (*format)();
};

struct GgufMixture {
  std::string_view name;    // as in recipes: "q4_k_m"
  const Format& (*rest)();  // of matrices that no rule is for
  std::span<const MixtureRule> rules;

  // What a matrix gets, whatever its width. The first rule that is for it counts. Of the head it
  // says nothing.
  const Format& format_of(const ModelConfig& config, const WeightSpec& weight) const;
};

// All that can be written. Without calibration, as llama.cpp makes them without an importance
// matrix.
std::span<const GgufMixture> gguf_mixtures();
// Null where there is no mixture of that name.
const GgufMixture* find_gguf_mixture(std::string_view name);
// The names that are not those of formats as well, with spaces between them.
std::string gguf_mixture_names();

// What llama.cpp calls a file with that general.file_type, as recipes say it: "q4_k_m"; "file type
// 99" where it is not known.
std::string gguf_file_type_name(int64_t file_type);
// general.file_type (llama.cpp's llama_ftype) of a mixture, or of a file most of whose matrices
// have that format, of k-quants that of the medium mixture; 0, which is f32, where there is none.
uint32_t gguf_file_type_of(std::string_view name);

}  // namespace jackscrew
