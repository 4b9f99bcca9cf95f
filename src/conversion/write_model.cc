#include "conversion/write_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>

#include "base/half.h"
#include "base/map_guard.h"
#include "base/options.h"
#include "base/text.h"
#include "conversion/for_rows.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"
#include "formats/safetensors.h"
#include "kernels/device.h"
#include "model/weights.h"
#include "quant/gguf_formats.h"
#include "quant/gguf_mixtures.h"
#include "quant/nf4.h"
#include "quant/plain.h"
#include "quant/row_encoders.h"
#include "quant/small_values.h"
#include "quant/stored_rows.h"

namespace jackscrew {

namespace {

bool can_hold(ModelFormat files, const Format& format) {
  return files == ModelFormat::hf ? safetensors_dtype(format) != nullptr || &format == &nf4_format()
                                  : ggml_type(format.name()).has_value();
}

// Whether blocks of the format, if it has any, divide rows of `cols` elements.
bool holds_rows_of(const Format& format, int64_t cols) {
  try {
    format.row_bytes(cols);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return false;
  }
}

// Bits per element of a whole block, scales included.
double bits_of(const Format& format) {
  constexpr int64_t kWidth = 256;  // a multiple of every block size
  return 8.0 * static_cast<double>(format.row_bytes(kWidth)) / static_cast<double>(kWidth);
}

// What llama.cpp's quantiser takes where rows are not a multiple of 256 elements. (For two and
// three bits its newest versions take q4_0, which is as large and loses more.)
struct ForOddRows {
  const Format& (*format)();
  const Format& (*instead)();  // in blocks of 32
};
constexpr ForOddRows kForOddRows[] = {{q2_k_format, iq4_nl_format}, {q3_k_format, iq4_nl_format},
                                      {q4_k_format, q5_0_format},   {q5_k_format, q5_1_format},
                                      {q6_k_format, q8_0_format},   {iq4_xs_format, iq4_nl_format}};

// `format`, or its replacement for rows of `cols` elements.
const Format& for_width(const Format& format, int64_t cols) {
  if (holds_rows_of(format, cols)) return format;
  for (const ForOddRows& odd : kForOddRows) {
    if (&odd.format() == &format && holds_rows_of(odd.instead(), cols)) return odd.instead();
  }
  return f16_format();
}

// Rows per panel; whole heads where rows are interleaved.
int64_t panel_step(const ModelTensor& tensor, int64_t heads) {
  const int64_t step = std::min(tensor.spec.rows, encode_panel_rows(tensor.spec.cols));
  if (heads == 0) return step;
  const int64_t head_dim = tensor.spec.rows / heads;
  return std::max(head_dim, step / head_dim * head_dim);
}

bool can_write(const Format& format) {
  return find_row_encoder(format) != nullptr || &format == &nf4_format();
}

[[noreturn]] void cannot_be_written(const StorageChoice& choice) {
  const bool directory = choice.files == ModelFormat::hf;
  throw Error(
      ErrorKind::usage,
      fmt::format("storage={} cannot be written to {}", choice.storage,
                  directory ? "a Hugging Face directory" : "a GGUF file"),
      fmt::format("that can have storage=keep or {}", fmt::join(storages_of(choice.files), " ")));
}

// The format that the recipe's storage gives to each weight.
class ChosenStorage {
 public:
  explicit ChosenStorage(const StorageChoice& choice) : mixture_(mixture_of(choice)) {
    if (choice.storage == "keep" || mixture_ != nullptr) return;
    if (find_gguf_mixture(choice.storage) != nullptr) cannot_be_written(choice);
    format_ = &find_format(choice.storage);
    if (!can_hold(choice.files, *format_) || !can_write(*format_)) cannot_be_written(choice);
  }

  // Null where a weight keeps its format.
  const Format* of(const ModelConfig& config, const WeightSpec& weight) const {
    if (mixture_ == nullptr) return format_;
    return &mixture_->format_of(
        {config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads}, weight);
  }

