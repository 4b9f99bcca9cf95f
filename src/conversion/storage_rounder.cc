#include "conversion/storage_rounder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "conversion/storage_rounding.h"
#include "model/weights.h"
#include "quant/gguf_formats.h"

namespace jackscrew {

namespace {

// The part of both rounders that does not depend on whether types are given or chosen.
class FormatRounder : public StorageRounder {
 public:
  explicit FormatRounder(const Recipe& recipe)
      : compensates_(recipe.compensates), damping_(recipe.damp_percent) {}

  bool rounds(const WeightSpec& weight) const override { return format_of(weight) != nullptr; }
  ColumnOrder column_order() const override {
    return compensates() ? ColumnOrder::blocks_by_activation : ColumnOrder::own;
  }
  bool compensates() const override { return compensates_; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    return {{weight.name, "U8", {format_of(weight)->storage_bytes(weight.rows, weight.cols)}}};
  }
  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    StorageRounding rounded =
        round_storage(m.ops, m.memory, m.weight, m.w, m.u, m.order, *format_of(m.weight));
    return {{specs(m.weight)[0], std::move(rounded.bytes)}};
  }
  int64_t round_bytes(const WeightSpec& weight) const override {
    return storage_rounding_bytes(weight, *format_of(weight), compensates());
  }
  int64_t held_bytes(const WeightSpec& weight) const override {
    return storage_held_bytes(weight, *format_of(weight));
  }
  QuantisationSettings settings() const override {
    return {{"rounding", compensates_ ? "gptq" : "nearest"}};
  }

 private:
  bool compensates_;
  double damping_;
};

class GivenFormats : public FormatRounder {
 public:
  GivenFormats(const Recipe& recipe, ModelFormat files, const std::vector<ModelTensor>& tensors)
      : FormatRounder(recipe),
        files_(files == ModelFormat::gguf ? "gguf" : "hf"),
        storage_(recipe.storage) {
    std::map<int64_t, int64_t> uneven;  // matrix width -> number of matrices
    for (const auto& [weight, format] : tensors) {
      const BlockRounding rounding = block_rounding(*format);
      if (!weight.is_block_matrix() || rounding.round == nullptr) continue;
      formats_[weight.name] = format;
      if (weight.cols % rounding.columns != 0) ++uneven[weight.cols];
    }
    for (const auto& [cols, count] : uneven) {
      notes_.push_back(
          fmt::format("{} with rows of {} elements: rounded to nearest, since blocks "
                      "do not end where rows do",
                      counted(count, "matrix", "matrices"), cols));
    }
  }

  const Format* format_of(const WeightSpec& weight) const override {
    const auto found = formats_.find(weight.name);
    return found == formats_.end() ? nullptr : found->second;
  }
  QuantisationSettings settings() const override {
    QuantisationSettings settings = FormatRounder::settings();
    settings["format"] = files_;
    settings["storage"] = storage_;
    return settings;
  }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return notes_; }

 private:
  std::string files_, storage_;
  std::map<std::string, const Format*> formats_;  // by weight name
  std::vector<std::string> notes_;
};

class ChosenFormats : public FormatRounder {
 public:
  ChosenFormats(const Recipe& recipe, const ModelConfig& config, const HeldFormats& formats,
                const RateLimit& limit)
      : FormatRounder(recipe), rates_(limit) {
    for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
      if (!weight.is_block_matrix()) continue;
      std::vector<RoundedSize> ways;
      for (const FormatPointer& format : formats(weight)) {
        const int64_t bytes = format->storage_bytes(weight.rows, weight.cols);
        ways.push_back({bytes, bytes});
      }
      rates_.add(weight, ways);
      if (!mixes(weight)) plain_bytes_ = checked_add(plain_bytes_, ways.front().file_bytes);
    }
    rates_.check();
  }

  const Format* format_of(const WeightSpec& weight) const override {
    return mixes(weight) ? mixed_types(weight)[rates_.of(weight)] : nullptr;
  }
  int64_t most_bytes(const std::vector<WeightSpec>&) const override {
    return rates_.most_bytes() - plain_bytes_;
  }
  QuantisationSettings settings() const override {
    QuantisationSettings settings = FormatRounder::settings();
    settings["format"] = "gguf";
    settings.merge(rates_.settings());
    return settings;
  }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return {}; }

  bool measures() const override { return true; }
  std::vector<double> measure(const MatrixToRound& m) const override {
    std::vector<double> costs;
    const OwnedTensor copy(m.memory, Purpose::workspace, DType::f32, {m.w.rows(), m.w.cols()});
    for (const Format* type : mixed_types(m.weight)) {
      m.ops.copy(copy.view(), m.w);
      const double error =
          round_storage(m.ops, m.memory, m.weight, copy.view(), m.u, m.order, *type).error;
      costs.push_back(m.energy > 0.0 ? error / m.energy : 0.0);
    }
    return costs;
  }
  int64_t measure_bytes(const WeightSpec& weight) const override {
    int64_t most = 0;
    for (const Format* type : mixed_types(weight)) {
      most = std::max(most, storage_rounding_bytes(weight, *type, true));
    }
    return booked_f32(weight.rows, weight.cols) + most;
  }
  void choose(const std::map<std::string, std::vector<double>>& costs,
              const std::function<void()>& check) override {
    rates_.choose(costs, check);
  }

 private:
  static bool mixes(const WeightSpec& weight) { return !mixed_types(weight).empty(); }

  MixedRates rates_;
  int64_t plain_bytes_ = 0;  // of the blocks' matrices that cannot be rounded
};

