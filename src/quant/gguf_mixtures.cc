#include "quant/gguf_mixtures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "quant/gguf_formats.h"

namespace jackscrew {

namespace {

using enum MixtureBlocks;

constexpr MixtureRule kQ2[] = {{"v_proj", of_70b, q5_k_format},
                               {"v_proj", with_grouped_values, q4_k_format},
                               {"v_proj", all, q3_k_format},
                               {"o_proj", all, q3_k_format},
                               {"down_proj", all, q3_k_format}};
constexpr MixtureRule kQ3Small[] = {{"v_proj", of_70b, q5_k_format}};
constexpr MixtureRule kQ3Medium[] = {{"v_proj", of_70b, q5_k_format},
                                     {"v_proj", first_two, q5_k_format},
                                     {"v_proj", all, q4_k_format},
                                     {"o_proj", all, q4_k_format},
                                     {"down_proj", first_sixteenth, q5_k_format},
                                     {"down_proj", all, q4_k_format}};
constexpr MixtureRule kQ3Large[] = {
    {"v_proj", all, q5_k_format}, {"o_proj", all, q5_k_format}, {"down_proj", all, q5_k_format}};
constexpr MixtureRule kQ4Small[] = {{"v_proj", of_70b, q5_k_format},
                                    {"v_proj", first_four, q5_k_format},
                                    {"down_proj", first_eighth, q5_k_format}};
constexpr MixtureRule kQ4Medium[] = {{"v_proj", ends_and_thirds, q6_k_format},
                                     {"v_proj", of_70b, q5_k_format},
                                     {"down_proj", ends_and_thirds, q6_k_format}};
constexpr MixtureRule kQ5Medium[] = {{"v_proj", ends_and_thirds, q6_k_format},
                                     {"down_proj", ends_and_thirds, q6_k_format}};
constexpr MixtureRule kIq4[] = {{"v_proj", with_grouped_values, q5_k_format},
                                {"down_proj", first_eighth, q5_k_format}};

constexpr std::array<GgufMixture, 10> kMixtures = {{{"q2_k", q2_k_format, kQ2},
                                                    {"q3_k_s", q3_k_format, kQ3Small},
                                                    {"q3_k_m", q3_k_format, kQ3Medium},
                                                    {"q3_k_l", q3_k_format, kQ3Large},
                                                    {"q4_k_s", q4_k_format, kQ4Small},
                                                    {"q4_k_m", q4_k_format, kQ4Medium},
                                                    {"q5_k_s", q5_k_format, {}},
                                                    {"q5_k_m", q5_k_format, kQ5Medium},
                                                    {"iq4_nl", iq4_nl_format, kIq4},
                                                    {"iq4_xs", iq4_xs_format, kIq4}}};

struct FileType {
  uint32_t number;
  std::string_view name;
};
constexpr std::array<FileType, 32> kFileTypes = {
    {{0, "f32"},      {1, "f16"},      {2, "q4_0"},    {3, "q4_1"},    {7, "q8_0"},
     {8, "q5_0"},     {9, "q5_1"},     {10, "q2_k"},   {11, "q3_k_s"}, {12, "q3_k_m"},
     {13, "q3_k_l"},  {14, "q4_k_s"},  {15, "q4_k_m"}, {16, "q5_k_s"}, {17, "q5_k_m"},
     {18, "q6_k"},    {19, "iq2_xxs"}, {20, "iq2_xs"}, {21, "q2_k_s"}, {22, "iq3_xs"},
     {23, "iq3_xxs"}, {24, "iq1_s"},   {25, "iq4_nl"}, {26, "iq3_s"},  {27, "iq3_m"},
     {28, "iq2_s"},   {29, "iq2_m"},   {30, "iq4_xs"}, {31, "iq1_m"},  {32, "bf16"},
     {36, "tq1_0"},   {37, "tq2_0"}}};

bool contains(MixtureBlocks blocks, const MixtureModel& model, int64_t layer) {
  const int64_t layers = model.layers, eighth = layers / 8;
  switch (blocks) {
    case all:
      return true;
    case first_two:
      return layer < 2;
    case first_four:
      return layer < 4;
    case first_eighth:
      return layer < eighth;
    case first_sixteenth:
      return layer < layers / 16;
    case ends_and_thirds:
      return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    case with_grouped_values:
      return model.heads / model.value_heads >= 4;
    case of_70b:
      return layers == 80 && model.value_heads < model.heads;
  }
  return false;
}

}  // namespace

const Format& GgufMixture::format_of(const MixtureModel& model, const WeightSpec& weight) const {
  if (!weight.is_block_matrix()) return default_format();
  for (const MixtureRule& rule : rules) {
    if (rule.module == weight.module && contains(rule.blocks, model, weight.layer)) {
      return rule.format();
    }
  }
  return default_format();
}

std::span<const GgufMixture> gguf_mixtures() {
  return kMixtures;
}

const GgufMixture* find_gguf_mixture(std::string_view name) {
  const auto found = std::ranges::find(kMixtures, name, &GgufMixture::name);
  return found == kMixtures.end() ? nullptr : &*found;
}

std::string gguf_mixture_names() {
  std::string names;
  for (const GgufMixture& mixture : kMixtures) {
    if (format_named(mixture.name) != nullptr) continue;
    names += fmt::format("{}{}", names.empty() ? "" : " ", mixture.name);
  }
  return names;
}

std::string gguf_file_type_name(int64_t file_type) {
  const auto found = std::ranges::find_if(
      kFileTypes, [&](const FileType& type) { return int64_t{type.number} == file_type; });
  return found == kFileTypes.end() ? fmt::format("file type {}", file_type)
                                   : std::string(found->name);
}

std::optional<uint32_t> gguf_file_type_of(std::string_view name) {
  const std::string medium = fmt::format("{}_m", name);
  for (const FileType& type : kFileTypes) {
    if (type.name == name || type.name == medium) return type.number;
  }
  return std::nullopt;
}

}  // namespace jackscrew