 private:
  const GgufMixture* mixture_;
  const Format* format_ = nullptr;
};

// The format that a weight is to have whatever its width; null where it keeps its own.
const Format* wanted_format(const StorageChoice& choice, const ChosenStorage& storage,
                            const ModelConfig& config, const WeightSpec& weight) {
  const Format* fixed = choice.fixed_format ? choice.fixed_format(weight) : nullptr;
  const Format* format = fixed != nullptr ? fixed : storage.of(config, weight);
  // Formats of linear layers leave embedding, head and norms as they are.
  const bool fits = format == nullptr || !format->for_linears_only() || weight.is_block_matrix();
  return fits ? format : nullptr;
}

// The format of a weight for which none is wanted.
const Format& kept_format(const StorageChoice& choice, const WeightSpec& weight,
                          const StoredTensor& kept, const StoredTensor& stored) {
  const bool is_plain = safetensors_dtype(*kept.format) != nullptr;
  // An adapter merged into a quantised weight would be lost if the result were quantised again.
  const bool stays = is_plain || !stored.computed;
  const bool fits = weight.is_block_matrix() || !kept.format->for_linears_only();
  return stays && fits && can_hold(choice.files, *kept.format) ? *kept.format : f32_format();
}

// The largest magnitude that a format can represent; of GGUF's blocks, which other programs decode
// in f16, that of f16.
float largest_of(const Format& format) {
  if (&format == &f32_format() || &format == &nf4_format())
    return std::numeric_limits<float>::max();
  return &format == &bf16_format() ? 0x1.fep127f : kLargestF16;
}

std::string wide_storages() {
  return fmt::format("storage={} can", fmt::join(ValueOutOfRange::kWide, " and storage="));
}

// Throws unless all values are finite and the format can represent them, which blocks of its own
// do, be they larger than what others are rounded to. Returns the largest magnitude.
float check_values(const ModelFiles& files, const ModelTensor& tensor, const Tensor& panel,
                   bool as_is = false) {
  float largest = 0.0f;
  for (const float x : std::span(panel.data<float>(), static_cast<size_t>(panel.size()))) {
    // Also for NaN.
    if (!(std::abs(x) <= largest)) largest = std::abs(x);
    if (!std::isfinite(largest)) {
      throw Error(
          ErrorKind::non_finite,
          fmt::format("{}: {} has a value that is not finite", files.origin, tensor.spec.name),
          "its training went wrong, or the file is damaged");
    }
  }
  const float most = largest_of(*tensor.format);
  if (as_is || largest <= most) return largest;
  const std::string name = tensor.format->name();
  const bool is_of_blocks = most == kLargestF16 && name != "f16";
  throw ValueOutOfRange(
      ErrorKind::model,
      fmt::format("{}: {} has a value of {:.3g}, more than {} can hold", files.origin,
                  tensor.spec.name, largest,
                  is_of_blocks ? "f16, in which other programs decode " + name + "," : name),
      wide_storages());
}

// What rounding takes from a matrix whose values may all be too small for its format.
class SmallValues {
 public:
  // Of vectors, and where f16 is no part of the format, nothing is asked.
  explicit SmallValues(const ModelTensor& tensor)
      : tensor_(tensor),
        may_vanish_(!tensor.spec.is_vector() && largest_of(*tensor.format) == kLargestF16),
        decoded_(static_cast<size_t>(may_vanish_ ? tensor.spec.cols : 0)) {}

  // Takes the largest magnitude of the next rows. Returns whether the matrix may still be lost:
  // then these rows are to be added.
  bool may_be_lost(float largest) {
    largest_ = std::max(largest_, largest);
    may_vanish_ = may_vanish_ && largest_ < kSafeInF16;
    return may_vanish_;
  }
  // A row, and what it was encoded to.
  void add(Ops& ops, const float* row, uint8_t* encoded) {
    const int64_t cols = tensor_.spec.cols;
    const Storage storage{Tensor(encoded, DType::u8, {tensor_.row_bytes()}), 1, cols};
    tensor_.format->decode(ops, storage, 0, 1, Tensor(decoded_.data(), DType::f32, {1, cols}));
    for (int64_t i = 0; i < cols; ++i) {
      lost_.add(row[i], decoded_[static_cast<size_t>(i)]);
    }
  }
  void check(const std::string& origin) const {
    if (!may_vanish_ || !may_vanish(largest_) || !lost_.are_most()) return;
    throw ValueOutOfRange(ErrorKind::model,
                          fmt::format("{}: {} has values of at most {:.3g}, too small for {}: "
                                      "most of them would become 0",
                                      origin, tensor_.spec.name, largest_, tensor_.format->name()),
                          wide_storages());
  }