// Whether any weight would be rounded.
bool is_quantised(const std::string& storage) {
  const Format* format = format_named(storage);
  return format == nullptr || block_rounding(*format).round != nullptr;
}

// What to do where files of this kind have no such storage.
std::string other_storage(ModelFormat files, const std::string& storage) {
  const bool is_gguf = files == ModelFormat::gguf;
  const auto others = storages_of(is_gguf ? ModelFormat::hf : ModelFormat::gguf);
  if (is_quantised(storage) && std::ranges::find(others, storage) != others.end()) {
    return fmt::format("{} takes it", is_gguf ? "format=hf output_dir=DIR" : "output=FILE.gguf");
  }
  std::vector<std::string> known = storages_of(files);
  std::erase_if(known, [](const std::string& name) { return !is_quantised(name); });
  return fmt::format("quantize writes storage={}", fmt::join(known, " "));
}

}  // namespace

std::vector<const Format*> mixed_types(const WeightSpec& weight) {
  if (!weight.is_block_matrix() || weight.cols % 32 != 0) return {};
  if (weight.cols % 256 != 0) {
    return {&iq4_nl_format(), &q4_1_format(), &q5_0_format(), &q5_1_format(), &q8_0_format()};
  }
  return {&q2_k_format(), &q3_k_format(), &iq4_xs_format(), &q4_k_format(),
          &q5_k_format(), &q6_k_format(), &q8_0_format()};
}

void check_storage_rounding(const Recipe& recipe, ModelFormat files, bool is_mixed) {
  const bool is_gguf = files == ModelFormat::gguf;
  const char* formats = is_gguf ? "gguf" : "hf or bnb";
  const char* some = is_gguf ? "storage=q4_k_m, for one" : "storage=nf4";
  std::vector<std::string> others = {"head_bits", "group_size", "desc_act", "sym"};
  if (!is_mixed) others.push_back("bits");
  for (const std::string& name : others) {
    if (!recipe.options.asks_for(name)) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("{} is set, but with format={} storage determines it", name, formats),
        fmt::format("leave it out; {}{} has bits and groups of its own", some, is_gguf ? "," : ""));
  }
  if (is_mixed) {
    if (recipe.compensates) return;
    throw Error(ErrorKind::usage, "rounding=nearest measures nothing to choose types by",
                "leave it out, or set a storage in place of the rate");
  }
  if (recipe.storage == "keep") {
    throw Error(ErrorKind::usage,
                is_gguf ? "format=gguf needs a storage, or bits, to quantize to"
                        : "format=hf needs a storage to quantize to",
                some);
  }
  try {
    check_storage(files, recipe.storage);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), other_storage(files, recipe.storage));
  }
  if (is_quantised(recipe.storage)) return;
  throw Error(ErrorKind::usage, fmt::format("storage={} is not quantised", recipe.storage),
              fmt::format("export writes it; quantize writes {}", some));
}

std::unique_ptr<StorageRounder> make_storage_rounder(const Recipe& recipe, ModelFormat files,
                                                     const std::vector<ModelTensor>& tensors) {
  return std::make_unique<GivenFormats>(recipe, files, tensors);
}

std::unique_ptr<StorageRounder> make_mixed_rounder(const Recipe& recipe, const ModelConfig& config,
                                                   const HeldFormats& formats,
                                                   const RateLimit& limit) {
  return std::make_unique<ChosenFormats>(recipe, config, formats, limit);
}

}  // namespace jackscrew