 private:
  const ModelTensor& tensor_;
  bool may_vanish_;
  std::vector<float> decoded_;  // a row
  float largest_ = 0.0f;
  LostSquares lost_;
};

}  // namespace

WeightWriter::WeightWriter(const Recipe& recipe, const ModelFiles& files, ModelWriter& writer,
                           ProgressCallback written)
    : files_(files),
      writer_(writer),
      written_(std::move(written)),
      threads_(recipe.threads),
      device_(open_device("cpu", {.threads = recipe.threads, .isa = choose_isa(recipe.isa)})),
      memory_("host", device_->make_backing(), 0),
      ops_(device_->make_ops(memory_)) {}

void WeightWriter::write(const ModelTensor& tensor) {
  const StoredTensor& stored = checked_tensor(files_, *files_.source, tensor.spec);
  const bool is_plain = safetensors_dtype(*tensor.format) != nullptr;
  const bool as_is = !is_plain && stored.format.get() == tensor.format && !stored.computed;
  if (tensor.row_bytes() == 0) {
    write_whole(tensor, stored, as_is);
  } else {
    write_rows(tensor, stored, as_is && !stored.transcode && stored.extra_parts.empty());
  }
  files_.source->release(stored);
  check_maps();
}

void WeightWriter::put(const WeightSpec& weight, std::span<const uint8_t> bytes) {
  writer_.write(weight, bytes);
  if (written_) written_(std::ssize(bytes));
}

// Calls fill(logical row, destination) for all rows of a panel, then writes it.
template <class Fill>
void WeightWriter::write_panel(const ModelTensor& tensor, int64_t heads, int64_t begin, int64_t end,
                               const Fill& fill) {
  const int64_t row_bytes = tensor.row_bytes();
  out_.resize(static_cast<size_t>(checked_mul(end - begin, row_bytes)));
  for_rows(threads_, end - begin, [&](int64_t row) {
    fill(logical_row(begin + row, heads, tensor.spec.rows), out_.data() + row * row_bytes);
  });
  put(tensor.spec, out_);
}

void WeightWriter::write_encoded(const ModelTensor& tensor, std::span<const uint8_t> storage) {
  if (tensor.row_bytes() == 0) {
    const OwnedTensor aligned(memory_, Purpose::staging, DType::u8, {std::ssize(storage)});
    std::ranges::copy(storage, aligned.view().data<uint8_t>());
    return put(tensor.spec, {aligned.view().data<uint8_t>(), storage.size()});
  }
  const int64_t heads = writer_.interleaved_heads(tensor.spec);
  const int64_t step = panel_step(tensor, heads);
  for (int64_t begin = 0; begin < tensor.spec.rows; begin += step) {
    const int64_t end = std::min(tensor.spec.rows, begin + step);
    write_panel(tensor, heads, begin, end, [&](int64_t row, uint8_t* to) {
      std::copy_n(storage.data() + row * tensor.row_bytes(), tensor.row_bytes(), to);
    });
  }
}

// Rows are decoded, although they may stay `as_is`, to see that their values are finite.
void WeightWriter::write_rows(const ModelTensor& tensor, const StoredTensor& stored, bool as_is) {
  const int64_t cols = tensor.spec.cols;
  const RowEncoder* encoder = find_row_encoder(*tensor.format);
  const int64_t heads = writer_.interleaved_heads(tensor.spec);
  const int64_t step = panel_step(tensor, heads);
  const int64_t bytes = StoredRows::bytes_for(stored, tensor.spec.rows, cols);
  const OwnedTensor staging(memory_, Purpose::staging, DType::u8, {std::max<int64_t>(1, bytes)});
  const OwnedTensor panel(memory_, Purpose::staging, DType::f32, {step, cols});
  const StoredRows rows(*ops_, stored, tensor.spec.rows, cols, staging.view());
  SmallValues small(tensor);
  for (int64_t begin = 0; begin < tensor.spec.rows; begin += step) {
    const int64_t end = std::min(tensor.spec.rows, begin + step);
    const Tensor part = panel.view().rows(0, end - begin);
    rows.decode(begin, end, part);
    const float largest = check_values(files_, tensor, part, as_is);
    const float* values = part.data<float>();
    write_panel(tensor, heads, begin, end, [&](int64_t row, uint8_t* to) {
      if (as_is) {
        const int64_t stored_row = stored.interleaved_row(row);
        std::copy_n(stored.bytes.data() + stored_row * tensor.row_bytes(), tensor.row_bytes(), to);
      } else {
        encoder->encode(values + (row - begin) * cols, cols, to);
      }
    });
    if (as_is || !small.may_be_lost(largest)) continue;
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t row = logical_row(begin + i, heads, tensor.spec.rows);
      small.add(*ops_, values + (row - begin) * cols, out_.data() + i * tensor.row_bytes());
    }
  }
  if (!as_is) small.check(files_.origin);
}

// For formats whose rows do not lie one after another: copies or encodes all of them in memory.
void WeightWriter::write_whole(const ModelTensor& tensor, const StoredTensor& stored, bool as_is) {
  const OwnedTensor out(memory_, Purpose::staging, DType::u8, {tensor.bytes()});
  const Storage storage{out.view(), tensor.spec.rows, tensor.spec.cols};
  as_is ? copy_storage(*ops_, stored, storage) : encode_whole(tensor, stored, storage);
  put(tensor.spec, {out.view().data<uint8_t>(), static_cast<size_t>(tensor.bytes())});
}

void WeightWriter::encode_whole(const ModelTensor& tensor, const StoredTensor& stored,
                                const Storage& out) {
  const int64_t rows = out.rows, cols = out.cols;
  const int64_t staged = StoredRows::bytes_for(stored, rows, cols);
  const OwnedTensor staging(memory_, Purpose::staging, DType::u8, {std::max<int64_t>(1, staged)});
  const OwnedTensor panel(memory_, Purpose::staging, DType::f32,
                          {std::min(rows, encode_panel_rows(cols)), cols});
  const StoredRows from(*ops_, stored, rows, cols, staging.view());
  const auto source = [&](int64_t begin, int64_t end) {
    const Tensor part = panel.view().rows(0, end - begin);
    from.decode(begin, end, part);
    check_values(files_, tensor, part);
    return part;
  };
  Arena scratch;
  tensor.format->encode(*ops_, source, out, {}, scratch);
}

std::vector<std::string> storages_of(ModelFormat files) {
  std::vector<std::string> names;
  for (const RowEncoder& encoder : row_encoders()) {
    if (can_hold(files, *encoder.format)) names.emplace_back(encoder.format->name());
  }
  const auto others =
      split_words(files == ModelFormat::hf ? nf4_format().name() : gguf_mixture_names());
  names.insert(names.end(), others.begin(), others.end());
  return names;
}

const GgufMixture* mixture_of(const StorageChoice& choice) {
  return choice.files == ModelFormat::gguf ? find_gguf_mixture(choice.storage) : nullptr;
}

void check_storage(ModelFormat files, const std::string& storage) {
  const ChosenStorage chosen({files, storage});
}

std::vector<ModelTensor> tensors_to_write(const ModelFiles& files, const StorageChoice& choice,
                                          std::vector<std::string>& notes) {
  const ChosenStorage storage(choice);
  const bool tied = files.config.tie_word_embeddings;
  std::map<std::string, int64_t> odd_rows, widened;  // description of the change -> weights
  std::map<int64_t, int64_t> uneven;                 // width of rows -> weights
  std::vector<ModelTensor> tensors;
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const StoredTensor& kept = stored_tensor(files, *choice.kept, weight);
    const StoredTensor& stored = checked_tensor(files, *files.source, weight);
    const bool is_head = weight.module == (tied ? "embed_tokens" : "lm_head");
    const Format* format = wanted_format(choice, storage, files.config, weight);
    if (format == nullptr) {
      format = &kept_format(choice, weight, kept, stored);
      if (!weight.is_vector() && format != kept.format.get()) {
        ++widened[fmt::format("instead of {}: {}", kept.format->name(),
                              stored.computed ? "rounded again, what was merged would be lost"
                                              : "it is not written to such files")];
      }
    } else if (is_head && bits_of(*format) < bits_of(q6_k_format())) {
      format = &for_width(q6_k_format(), weight.cols);
      notes.push_back(fmt::format("{} is written in {}: the head is sensitive to rounding",
                                  weight.name, format->name()));
    }
    if (weight.is_vector() && choice.files == ModelFormat::gguf) format = &f32_format();
    if (!weight.is_vector() && !holds_rows_of(*format, weight.cols)) {
      const Format& wanted = *format;
      format = &for_width(wanted, weight.cols);
      ++odd_rows[fmt::format("{} elements: {} instead of {}, whose blocks do not divide them",
                             weight.cols, format->name(), wanted.name())];
    }
    if (format == &nf4_format() && stored.format.get() != format && weight.cols % kNf4Block != 0) {
      ++uneven[weight.cols];
    }
    tensors.push_back({weight, format});
  }
  for (const auto& [what, count] : widened) {
    notes.push_back(fmt::format("{} {} written in {} {}", counted(count, "weight"),
                                count == 1 ? "is" : "are", f32_format().name(), what));
  }
  for (const auto& [what, count] : odd_rows) {
    notes.push_back(fmt::format("{} with rows of {}", counted(count, "weight"), what));
  }
  for (const auto& [cols, count] : uneven) {
    notes.push_back(
        fmt::format("{} with rows of {} elements in {}, whose blocks of {} do not divide them: "
                    "on a CPU, bitsandbytes 0.50.2 reads other values than these",
                    counted(count, "weight"), cols, nf4_format().name(), kNf4Block));
  }
  return tensors;
}

int64_t writing_memory(const ModelFiles& files, const std::vector<ModelTensor>& tensors,
                       ModelFormat written) {
  int64_t most = 0;
  for (const ModelTensor& tensor : tensors) {
    const int64_t rows = tensor.spec.rows, cols = tensor.spec.cols;
    const StoredTensor& stored = checked_tensor(files, *files.source, tensor.spec);
    const int64_t heads =
        written == ModelFormat::gguf ? gguf_interleaved_heads(files.config, tensor.spec.name) : 0;
    const int64_t panel = panel_step(tensor, heads);
    const int64_t bytes =
        tensor.row_bytes() == 0 ? tensor.bytes() : checked_mul(panel, tensor.row_bytes());
    most = std::max(most, StoredRows::bytes_for(stored, rows, cols) +
                              checked_mul(panel * cols, sizeof(float)) + bytes);
  }
  return most;
}

namespace {

class NowhereWriter : public ModelWriter {
 public:
  void write(const WeightSpec&, std::span<const uint8_t>) override {}
  void close() override {}
};

void pass_weights(const Recipe& recipe, const ModelFiles& files,
                  const std::vector<ModelTensor>& tensors, ModelWriter& writer,
                  const ProgressStyle& style, const char* doing) {
  int64_t bytes = 0;
  for (const ModelTensor& tensor : tensors) bytes = checked_add(bytes, tensor.bytes());
  ProgressBar bar(std::cerr, style, doing, bytes, "B");
  WeightWriter weights(recipe, files, writer, bar.callback());
  for (const ModelTensor& tensor : tensors) weights.write(tensor);
  writer.close();
  bar.finish();
}

}  // namespace

void write_weights(const Recipe& recipe, const ModelFiles& files,
                   const std::vector<ModelTensor>& tensors, ModelWriter& writer,
                   const ProgressStyle& style) {
  pass_weights(recipe, files, tensors, writer, style, "writing weights");
}

void check_weights(const Recipe& recipe, const ModelFiles& files,
                   const std::vector<ModelTensor>& tensors, const ProgressStyle& style) {
  NowhereWriter nowhere;
  pass_weights(recipe, files, tensors, nowhere, style, "checking weights");
}

}  // namespace jackscrew
